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
        ],
        title: t("\"Failed to modify QP to RTR\"", "“Failed to modify QP to RTR”"),
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
                "A card or kernel rxe cannot find the peer's MAC address: no route, or no answer to ARP.",
                "网卡或内核 rxe 找不到对端的 MAC 地址：没有路由，或 ARP 无响应。",
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
        title: t("\"Failed to modify QP to RTS\"", "“Failed to modify QP to RTS”"),
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
            "no rdma devices found",
            "no ibv devices found",
            "failed to get device list",
        ],
        title: t(
            "\"No IB devices found\", \"Couldn't get device\"",
            "“No IB devices found”、“Couldn't get device”",
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
            "“Unable to open device”、“Couldn't get context for …”",
        ),
        what: t(
            "The device is listed, and ibv_open_device failed.",
            "设备在列表中，但 ibv_open_device 失败。",
        ),
        causes: &[
            t(
                "The user may not open /dev/infiniband/uverbs* (hardware and kernel rxe).",
                "用户无权打开 /dev/infiniband/uverbs*（硬件和内核 rxe）。",
            ),
            t(
                "Under `rxe run`: the interface is down or has no usable address, or UDP port 4791 is taken, such as by kernel rxe.",
                "在 `rxe run` 下：接口已关闭或没有可用地址，或 UDP 4791 端口被占用（例如被内核 rxe）。",
            ),
        ],
        remedies: &[t(
            "Read the line of rxe on standard error. See ip address, and ss -ulpn for port 4791.",
            "阅读标准错误输出中 rxe 的那一行；用 ip address 查看地址，用 ss -ulpn 查看 4791 端口。",
        )],
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
        title: t("\"Couldn't connect to HOST:PORT\"", "“Couldn't connect to 主机:端口”"),
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
            "couldn't write remote address",
            "couldn't exchange",
        ],
        title: t("\"Couldn't read remote address\"", "“Couldn't read remote address”"),
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
            "ibv_reg_mr failed",
        ],
        title: t(
            "\"Couldn't register MR\", \"Failed to register MR\"",
            "“Couldn't register MR”、“Failed to register MR”",
        ),
        what: t(
            "ibv_reg_mr failed: the memory could not be made usable for the device.",
            "ibv_reg_mr 失败：内存无法供设备使用。",
        ),
        causes: &[
            t(
                "Cards and kernel rxe lock the memory: ulimit -l is too small (ENOMEM). rxe locks none.",
                "网卡和内核 rxe 要锁定内存：ulimit -l 太小（ENOMEM）。rxe 不锁定内存。",
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
        title: t("\"Warning: RLIMIT_MEMLOCK is … bytes\"", "“Warning: RLIMIT_MEMLOCK is … bytes”"),
        what: t(
            "libibverbs warns that this user may lock only little memory.",
            "libibverbs 警告：该用户可锁定的内存很少。",
        ),
        causes: &[t(
            "The default limit of the system. It matters for cards and kernel rxe; rxe locks no memory.",
            "系统默认限制。对网卡和内核 rxe 有影响；rxe 不锁定内存。",
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
            "“Received 10 times ADDR_ERROR”、RDMA_CM_EVENT_ADDR_ERROR",
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
        phrases: &["rdma_cm_event_route_error", "route_error"],
        title: t("RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_ROUTE_ERROR"),
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
            "对端的连接管理器回复了 REJ；事件的 status 是原因。",
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
            "RDMA_CM_EVENT_UNREACHABLE、RDMA_CM_EVENT_CONNECT_ERROR",
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
        title: t("\"Unexpected CM event …\"", "“Unexpected CM event …”"),
        what: t(
            "The program waited for one event of the connection manager, and another one came. Its name or number says what happened.",
            "程序等待连接管理器的某个事件，却来了另一个；其名称或编号说明发生了什么。",
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
        phrases: &["failed status", "completion with error at"],
        title: t("\"Failed status N: wr_id …\"", "“Failed status N: wr_id …”"),
        what: t(
            "A request completed with an error. N is its completion status.",
            "某个请求以错误结束；N 是完成状态。",
        ),
        causes: &[t(
            "wr_id is the program's own number of the request. scnt and ccnt of perftest count requests posted and completed.",
            "wr_id 是程序给请求的编号；perftest 的 scnt、ccnt 是已投递和已完成的请求数。",
        )],
        remedies: &[t(
            "`rxe explain wc N` explains the status.",
            "用 `rxe explain wc N` 查看该状态。",
        )],
    },
    Entry {
        id: "listen",
        names: &[],
        phrases: &["couldn't listen to port", "unable to listen", "unable to open socket"],
        title: t("\"Couldn't listen to port …\"", "“Couldn't listen to port …”"),
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
        phrases: &["couldn't create qp", "unable to create qp", "failed to create qp"],
        title: t("\"Couldn't create QP\"", "“Couldn't create QP”"),
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
        phrases: &[
            "no userspace device-specific driver found",
            "couldn't open config directory",
            "couldn't load driver",
        ],
        title: t(
            "\"no userspace device-specific driver found\"",
            "“no userspace device-specific driver found”",
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
            "ibv_post_send failed",
            "ibv_post_recv failed",
        ],
        title: t(
            "\"Couldn't post send\", \"Couldn't post receive\"",
            "“Couldn't post send”、“Couldn't post receive”",
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
];
