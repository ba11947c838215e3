//! Messages that perftest, the programs of rdma-core, libibverbs and librdmacm print most.

use super::{Entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "modify-to-rtr",
        names: &[],
        phrases: &[
            "failed to modify qp*to rtr",
            "failed to change qp*to rtr",
            "modify*qp*to rtr",
            "modify_qp to rtr",
            "unable to connect the hca's through the link",
            "failed to connect qps",
            "couldn't connect to remote qp",
        ],
        title: t(
            "\"Failed to modify QP to RTR\"",
            "“Failed to modify QP to RTR”：无法将 QP 切换到 RTR",
        ),
        what: t(
            "ibv_modify_qp refused the step from INIT to RTR, in which the peer's address is set. The data of the peer came; it does not fit this device.",
            "ibv_modify_qp 拒绝从 INIT 转到 RTR；这一步设置对端地址。对端信息已收到，但与本设备不符。",
        ),
        causes: &[
            t(
                "No GID index was given, or a wrong one: RoCE needs the GRH, with the peer's GID.",
                "没有指定 GID 索引，或索引错误：RoCE 必须带 GRH 和对端 GID。",
            ),
            t(
                "The two ends use GIDs of different families (IPv4, IPv6), or the peer's GID is zero.",
                "两端 GID 的地址族不同（IPv4 与 IPv6），或对端 GID 为零。",
            ),
            t(
                "The path MTU is larger than the interface's MTU allows (active_mtu).",
                "路径 MTU 超过接口 MTU 允许的值（active_mtu）。",
            ),
            t(
                "A card or the kernel's rdma_rxe cannot find the peer's MAC address: no route, or no answer to ARP.",
                "网卡或内核的 rdma_rxe 找不到对端的 MAC 地址：没有路由，或 ARP 无响应。",
            ),
        ],
        remedies: &[
            t(
                "Give the GID index on both sides: -x INDEX for perftest, -g INDEX for ibv_rc_pingpong. `rxe gids` lists them.",
                "两端都指定 GID 索引：perftest 用 -x，ibv_rc_pingpong 用 -g；用 `rxe gids` 查看。",
            ),
            t("Use a smaller MTU (-m 1024) on both sides.", "两端都改用较小的 MTU（-m 1024）。"),
            t("Ping the peer from the address of that GID.", "从该 GID 的地址 ping 对端。"),
            t(
                "Start the program with `rxe run`: its standard error names the attribute and the reason.",
                "用 `rxe run` 启动程序：标准错误输出会指出是哪个属性、为什么。",
            ),
        ],
    },
    Entry {
        id: "modify-to-rts",
        names: &[],
        phrases: &["failed to modify qp*to rts", "failed to change qp*to rts", "modify*qp*to rts"],
        title: t(
            "\"Failed to modify QP to RTS\"",
            "“Failed to modify QP to RTS”：无法将 QP 切换到 RTS",
        ),
        what: t(
            "ibv_modify_qp refused the step from RTR to RTS.",
            "ibv_modify_qp 拒绝从 RTR 转到 RTS。",
        ),
        causes: &[
            t(
                "An attribute of this step is missing in the mask or has a bad value (max_rd_atomic beyond the device's limit).",
                "掩码中缺少这一步的属性，或属性值错误（如 max_rd_atomic 超过设备上限）。",
            ),
            t(
                "The queue pair is not in RTR: it has failed meanwhile.",
                "队列对不在 RTR：期间已经出错。",
            ),
        ],
        remedies: &[t(
            "Compare the attribute mask with `rxe explain RTS`.",
            "对照 `rxe explain RTS` 检查属性掩码。",
        )],
    },
    Entry {
        id: "no-devices",
        names: &["no-device"],
        phrases: &[
            "no ib devices found",
            "couldn't get device",
            "did not detect devices",
            "unable to find the infiniband/roce device",
            "failed to get ib devices list",
            "ib device * not found",
            "ib device * wasn't found",
            "no such device id",
            "couldn't list devices",
            "no rdma devices found",
            "no ibv devices found",
            "failed to get device list",
        ],
        title: t(
            "\"No IB devices found\", \"Couldn't get device\"",
            "“No IB devices found”、“Couldn't get device”：找不到 RDMA 设备",
        ),
        what: t(
            "The program sees no RDMA device, or none with the name that it was given.",
            "程序看不到任何 RDMA 设备，或没有指定名字的设备。",
        ),
        causes: &[
            t(
                "The program was not started with `rxe run`, or is statically linked or set-user-ID, so that LD_PRELOAD has no effect.",
                "程序没有用 `rxe run` 启动，或是静态链接、带 setuid，LD_PRELOAD 不起作用。",
            ),
            t("The name given with -d is wrong.", "-d 指定的设备名错误。"),
            t(
                "With hardware: the driver is not loaded, or a container has no /dev/infiniband.",
                "使用硬件时：驱动未加载，或容器中没有 /dev/infiniband。",
            ),
            t(
                "No network interface has an address. Loopback is offered only on request: `rxe run --device rxe_lo`.",
                "没有带地址的网络接口。回环设备要明确指定：`rxe run --device rxe_lo`。",
            ),
        ],
        remedies: &[t(
            "List the devices: `rxe devices`, `rxe run -- ibv_devices`. Use one of these names for -d.",
            "列出设备：`rxe devices`、`rxe run -- ibv_devices`，把其中的名字用于 -d。",
        )],
    },
    Entry {
        id: "open-device",
        names: &[],
        phrases: &[
            "unable to open device",
            "couldn't get context for",
            "failed to open device",
            "couldn't open device",
        ],
        title: t(
            "\"Unable to open device\", \"Couldn't get context for …\"",
            "“Unable to open device”、“Couldn't get context for …”：无法打开设备",
        ),
        what: t(
            "The device is listed, and ibv_open_device failed.",
            "设备在列表中，但 ibv_open_device 失败。",
        ),
        causes: &[
            t(
                "The user may not open /dev/infiniband/uverbs* (hardware and the kernel's rdma_rxe).",
                "用户无权打开 /dev/infiniband/uverbs*（硬件和内核的 rdma_rxe）。",
            ),
            t(
                "Under `rxe run`: the interface is down or has no usable address, or UDP port 4791 is taken, for example by the kernel's module rdma_rxe.",
                "在 `rxe run` 下：接口已关闭或没有可用地址，或 UDP 4791 端口被占用（例如被内核模块 rdma_rxe）。",
            ),
        ],
        remedies: &[
            t(
                "Read the line of rxe on standard error. See ip address, and ss -ulpn for port 4791.",
                "阅读标准错误输出中 rxe 的那一行；用 ip address 查看地址，用 ss -ulpn 查看 4791 端口。",
            ),
            t(
                "If the kernel's module is loaded: sudo rdma link delete rxe0; sudo modprobe -r rdma_rxe.",
                "如果加载了内核模块：sudo rdma link delete rxe0; sudo modprobe -r rdma_rxe。",
            ),
        ],
    },
    Entry {
        id: "connect",
        names: &[],
        phrases: &[
            "couldn't connect to",
            "unable to init the socket connection",
            "unable to open file descriptor for socket connection",
            "can't connect to",
        ],
        title: t(
            "\"Couldn't connect to HOST:PORT\"",
            "“Couldn't connect to 主机:端口”：无法连接对端",
        ),
        what: t(
            "The program exchanges QP numbers and GIDs over TCP first, and that connection failed. RDMA has not begun.",
            "程序先用 TCP 交换 QP 号和 GID，而这个 TCP 连接失败了；RDMA 还没有开始。",
        ),
        causes: &[
            t(
                "The server is not running yet, or has ended with an error.",
                "服务端尚未启动，或已出错退出。",
            ),
            t(
                "A wrong host or port: perftest and ibv_rc_pingpong use TCP port 18515.",
                "主机或端口错误：perftest 和 ibv_rc_pingpong 使用 TCP 18515 端口。",
            ),
            t("A firewall blocks the TCP port.", "防火墙拦截了该 TCP 端口。"),
        ],
        remedies: &[t(
            "Start the server first and look at its output. Use the same -p on both sides, and open TCP port 18515 and UDP port 4791.",
            "先启动服务端并看它的输出；两端使用相同的 -p，放行 TCP 18515 和 UDP 4791 端口。",
        )],
    },
    Entry {
        id: "remote-address",
        names: &[],
        phrases: &[
            "couldn't read remote address",
            "couldn't read/write remote address",
            "couldn't send local address",
            "failed to exchange data between server and clients",
            "unable to read from socket",
            "unable to read to socket",
            "unable to write to socket",
            "unable to write from socket",
            "couldn't send/recv local address",
            "couldn't read reports",
            "couldn't send reports",
            "failed to sync between",
            "failed to close connection between server and client",
            "client read",
            "client write",
            "server read",
            "couldn't write remote address",
            "couldn't exchange",
        ],
        title: t(
            "\"Couldn't read remote address\"",
            "“Couldn't read remote address”：读不到对端信息",
        ),
        what: t(
            "The TCP connection, over which the two programs tell each other their QP numbers, ended early.",
            "两个程序互相通报 QP 号所用的 TCP 连接提前断开。",
        ),
        causes: &[
            t(
                "The program at the other end failed; the real error is printed there.",
                "另一端的程序出错退出；真正的错误显示在那一端。",
            ),
            t(
                "The two programs are of different kinds, versions or options.",
                "两端的程序种类、版本或选项不同。",
            ),
        ],
        remedies: &[t(
            "Read the other end's output, and explain that message. Start both with the same program and options.",
            "查看另一端的输出并据此排查；两端使用相同的程序和选项。",
        )],
    },
    Entry {
        id: "register-mr",
        names: &[],
        phrases: &[
            "failed to register mr",
            "couldn't register mr",
            "couldn't allocate mr",
            "failed to create mr",
            "reg_mr failed",
            "failed to reg mr",
        ],
        title: t(
            "\"Couldn't register MR\", \"Failed to register MR\"",
            "“Couldn't register MR”、“Failed to register MR”：无法注册内存区域",
        ),
        what: t(
            "ibv_reg_mr failed: the memory could not be made usable for the device.",
            "ibv_reg_mr 失败：内存无法供设备使用。",
        ),
        causes: &[
            t(
                "Cards and the kernel's rdma_rxe lock the memory: ulimit -l is too small (ENOMEM). rxe locks none.",
                "网卡和内核的 rdma_rxe 要锁定内存：ulimit -l 太小（ENOMEM）。rxe 不锁定内存。",
            ),
            t("The memory is not mapped, or read-only (EFAULT).", "内存未映射或只读（EFAULT）。"),
            t(
                "IBV_ACCESS_REMOTE_WRITE or _ATOMIC without IBV_ACCESS_LOCAL_WRITE, or a flag that the device does not have (EINVAL, EOPNOTSUPP).",
                "有 IBV_ACCESS_REMOTE_WRITE 或 _ATOMIC 却没有 IBV_ACCESS_LOCAL_WRITE，或设备不支持该标志（EINVAL、EOPNOTSUPP）。",
            ),
        ],
        remedies: &[t(
            "Print errno and see `rxe explain ENOMEM`, EFAULT or EINVAL. For locked memory: ulimit -l unlimited.",
            "打印 errno，再看 `rxe explain ENOMEM`、EFAULT 或 EINVAL。锁定内存不足时：ulimit -l unlimited。",
        )],
    },
    Entry {
        id: "memlock",
        names: &["ulimit", "rlimit_memlock"],
        phrases: &["rlimit_memlock"],
        title: t(
            "\"Warning: RLIMIT_MEMLOCK is … bytes\"",
            "“Warning: RLIMIT_MEMLOCK is … bytes”：锁定内存的限额过低",
        ),
        what: t(
            "libibverbs warns that this user may lock only little memory.",
            "libibverbs 警告：该用户可锁定的内存很少。",
        ),
        causes: &[t(
            "The default limit of the system. It matters for cards and the kernel's rdma_rxe; rxe locks no memory.",
            "系统默认限制。对网卡和内核的 rdma_rxe 有影响；rxe 不锁定内存。",
        )],
        remedies: &[t(
            "ulimit -l unlimited, a line in /etc/security/limits.conf, or LimitMEMLOCK=infinity of systemd.",
            "ulimit -l unlimited，或修改 /etc/security/limits.conf，或设置 systemd 的 LimitMEMLOCK=infinity。",
        )],
    },
    Entry {
        id: "addr-error",
        names: &["ADDR_ERROR", "RDMA_CM_EVENT_ADDR_ERROR"],
        phrases: &[
            "received 10 times addr_error",
            "rdma_cm_event_addr_error",
            "addr_error",
            "rdma_resolve_addr",
        ],
        title: t(
            "\"Received 10 times ADDR_ERROR\", RDMA_CM_EVENT_ADDR_ERROR",
            "“Received 10 times ADDR_ERROR”、RDMA_CM_EVENT_ADDR_ERROR：地址解析失败",
        ),
        what: t(
            "rdma_resolve_addr found no RDMA device from which the peer's address can be reached.",
            "rdma_resolve_addr 找不到能到达对端地址的 RDMA 设备。",
        ),
        causes: &[
            t(
                "The route to the peer leaves by an interface without an RDMA device.",
                "到对端的路由经过没有 RDMA 设备的网络接口。",
            ),
            t(
                "There is no route, or the peer does not answer ARP or neighbour discovery.",
                "没有路由，或对端不响应 ARP、邻居发现。",
            ),
            t(
                "The address is 127.0.0.1, for which hardware has no device.",
                "地址是 127.0.0.1，硬件没有对应的设备。",
            ),
        ],
        remedies: &[t(
            "See ip route get ADDRESS, and give an address that `rxe gids` lists on both hosts. For loopback: `rxe run --device rxe_lo`.",
            "查看 ip route get 地址，使用两端 `rxe gids` 列出的地址。回环请用 `rxe run --device rxe_lo`。",
        )],
    },
    Entry {
        id: "route-error",
        names: &["RDMA_CM_EVENT_ROUTE_ERROR"],
        phrases: &["rdma_cm_event_route_error", "route_error", "rdma_resolve_route"],
        title: t("RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_ROUTE_ERROR：路由解析失败"),
        what: t(
            "rdma_resolve_route failed: there is no path to the resolved address.",
            "rdma_resolve_route 失败：没有到所解析地址的路径。",
        ),
        causes: &[t(
            "The interface went down or lost its address in between.",
            "其间接口被关闭或失去地址。",
        )],
        remedies: &[t(
            "See ip link and ip route, and resolve the address again.",
            "查看 ip link、ip route，重新解析地址。",
        )],
    },
    Entry {
        id: "rejected",
        names: &["RDMA_CM_EVENT_REJECTED", "REJ"],
        phrases: &["rdma_cm_event_rejected"],
        title: t("RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_REJECTED：连接被拒绝"),
        what: t(
            "The peer's connection manager answered with REJ. The event's status is the reason.",
            "对端的通信管理器回复了 REJ；事件的 status 是原因。",
        ),
        causes: &[
            t(
                "8: nobody listens on that port, or in that port space (TCP, UDP).",
                "8：该端口或端口空间（TCP、UDP）没有监听者。",
            ),
            t(
                "28: the peer's program called rdma_reject, or ended.",
                "28：对端程序调用了 rdma_reject，或已退出。",
            ),
            t(
                "10: this connection is known there already.",
                "10：对端已有这个连接（stale connection）。",
            ),
        ],
        remedies: &[t(
            "Start the server first, with the same port (rdma_bind_addr) and the same port space.",
            "先启动服务端，端口（rdma_bind_addr）和端口空间要相同。",
        )],
    },
    Entry {
        id: "unreachable",
        names: &["RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_CONNECT_ERROR"],
        phrases: &["rdma_cm_event_unreachable", "rdma_cm_event_connect_error"],
        title: t(
            "RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_CONNECT_ERROR",
            "RDMA_CM_EVENT_UNREACHABLE、RDMA_CM_EVENT_CONNECT_ERROR：对端不可达、连接出错",
        ),
        what: t("No answer to the connection request came.", "连接请求没有得到响应。"),
        causes: &[
            t("No RDMA device works at that address.", "该地址没有工作中的 RDMA 设备。"),
            t("A firewall blocks UDP port 4791.", "防火墙拦截了 UDP 4791 端口。"),
        ],
        remedies: &[t(
            "Start the peer's program with `rxe run`, or check its card. Ping the address, and open UDP port 4791 both ways.",
            "用 `rxe run` 启动对端程序，或检查其网卡；ping 该地址，双向放行 UDP 4791 端口。",
        )],
    },
    Entry {
        id: "cm-event",
        names: &[],
        phrases: &["unexpected cm event", "unexpected event"],
        title: t("\"Unexpected CM event …\"", "“Unexpected CM event …”：意外的 CM 事件"),
        what: t(
            "The program waited for one event of the connection manager, and another one came. Its name or number says what happened.",
            "程序等待通信管理器的某个事件，却来了另一个；其名称或编号说明发生了什么。",
        ),
        causes: &[t(
            "1 ADDR_ERROR, 3 ROUTE_ERROR, 6 CONNECT_ERROR, 7 UNREACHABLE, 8 REJECTED, 10 DISCONNECTED.",
            "1 ADDR_ERROR、3 ROUTE_ERROR、6 CONNECT_ERROR、7 UNREACHABLE、8 REJECTED、10 DISCONNECTED。",
        )],
        remedies: &[t(
            "Explain that event: `rxe explain addr-error`, route-error, unreachable or rejected.",
            "查看该事件：`rxe explain addr-error`、route-error、unreachable 或 rejected。",
        )],
    },
    Entry {
        id: "failed-status",
        names: &[],
        phrases: &[
            "failed status",
            "completion with error",
            "parse wc failed",
            "bad wc status",
            "bad completion with status",
            "work completion error",
        ],
        title: t(
            "\"Failed status N: wr_id … syndrom …\", \"parse WC failed\"",
            "“Failed status N: wr_id … syndrom …”、“parse WC failed”：完成状态为失败",
        ),
        what: t(
            "A request completed with an error. N is its completion status.",
            "某个请求以错误结束；N 是完成状态。",
        ),
        causes: &[
            t(
                "wr_id is the program's own number of the request. scnt and ccnt of perftest count requests posted and completed.",
                "wr_id 是程序给请求的编号；perftest 的 scnt、ccnt 是已投递和已完成的请求数。",
            ),
            t(
                "syndrom (vendor syndrome, vendor_err) is a card's own number for the same error, which its maker explains. rxe sets it to 0.",
                "syndrom（vendor syndrome、vendor_err）是网卡对同一错误给出的厂商代码，含义由厂商说明。rxe 总是填 0。",
            ),
            t(
                "The number of \"parse WC failed\" is how many completions were read; the status is in the line above.",
                "“parse WC failed”后面的数字是读到的完成个数；状态在它上面一行。",
            ),
        ],
        remedies: &[t(
            "`rxe explain wc N` explains the status. The first one that is not 5 (flushed) is the cause.",
            "用 `rxe explain wc N` 查看该状态。第一个不是 5（被 flush）的状态才是原因。",
        )],
    },
    Entry {
        id: "listen",
        names: &[],
        phrases: &[
            "couldn't listen to port",
            "unable to listen",
            "unable to open socket",
            "failed to bind socket",
            "accept() failed",
            "server accept",
        ],
        title: t("\"Couldn't listen to port …\"", "“Couldn't listen to port …”：无法监听端口"),
        what: t(
            "The server cannot open the TCP port over which the two programs exchange their QP numbers. RDMA has not begun.",
            "服务端无法打开用于交换 QP 号的 TCP 端口。这时 RDMA 还没有开始。",
        ),
        causes: &[t(
            "Another server runs already, or one that has just ended still holds the port.",
            "已有另一个服务端在运行，或刚退出的服务端仍占用该端口。",
        )],
        remedies: &[t(
            "See who has the port (`ss -tlnp`), or choose another on both sides (-p).",
            "用 `ss -tlnp` 查看谁占用端口，或两端都用 -p 换一个端口。",
        )],
    },
    Entry {
        id: "create-qp",
        names: &[],
        phrases: &[
            "couldn't create qp",
            "unable to create qp",
            "failed to create qp",
            "couldn't create*qp",
            "setup_qp failed",
            "rdma_create_qp",
            "requested qp size might be too big",
        ],
        title: t("\"Couldn't create QP\"", "“Couldn't create QP”：无法创建 QP"),
        what: t("ibv_create_qp failed.", "ibv_create_qp 失败。"),
        causes: &[
            t(
                "The queue depth, max_send_sge or max_inline_data is larger than the device's (EINVAL, ENOMEM).",
                "队列深度、max_send_sge 或 max_inline_data 超过设备上限（EINVAL、ENOMEM）。",
            ),
            t(
                "The device does not have this QP type or these send_ops_flags (EOPNOTSUPP).",
                "设备不支持该队列对类型或 send_ops_flags（EOPNOTSUPP）。",
            ),
        ],
        remedies: &[t(
            "Ask for less (perftest: -t, -r, -I 0), and compare with `rxe devinfo -v`.",
            "减小请求值（perftest：-t、-r、-I 0），并对照 `rxe devinfo -v`。",
        )],
    },
    Entry {
        id: "no-driver",
        names: &[],
        phrases: &["no userspace device-specific driver found"],
        title: t(
            "\"no userspace device-specific driver found\"",
            "“no userspace device-specific driver found”：找不到用户态驱动",
        ),
        what: t(
            "libibverbs found a kernel device, and no provider library for it.",
            "libibverbs 发现了内核设备，但没有对应的用户态驱动（provider）。",
        ),
        causes: &[t(
            "The package of providers is missing, or older than the card.",
            "没有安装 provider 软件包，或版本比网卡旧。",
        )],
        remedies: &[t(
            "Install ibverbs-providers (Debian) or rdma-core (others). Programs under `rxe run` need no provider.",
            "安装 ibverbs-providers（Debian）或 rdma-core（其他发行版）。`rxe run` 下的程序不需要 provider。",
        )],
    },
    Entry {
        id: "post-send",
        names: &[],
        phrases: &[
            "couldn't post send",
            "failed to post send",
            "couldn't post receive",
            "failed to post receive",
            "couldn't post scatter",
            "couldn't post recv",
            "failed to post sr",
            "failed to post rr",
            "post send error",
            "post recv error",
            "ibv_post_send failed",
            "ibv_post_recv failed",
        ],
        title: t(
            "\"Couldn't post send\", \"Couldn't post receive\"",
            "“Couldn't post send”、“Couldn't post receive”：无法投递请求",
        ),
        what: t(
            "A request could not be put into the queue; it was not executed.",
            "请求没能放入队列，因此没有执行。",
        ),
        causes: &[t(
            "The queue is full (ENOMEM), or the QP's state or the request is wrong (EINVAL).",
            "队列已满（ENOMEM），或队列对的状态、请求本身不对（EINVAL）。",
        )],
        remedies: &[t(
            "The value that the call returns is the errno: see `rxe explain ENOMEM` or EINVAL. Poll completions before posting more.",
            "调用的返回值就是 errno：见 `rxe explain ENOMEM` 或 EINVAL。先取完成再继续投递。",
        )],
    },
    Entry {
        id: "load-driver",
        names: &[],
        phrases: &[
            "couldn't load driver",
            "couldn't open config directory",
            "does not support the kernel abi",
            "kernel abi version",
        ],
        title: t(
            "\"libibverbs: Warning: couldn't load driver …\"",
            "“libibverbs: Warning: couldn't load driver …”：无法加载驱动",
        ),
        what: t(
            "Each file in /etc/libibverbs.d names a driver (provider), and libibverbs cannot load the library of one.",
            "/etc/libibverbs.d 中的每个文件指定一个用户态驱动（provider），libibverbs 无法加载其中一个的库。",
        ),
        causes: &[
            t(
                "The library is not installed, or is of another version of rdma-core than libibverbs.",
                "该库没有安装，或与 libibverbs 不属于同一版本的 rdma-core。",
            ),
            t(
                "\"kernel ABI\": the kernel's driver and rdma-core are too far apart in version.",
                "“kernel ABI”：内核驱动与 rdma-core 的版本相差太大。",
            ),
        ],
        remedies: &[t(
            "It is harmless if the driver is for a card that this host does not have. Otherwise install ibverbs-providers (Debian) or rdma-core of libibverbs' version. Programs under `rxe run` need no provider.",
            "如果是本机没有的网卡的驱动，可以不管。否则安装与 libibverbs 同版本的 ibverbs-providers（Debian）或 rdma-core。`rxe run` 下的程序不需要 provider。",
        )],
    },
    Entry {
        id: "poll-cq",
        names: &[],
        phrases: &[
            "poll cq failed",
            "poll send cq failed",
            "poll receive cq failed",
            "poll on send cq failed",
            "error polling cq",
            "poll error",
            "ibv_poll_cq failed",
            "failed to poll cq",
            "couldn't request cq notification",
            "couldn't request rcq notification",
            "failed to get cq_event",
            "failed to get cq event",
        ],
        title: t(
            "\"poll CQ failed\", \"Couldn't request CQ notification\"",
            "“poll CQ failed”、“Couldn't request CQ notification”：轮询 CQ 失败",
        ),
        what: t(
            "ibv_poll_cq returned a negative number, or the wait for an event failed: the completion queue itself cannot be used. A request that fails is no such error.",
            "ibv_poll_cq 返回负数，或等待事件失败：是完成队列本身不能用。单个请求失败不会报这个错。",
        ),
        causes: &[
            t(
                "More requests completed than the queue has entries (CQ_ERR).",
                "完成的请求多于队列的条目数（CQ_ERR）。",
            ),
            t(
                "The queue or the device was closed, or failed, while it was polled.",
                "轮询期间队列或设备被关闭，或出现故障。",
            ),
        ],
        remedies: &[t(
            "Make the queue as deep as all queues that complete in it together, or poll more often (perftest: smaller -t and -r). See `rxe explain CQ_ERR`.",
            "让完成队列不小于所有使用它的收发队列之和，或更频繁地轮询（perftest：减小 -t 和 -r）。见 `rxe explain CQ_ERR`。",
        )],
    },
    Entry {
        id: "no-completion",
        names: &[],
        phrases: &["completion wasn't found in the cq", "did not get message for"],
        title: t(
            "\"completion wasn't found in the CQ after timeout\"",
            "“completion wasn't found in the CQ after timeout”：超时仍没有完成",
        ),
        what: t(
            "The program waited for a completion, with success or with an error, and gave up before one came.",
            "程序等待一个完成（成功或出错），在它到来之前放弃了。",
        ),
        causes: &[
            t(
                "The other side sends nothing: it ended, or waits for this side.",
                "另一端什么也没发：已退出，或在等这一端。",
            ),
            t(
                "The request was posted without IBV_SEND_SIGNALED, or it completes in another queue than the one that is polled.",
                "投递请求时没有 IBV_SEND_SIGNALED，或它在另一个完成队列中完成。",
            ),
            t(
                "UC and UD lose packets without an error. RC tries for longer than the program waits.",
                "UC 和 UD 丢包不报错。RC 的重试时间比程序的等待时间长。",
            ),
        ],
        remedies: &[t(
            "See on both hosts with `rxe stat` and `rxe capture` what was sent and what arrived. For RC, compare with the times of `rxe explain timeout`.",
            "在两端用 `rxe stat` 和 `rxe capture` 看发了什么、收到了什么。RC 请对照 `rxe explain timeout` 中的时间。",
        )],
    },
    Entry {
        id: "port-state",
        names: &[],
        phrases: &["port number*state is", "couldn't get local lid"],
        title: t("\"Port number 1 state is Down\"", "“Port number 1 state is Down”：端口未启用"),
        what: t(
            "The port of the device is not active, so it neither sends nor receives.",
            "设备的端口不是 Active 状态，因此不能收发。",
        ),
        causes: &[
            t("The interface is down, or has no carrier.", "网络接口没有启用，或没有载波。"),
            t(
                "With -i the program names another port than that of the cable.",
                "-i 指定的端口不是接了线的那个。",
            ),
            t(
                "InfiniBand: no subnet manager has given the port a LID.",
                "InfiniBand：没有子网管理器给端口分配 LID。",
            ),
        ],
        remedies: &[t(
            "See `rxe devinfo`, or ibv_devinfo for cards, then ip link set NETDEV up. InfiniBand needs opensm or a switch with a subnet manager.",
            "查看 `rxe devinfo`（网卡用 ibv_devinfo），再执行 ip link set 接口 up。InfiniBand 需要 opensm 或带子网管理器的交换机。",
        )],
    },
    Entry {
        id: "query-port",
        names: &[],
        phrases: &[
            "unable to query port",
            "error when trying to query port",
            "couldn't get port info",
            "couldn't set the link layer",
            "link layer on port",
        ],
        title: t(
            "\"Unable to query port N attributes\", \"Couldn't get port info\"",
            "“Unable to query port N attributes”、“Couldn't get port info”：无法查询端口",
        ),
        what: t("ibv_query_port failed.", "ibv_query_port 失败。"),
        causes: &[t(
            "The device has no port of this number (-i): those of rxe have port 1 only.",
            "设备没有这个编号（-i）的端口：rxe 的设备只有端口 1。",
        )],
        remedies: &[t(
            "Leave -i out, or give a port that ibv_devinfo lists.",
            "不写 -i，或给出 ibv_devinfo 列出的端口。",
        )],
    },
    Entry {
        id: "query-gid",
        names: &[],
        phrases: &[
            "can't read sgid of index",
            "could not get local gid",
            "couldn't get local gid",
            "could not get gid for port",
            "unable to find gid",
            "failed to find gid",
            "failed to get gid",
            "failed to query gid",
            "ibv_query_gid failed",
        ],
        title: t(
            "\"can't read sgid of index N\", \"Could not get local gid\"",
            "“can't read sgid of index N”、“Could not get local gid”：无法读取 GID",
        ),
        what: t(
            "The device's table has no GID at this index.",
            "设备的 GID 表在该索引处没有 GID。",
        ),
        causes: &[
            t(
                "The index is larger than the number of GIDs. The interface has one for each of its addresses, and lost or never had this one.",
                "索引超出 GID 的个数。接口的每个地址对应一个 GID，该地址已被删除或从未配置。",
            ),
            t(
                "The index is that of another device or host: tables differ.",
                "这是另一个设备或主机上的索引：各自的表不同。",
            ),
        ],
        remedies: &[t(
            "Give an index that `rxe gids` lists on this host: -g of ibv_rc_pingpong, -x of perftest.",
            "使用 `rxe gids` 在本机列出的索引：ibv_rc_pingpong 用 -g，perftest 用 -x。",
        )],
    },
    Entry {
        id: "gid-types",
        names: &[],
        phrases: &["incompatibility issue with gid types", "try to use a different ip version"],
        title: t(
            "\"Found Incompatibility issue with GID types\"",
            "“Found Incompatibility issue with GID types”：GID 类型不一致",
        ),
        what: t(
            "One side of perftest uses a GID of an IPv4 address, the other one of an IPv6 address.",
            "perftest 的一端使用 IPv4 地址的 GID，另一端使用 IPv6 地址的 GID。",
        ),
        causes: &[t(
            "Without -x each side chooses an index by itself; with the same -x the tables of the two hosts differ.",
            "不写 -x 时两端各自选择索引；写相同的 -x 时，两台主机的表不同。",
        )],
        remedies: &[t(
            "See `rxe gids` on both hosts, and give each side the index of its own address with -x.",
            "在两端查看 `rxe gids`，用 -x 给每一端指定自己地址的索引。",
        )],
    },
    Entry {
        id: "create-cq",
        names: &[],
        phrases: &[
            "couldn't create cq",
            "couldn't create a receiver cq",
            "couldn't create send cq",
            "couldn't create recv cq",
            "failed to create cq",
            "ibv_create_cq",
            "couldn't create*completion channel",
            "ibv_create_comp_channel",
            "couldn't create srq",
            "failed to create srq",
            "couldn't allocate pd",
            "failed to allocate pd",
            "ibv_alloc_pd",
        ],
        title: t(
            "\"Couldn't create CQ\", \"Couldn't allocate PD\"",
            "“Couldn't create CQ”、“Couldn't allocate PD”：无法创建 CQ、PD",
        ),
        what: t("An object of the device could not be made.", "无法在设备上创建某个对象。"),
        causes: &[
            t(
                "It would be larger than the device allows (max_cqe, max_srq_wr), or there are too many (EINVAL, ENOMEM).",
                "超过设备允许的大小（max_cqe、max_srq_wr），或对象太多（EINVAL、ENOMEM）。",
            ),
            t(
                "Cards and the kernel's rdma_rxe lock memory for it: ulimit -l is too small (ENOMEM).",
                "网卡和内核的 rdma_rxe 要为它锁定内存：ulimit -l 太小（ENOMEM）。",
            ),
            t(
                "A completion channel is a file: ulimit -n is too small (EMFILE).",
                "完成通道是一个文件：ulimit -n 太小（EMFILE）。",
            ),
        ],
        remedies: &[t(
            "Ask for less (perftest: -t, -r, -q), and compare with `rxe devinfo -v`. See `rxe explain ENOMEM` or EINVAL.",
            "减小请求值（perftest：-t、-r、-q），并对照 `rxe devinfo -v`。见 `rxe explain ENOMEM` 或 EINVAL。",
        )],
    },
    Entry {
        id: "earlier-line",
        names: &[],
        phrases: &[
            "couldn't create ib resources",
            "unable to set up socket connection",
            "unable to set up my ib connection parameters",
            "parser function exited with error",
            "unable to create rdma_cm resources",
            "unable to create rdma resources",
        ],
        title: t(
            "\"Couldn't create IB resources\", \"Parser function exited with Error\"",
            "“Couldn't create IB resources”、“Parser function exited with Error”：无法创建资源、参数解析出错",
        ),
        what: t(
            "A step of perftest failed. Which one and why is in the lines above this one.",
            "perftest 的某一步失败。是哪一步、为什么，在它上面的几行里。",
        ),
        causes: &[
            t(
                "Parser function: an option that this test does not have, or two that exclude each other.",
                "Parser function：该测试没有这个选项，或两个选项互相冲突。",
            ),
            t(
                "IB resources: a queue, a region or a completion queue could not be made.",
                "IB resources：无法创建队列、内存区域或完成队列。",
            ),
            t(
                "Socket connection: the GID or the port of this side could not be read.",
                "socket connection：读不到本端的 GID 或端口。",
            ),
        ],
        remedies: &[t(
            "Explain the first line that the program printed: `rxe explain \"THE LINE\"`.",
            "查看程序打印的第一行错误：`rxe explain \"那一行\"`。",
        )],
    },
    Entry {
        id: "options-differ",
        names: &[],
        phrases: &["failed to negotiate parameters", "mismatch: local=", "couldn't parse line <"],
        title: t(
            "\"Failed to negotiate parameters\"",
            "“Failed to negotiate parameters”：两端参数协商失败",
        ),
        what: t(
            "The two programs of perftest compared their options, and they differ.",
            "perftest 的两端比较了各自的选项，结果不一致。",
        ),
        causes: &[t(
            "The line above names the option, or the two versions of perftest differ.",
            "上面一行写着是哪个选项；或两端的 perftest 版本不同。",
        )],
        remedies: &[t(
            "Start both sides with the same program of the same version and the same options; only the client also names the server.",
            "两端使用同一版本的同一程序和相同的选项；只有客户端另外写服务端地址。",
        )],
    },
    Entry {
        id: "open-cm",
        names: &[],
        phrases: &[
            "rdma_create_event_channel",
            "failed to create rdma cm event channel",
            "rdma_create_id",
        ],
        title: t(
            "\"rdma_create_event_channel failed\", \"rdma_create_id: …\"",
            "“rdma_create_event_channel failed”、“rdma_create_id: …”：无法打开 rdma_cm",
        ),
        what: t("librdmacm cannot reach the connection manager.", "librdmacm 无法使用通信管理器。"),
        causes: &[
            t(
                "Cards and the kernel's rdma_rxe: the module rdma_ucm is not loaded (ENODEV, ENOENT), or the user may not open /dev/infiniband/rdma_cm (EACCES).",
                "网卡和内核的 rdma_rxe：没有加载 rdma_ucm 模块（ENODEV、ENOENT），或用户无权打开 /dev/infiniband/rdma_cm（EACCES）。",
            ),
            t("The host has no RDMA device.", "主机没有 RDMA 设备。"),
        ],
        remedies: &[t(
            "modprobe rdma_ucm, or start the program with `rxe run -- PROGRAM`, which needs no module. `rxe doctor` says what else is missing.",
            "执行 modprobe rdma_ucm，或用 `rxe run -- 程序` 启动，这样不需要模块。`rxe doctor` 会指出还缺什么。",
        )],
    },
    Entry {
        id: "bind-address",
        names: &[],
        phrases: &["rdma_bind_addr", "rdma_listen"],
        title: t(
            "\"rdma_bind_addr: …\", \"rdma_listen: …\"",
            "“rdma_bind_addr: …”、“rdma_listen: …”：无法绑定地址或监听",
        ),
        what: t(
            "The program cannot use this address or port of the connection manager.",
            "程序无法在通信管理器中使用该地址或端口。",
        ),
        causes: &[
            t(
                "No interface of this host has the address (EADDRNOTAVAIL), or that interface has no RDMA device (ENODEV).",
                "本机没有接口使用该地址（EADDRNOTAVAIL），或该接口没有 RDMA 设备（ENODEV）。",
            ),
            t(
                "Another program listens on the port (EADDRINUSE).",
                "已有程序监听该端口（EADDRINUSE）。",
            ),
        ],
        remedies: &[t(
            "Give an address that `rxe gids` lists on this host, or none; or another port (-p) on both sides.",
            "使用 `rxe gids` 在本机列出的地址，或不指定地址；或两端都用 -p 换一个端口。",
        )],
    },
    Entry {
        id: "cm-connect",
        names: &[],
        phrases: &[
            "rdma_connect",
            "rdma_accept",
            "rdma_establish",
            "unable to perform rdma_client function",
            "unable to perform rdma_server function",
            "unable to connect (retries",
            "failed to connect rdma cm",
            "failed to connect through rdma cm",
            "failed to accept rdma cm connection",
        ],
        title: t(
            "\"rdma_connect: …\", \"Unable to perform rdma_client function\"",
            "“rdma_connect: …”、“Unable to perform rdma_client function”：rdma_cm 连接失败",
        ),
        what: t(
            "A connection by the connection manager (perftest: -R) was not made.",
            "没有通过通信管理器（perftest：-R）建立连接。",
        ),
        causes: &[
            t(
                "The server does not listen, or was started without -R.",
                "服务端没有监听，或启动时没有 -R。",
            ),
            t(
                "responder_resources or initiator_depth is larger than the device's (EINVAL), or a firewall blocks UDP port 4791.",
                "responder_resources 或 initiator_depth 超过设备上限（EINVAL），或防火墙拦截了 UDP 4791 端口。",
            ),
        ],
        remedies: &[t(
            "Start the server first, with the same options and port, and give the client an address that `rxe gids` lists there. An event that is named above has a topic of its own: `rxe explain rejected`, unreachable, addr-error.",
            "先启动服务端，选项和端口相同；客户端使用 `rxe gids` 在服务端列出的地址。上面若有事件名，可查看 `rxe explain rejected`、unreachable 或 addr-error。",
        )],
    },
    Entry {
        id: "rping-state",
        names: &["rping"],
        phrases: &[
            "wait for connected state",
            "wait for connect_request state",
            "wait for rdma_",
            "waiting for addr/route resolution state",
            "connect error",
            "disconnect event",
        ],
        title: t(
            "\"wait for CONNECTED state N\", \"DISCONNECT EVENT\" (rping)",
            "“wait for CONNECTED state N”、“DISCONNECT EVENT”（rping）：等待连接、连接断开",
        ),
        what: t(
            "rping waited for a step, and it is in another state N: 1 idle, 2 request, 3 address and 4 route resolved, 5 connected, 6 to 9 data, 10 disconnected, 11 error.",
            "rping 在等待某一步，而它处于另一个状态 N：1 空闲，2 收到请求，3 地址已解析，4 路由已解析，5 已连接，6 到 9 传输数据，10 已断开，11 出错。",
        ),
        causes: &[
            t(
                "10: the other side has ended the connection. At a server this is the usual end, after the last ping.",
                "10：另一端断开了连接。对服务端来说，这是最后一次 ping 之后的正常结束。",
            ),
            t(
                "1 to 4: no connection was made; a line above names the event.",
                "1 到 4：没有建立连接；上面一行写着事件名。",
            ),
            t(
                "11: a request failed; a line above has its status.",
                "11：某个请求失败；上面一行写着状态。",
            ),
        ],
        remedies: &[t(
            "Explain the line above, and read what the other side printed.",
            "查看上面那一行，并看另一端的输出。",
        )],
    },
];
