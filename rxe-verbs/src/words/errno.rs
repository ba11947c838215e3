//! The error numbers of Linux with which verbs calls fail.

use super::{Entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "EPERM",
        names: &["errno-1"],
        phrases: &["operation not permitted"],
        title: t("errno 1, EPERM: operation not permitted", "errno 1：EPERM（不允许的操作）"),
        what: t("The caller may not do this.", "调用者没有权限。"),
        causes: &[t(
            "A raw QP or a reserved Q_Key without CAP_NET_RAW, or a container that blocks the call.",
            "没有 CAP_NET_RAW 却使用 raw QP 或保留的 Q_Key，或容器禁止该调用。",
        )],
        remedies: &[t(
            "Use a Q_Key below 0x80000000, or give the program CAP_NET_RAW.",
            "使用小于 0x80000000 的 Q_Key，或赋予 CAP_NET_RAW。",
        )],
    },
    Entry {
        id: "ENOENT",
        names: &["errno-2"],
        phrases: &["no such file or directory"],
        title: t(
            "errno 2, ENOENT: no such file or directory",
            "errno 2：ENOENT（没有这个文件或目录）",
        ),
        what: t(
            "The device, its file or the object asked for does not exist.",
            "所要的设备、设备文件或对象不存在。",
        ),
        causes: &[t(
            "The kernel modules ib_uverbs or rdma_ucm are not loaded, or a container has no /dev/infiniband.",
            "内核模块 ib_uverbs、rdma_ucm 未加载，或容器中没有 /dev/infiniband。",
        )],
        remedies: &[t(
            "Load the modules, pass the devices to the container, or start the program with `rxe run`.",
            "加载模块，把设备传入容器，或用 `rxe run` 启动程序。",
        )],
    },
    Entry {
        id: "EAGAIN",
        names: &["errno-11"],
        phrases: &["resource temporarily unavailable"],
        title: t(
            "errno 11, EAGAIN: resource temporarily unavailable",
            "errno 11：EAGAIN（资源暂时不可用）",
        ),
        what: t(
            "Nothing is there yet, on a file descriptor that does not block.",
            "非阻塞的文件描述符上还没有数据。",
        ),
        causes: &[t(
            "No event waits on a completion channel, an event channel or the device.",
            "完成通道、事件通道或设备上没有等待处理的事件。",
        )],
        remedies: &[t("Wait with poll() and call again.", "用 poll() 等待后重试。")],
    },
    Entry {
        id: "ENOMEM",
        names: &["errno-12"],
        phrases: &["cannot allocate memory", "out of memory"],
        title: t("errno 12, ENOMEM: cannot allocate memory", "errno 12：ENOMEM（无法分配内存）"),
        what: t(
            "Memory or a resource of the device has run out, or a queue is full.",
            "内存或设备资源不足，或队列已满。",
        ),
        causes: &[
            t(
                "ibv_post_send, ibv_post_recv: the queue holds as many requests as it was created for.",
                "ibv_post_send、ibv_post_recv：队列已满，达到创建时的容量。",
            ),
            t(
                "ibv_reg_mr on a card: the limit of locked memory (ulimit -l) is too small.",
                "在网卡上 ibv_reg_mr：锁定内存的上限（ulimit -l）太小。",
            ),
            t(
                "ibv_create_cq, ibv_create_qp: more entries than the device has, or too many objects.",
                "ibv_create_cq、ibv_create_qp：条目数超过设备上限，或对象过多。",
            ),
        ],
        remedies: &[
            t(
                "Poll completions before posting more, and count signaled and unsignaled requests: only a polled completion frees them.",
                "先取完成再继续投递；未请求完成（unsignaled）的请求也占位置，要等其后的完成被取走才释放。",
            ),
            t(
                "Raise the limit: ulimit -l unlimited, or LimitMEMLOCK= of systemd. rxe locks no memory.",
                "提高上限：ulimit -l unlimited，或 systemd 的 LimitMEMLOCK=。rxe 不锁定内存。",
            ),
            t(
                "Compare what you ask for with `rxe devinfo -v` (ibv_devinfo -v).",
                "对照 `rxe devinfo -v`（ibv_devinfo -v）检查请求的数量。",
            ),
        ],
    },
    Entry {
        id: "EACCES",
        names: &["errno-13"],
        phrases: &["permission denied"],
        title: t("errno 13, EACCES: permission denied", "errno 13：EACCES（权限不够）"),
        what: t("The user may not open the device file.", "用户无权打开设备文件。"),
        causes: &[t(
            "/dev/infiniband/uverbs* or rdma_cm belongs to another group.",
            "/dev/infiniband/uverbs* 或 rdma_cm 属于其他用户组。",
        )],
        remedies: &[t(
            "Join that group (often rdma), or use `rxe run`, which needs no device file.",
            "加入该组（通常是 rdma），或使用不需要设备文件的 `rxe run`。",
        )],
    },
    Entry {
        id: "EFAULT",
        names: &["errno-14"],
        phrases: &["bad address"],
        title: t("errno 14, EFAULT: bad address", "errno 14：EFAULT（错误的地址）"),
        what: t(
            "Memory that was to be registered is not mapped, or not writable as asked.",
            "要注册的内存没有映射，或不可按要求写入。",
        ),
        causes: &[t(
            "A wrong pointer or length, or read-only memory with IBV_ACCESS_LOCAL_WRITE. GPU memory without peer memory support.",
            "指针或长度错误，对只读内存要求 IBV_ACCESS_LOCAL_WRITE，或显存缺少 peer memory 支持。",
        )],
        remedies: &[t(
            "Check pointer, length and access flags of ibv_reg_mr.",
            "检查 ibv_reg_mr 的指针、长度和访问标志。",
        )],
    },
    Entry {
        id: "EBUSY",
        names: &["errno-16"],
        phrases: &["device or resource busy"],
        title: t("errno 16, EBUSY: device or resource busy", "errno 16：EBUSY（设备或资源忙）"),
        what: t("The object is still used by another one.", "该对象仍被其他对象使用。"),
        causes: &[t(
            "A PD is freed before its regions and QPs, or a CQ before its QPs, or a region before its windows.",
            "在内存区域和队列对之前释放保护域，在队列对之前销毁完成队列，或在内存窗口之前注销内存区域。",
        )],
        remedies: &[t(
            "Destroy in reverse order: QP, SRQ, CQ, MW, MR, AH, PD, context. Acknowledge all events first.",
            "按相反次序销毁：QP、SRQ、CQ、MW、MR、AH、PD、上下文；先确认（ack）所有事件。",
        )],
    },
    Entry {
        id: "ENODEV",
        names: &["errno-19"],
        phrases: &["no such device"],
        title: t("errno 19, ENODEV: no such device", "errno 19：ENODEV（没有此设备）"),
        what: t(
            "There is no RDMA device for this, or no longer.",
            "没有对应的 RDMA 设备，或设备已移除。",
        ),
        causes: &[t(
            "The address is of an interface that has no RDMA device.",
            "该地址所在的网络接口没有 RDMA 设备。",
        )],
        remedies: &[t(
            "See `rxe devices` and `rxe gids`, and use one of those addresses.",
            "查看 `rxe devices` 和 `rxe gids`，使用其中的地址。",
        )],
    },
    Entry {
        id: "EINVAL",
        names: &["errno-22"],
        phrases: &["invalid argument"],
        title: t("errno 22, EINVAL: invalid argument", "errno 22：EINVAL（无效的参数）"),
        what: t(
            "An argument of the call is wrong or does not fit the state.",
            "调用的参数错误，或与当前状态不符。",
        ),
        causes: &[
            t(
                "ibv_modify_qp: an attribute is missing or too much for this transition, or its value is wrong.",
                "ibv_modify_qp：这一转换缺少或多出属性，或属性值错误。",
            ),
            t(
                "ibv_post_send: the queue pair is not in RTS, there are more sges than max_send_sge, or inline data is longer than max_inline_data.",
                "ibv_post_send：队列对不在 RTS，sge 多于 max_send_sge，或内联数据超过 max_inline_data。",
            ),
            t(
                "ibv_reg_mr: IBV_ACCESS_REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.",
                "ibv_reg_mr：有 IBV_ACCESS_REMOTE_WRITE 或 REMOTE_ATOMIC，却没有 LOCAL_WRITE。",
            ),
        ],
        remedies: &[
            t(
                "Start the program with `rxe run`: its standard error says which argument is wrong and why.",
                "用 `rxe run` 启动程序：标准错误输出会说明哪个参数错误及原因。",
            ),
            t(
                "See `rxe explain RTR` (INIT, RTS) for what each transition needs.",
                "各转换需要的属性见 `rxe explain RTR`（INIT、RTS）。",
            ),
        ],
    },
    Entry {
        id: "ENOSYS",
        names: &["errno-38"],
        phrases: &["function not implemented"],
        title: t("errno 38, ENOSYS: function not implemented", "errno 38：ENOSYS（函数未实现）"),
        what: t("The library or the device does not have this call.", "库或设备没有这个调用。"),
        causes: &[t(
            "An old libibverbs or kernel, or a call that only some vendors offer.",
            "libibverbs 或内核太旧，或只有部分厂商提供该调用。",
        )],
        remedies: &[t(
            "Ask for the capability first (ibv_query_device_ex), and have another way.",
            "先查询能力（ibv_query_device_ex），并准备替代方案。",
        )],
    },
    Entry {
        id: "EOPNOTSUPP",
        names: &["errno-95", "ENOTSUP"],
        phrases: &["operation not supported"],
        title: t(
            "errno 95, EOPNOTSUPP: operation not supported",
            "errno 95：EOPNOTSUPP（不支持的操作）",
        ),
        what: t("The device does not support this.", "设备不支持该操作。"),
        causes: &[t(
            "An attribute, access flag or QP type that the device does not have, such as path migration on RoCE.",
            "设备没有该属性、访问标志或队列对类型，例如 RoCE 上的路径迁移。",
        )],
        remedies: &[t(
            "Compare with `rxe devinfo -v` (ibv_devinfo -v).",
            "对照 `rxe devinfo -v`（ibv_devinfo -v）。",
        )],
    },
    Entry {
        id: "EADDRINUSE",
        names: &["errno-98"],
        phrases: &["address already in use"],
        title: t(
            "errno 98, EADDRINUSE: address already in use",
            "errno 98：EADDRINUSE（地址已被占用）",
        ),
        what: t(
            "Another program has this port on this address.",
            "另一个程序占用了该地址上的这个端口。",
        ),
        causes: &[t(
            "An earlier run has not ended, or another program listens on the TCP port (18515 in perftest) or has UDP port 4791.",
            "上一次运行没有结束，或其他程序在监听该 TCP 端口（perftest 为 18515），或占用了 UDP 4791 端口。",
        )],
        remedies: &[t(
            "`ss -ltnup` says who has it. End that program, or choose another port (-p) or address. `rxe doctor` looks at UDP port 4791.",
            "`ss -ltnup` 显示占用者。结束那个程序，或换用其他端口（-p）或地址。`rxe doctor` 检查 UDP 4791 端口。",
        )],
    },
    Entry {
        id: "EADDRNOTAVAIL",
        names: &["errno-99"],
        phrases: &["cannot assign requested address"],
        title: t(
            "errno 99, EADDRNOTAVAIL: cannot assign requested address",
            "errno 99：EADDRNOTAVAIL（无法指定被请求的地址）",
        ),
        what: t(
            "The local address does not exist on this host, or not yet.",
            "本机没有该地址，或尚不可用。",
        ),
        causes: &[t(
            "A wrong address for rdma_bind_addr, or an IPv6 address that is still tentative.",
            "rdma_bind_addr 的地址错误，或 IPv6 地址仍处于 tentative 状态。",
        )],
        remedies: &[t("See ip address and `rxe gids`.", "查看 ip address 和 `rxe gids`。")],
    },
    Entry {
        id: "ETIMEDOUT",
        names: &["errno-110"],
        phrases: &["connection timed out"],
        title: t("errno 110, ETIMEDOUT: connection timed out", "errno 110：ETIMEDOUT（连接超时）"),
        what: t("The peer did not answer in time.", "对端没有及时响应。"),
        causes: &[
            t(
                "A firewall, a wrong address, or no program there.",
                "防火墙、地址错误，或对端没有程序运行。",
            ),
            t(
                "ibv_modify_qp on a kernel device: the peer's MAC address could not be found (ARP, ND).",
                "内核设备的 ibv_modify_qp：无法解析对端的 MAC 地址（ARP、ND）。",
            ),
        ],
        remedies: &[t(
            "Ping the peer from that address, and open UDP port 4791.",
            "从该地址 ping 对端，放行 UDP 4791 端口。",
        )],
    },
    Entry {
        id: "ECONNREFUSED",
        names: &["errno-111"],
        phrases: &["connection refused"],
        title: t(
            "errno 111, ECONNREFUSED: connection refused",
            "errno 111：ECONNREFUSED（连接被拒绝）",
        ),
        what: t("Nobody listens on that port of the peer.", "对端的该端口没有程序监听。"),
        causes: &[t(
            "The server is not started yet, has ended, or listens on another port or port space.",
            "服务端未启动、已退出，或监听的是其他端口或端口空间。",
        )],
        remedies: &[t(
            "Start the server first, with the same port and the same kind of connection (-R of perftest on both sides).",
            "先启动服务端，两端端口与连接方式要一致（perftest 的 -R 两端都要加）。",
        )],
    },
];

pub(super) fn of(errno: u32) -> Option<&'static Entry> {
    let name = format!("errno-{errno}");
    ENTRIES.iter().find(|entry| entry.names.contains(&name.as_str()))
}
