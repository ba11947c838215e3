//! What a program of verbs makes and names, beside what [`concepts`](super::concepts) has.

use super::{Entry, entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    entry(
        "device",
        &["context", "hca", "ibv_open_device"],
        t("Device and context", "设备（device）与上下文（context）"),
        t(
            "A device is a network card with RDMA, such as mlx5_0; here each network interface with an address is one, such as rxe_eth0. ibv_open_device gives a context, from which all other objects are made.",
            "设备就是支持 RDMA 的网卡，如 mlx5_0；在这里，每个有地址的网络接口都是一个设备，如 rxe_eth0。ibv_open_device 返回上下文，其他对象都由它创建。",
        ),
        &[t(
            "`rxe devices` lists them, as ibv_devices does.",
            "用 `rxe devices` 列出，与 ibv_devices 相同。",
        )],
    ),
    entry(
        "pd",
        &["protection-domain", "ibv_alloc_pd"],
        t("Protection domain (PD)", "保护域（PD）"),
        t(
            "A protection domain says which objects may be used together: a queue pair uses only memory regions of its own domain, for local and for remote access.",
            "保护域规定哪些对象可以一起使用：队列对只能使用同一保护域的内存区域，本地访问和远端访问都是如此。",
        ),
        &[t(
            "One for each process is usual. A server that must keep clients apart has one for each.",
            "通常每个进程一个；需要隔离客户端的服务端为每个客户端建一个。",
        )],
    ),
    entry(
        "qpn",
        &["qp-number", "qp_num", "dest_qp_num"],
        t("Queue pair number (QPN)", "队列对编号（QPN）"),
        t(
            "A QPN has 24 bits and identifies a queue pair at a port. Each packet carries that of its receiver. QPN 1 belongs to the communication manager.",
            "QPN 有 24 位，在一个端口内标识队列对。每个报文都带有接收端的 QPN。QPN 1 由通信管理器（CM）使用。",
        ),
        &[t(
            "Both ends exchange their QPNs, for example over TCP, before the step to RTR.",
            "两端在转到 RTR 之前交换 QPN，例如通过 TCP。",
        )],
    ),
    entry(
        "wr",
        &["work-request", "wqe", "ibv_post_send", "ibv_post_recv"],
        t("Work request (WR)", "工作请求（WR）"),
        t(
            "A work request is what a program posts to a queue pair: a send request (SEND, WRITE, READ, an atomic) or a receive request, which gives memory for a message. In the queue it is a work queue element (WQE).",
            "工作请求是程序投递到队列对的任务：发送请求（SEND、WRITE、READ、原子操作），或者为消息准备内存的接收请求。进入队列后称为工作队列元素（WQE）。",
        ),
        &[t(
            "The memory belongs to the device until the completion comes. wr_id comes back in it.",
            "在完成到来之前，这块内存归设备使用；wr_id 会在完成中返回。",
        )],
    ),
    entry(
        "wc",
        &["completion", "work-completion", "cqe", "wr_id", "vendor_err", "vend-err"],
        t("Work completion (WC)", "工作完成（WC）"),
        t(
            "A work completion says that a request has ended, and how: wr_id, status, and for a receive also the length. If the status is not 0, only wr_id, status, qp_num and vendor_err are valid.",
            "工作完成说明一个请求已经结束以及结果：wr_id、状态，接收还有长度。状态不为 0 时，只有 wr_id、status、qp_num 和 vendor_err 有效。",
        ),
        &[t(
            "Look at the status of each. `rxe explain` lists the codes.",
            "每个完成都要检查状态；`rxe explain` 列出所有代码。",
        )],
    ),
    entry(
        "sge",
        &["sg_list", "ibv_sge", "scatter-gather"],
        t("Scatter/gather element (SGE)", "分散/聚集元素（SGE）"),
        t(
            "An SGE names a part of registered memory: address, length and lkey. A request has a list of them, which are sent as one message or filled in order.",
            "SGE 指出已注册内存的一段：地址、长度和 lkey。一个请求可以有多个 SGE，依次拼成一条消息，或依次填充。",
        ),
        &[t(
            "Each must lie within one memory region of the same protection domain.",
            "每个 SGE 必须位于同一保护域的某个内存区域之内。",
        )],
    ),
    entry(
        "imm",
        &["immediate", "imm_data"],
        t("Immediate data", "立即数（immediate data）"),
        t(
            "Four bytes that go along with a SEND or WRITE and come out in the receiver's completion. A WRITE with immediate uses up a receive of the peer.",
            "随 SEND 或 WRITE 发送的 4 个字节，出现在接收端的完成中。带立即数的 WRITE 会消耗对端一个接收请求。",
        ),
        &[t(
            "It is in network byte order: use htonl() and ntohl().",
            "使用网络字节序：用 htonl() 和 ntohl() 转换。",
        )],
    ),
    entry(
        "srq",
        &["shared-receive-queue", "ibv_create_srq"],
        t("Shared receive queue (SRQ)", "共享接收队列（SRQ）"),
        t(
            "Several queue pairs take their receives from one SRQ, so a server with many clients needs fewer buffers. An event says when fewer are left than a limit.",
            "多个队列对从同一个 SRQ 取接收请求，因此有大量客户端的服务端需要的缓冲区更少。剩余数量低于阈值时产生事件。",
        ),
        &[t(
            "Give it as srq when the queue pair is created, and post receives to it.",
            "创建队列对时用 srq 指定，然后向它投递接收请求。",
        )],
    ),
    entry(
        "xrc",
        &["xrcd", "xrc_send", "xrc_recv"],
        t("Extended reliable connection (XRC)", "扩展可靠连接（XRC）"),
        t(
            "A reliable connection whose requests name the shared receive queue at the other end. So one connection between two hosts serves all processes there.",
            "一种可靠连接，请求中指明对端的共享接收队列，因此两台主机之间一条连接就能服务对端的所有进程。",
        ),
        &[t(
            "Programs ask for it by name, such as ibv_xsrq_pingpong. The kernel's rdma_rxe does not have it.",
            "由程序指定使用，如 ibv_xsrq_pingpong。内核的 rdma_rxe 不支持。",
        )],
    ),
    entry(
        "ah",
        &["address-handle", "ibv_create_ah"],
        t("Address handle (AH)", "地址句柄（AH）"),
        t(
            "An address handle holds the peer's GID and this side's GID index. Each UD request names one. A connected queue pair gets the same data as ah_attr at the step to RTR.",
            "地址句柄保存对端 GID 和本端 GID 索引。UD 的每个请求都要指定一个；面向连接的队列对在转到 RTR 时用 ah_attr 给出同样的内容。",
        ),
        &[t(
            "ibv_create_ah makes one; ibv_create_ah_from_wc makes one for an answer.",
            "用 ibv_create_ah 创建；回复时用 ibv_create_ah_from_wc。",
        )],
    ),
    entry(
        "grh",
        &["is_global", "global-route-header"],
        t("Global route header (GRH)", "全局路由头（GRH）"),
        t(
            "The header with both GIDs. With RoCEv2 it is the IP header. A datagram's receive has 40 bytes for it before the message.",
            "带有双方 GID 的报头，在 RoCEv2 中就是 IP 报头。UD 的接收缓冲区开头要为它留 40 字节。",
        ),
        &[t(
            "Set ah_attr.is_global to 1 and fill in grh.",
            "把 ah_attr.is_global 设为 1，并填写 grh。",
        )],
    ),
    entry(
        "cnp",
        &["congestion", "ecn", "dcqcn"],
        t("Congestion notification packet (CNP)", "拥塞通知报文（CNP）"),
        t(
            "A switch marks packets when its queue grows (ECN). The receiver then sends a CNP to the sender, which slows down (DCQCN).",
            "交换机队列变长时给报文打标记（ECN），接收端随即向发送端发送 CNP，发送端降低速率（DCQCN）。",
        ),
        &[t(
            "Ask the network's people for ECN. `--fault 'ecn 5%'` marks packets for a test.",
            "请网络管理员启用 ECN；测试时可用 `--fault 'ecn 5%'` 给报文打标记。",
        )],
    ),
    entry(
        "icrc",
        &["invariant-crc"],
        t("Invariant CRC (ICRC)", "不变 CRC（ICRC）"),
        t(
            "The last four bytes of each packet: a checksum over all that no router changes. A packet with a wrong one is dropped without an answer. RC sends it again; UC and UD lose it.",
            "每个报文的最后 4 字节，对路由途中不变的部分做校验。ICRC 错误的报文被丢弃，没有响应：RC 会重传，UC 和 UD 就此丢失。",
        ),
        &[t(
            "`rxe decode` checks it. If it is wrong, something between the two ends changes packets.",
            "`rxe decode` 会检查它；如果错误，说明两端之间有设备改动了报文。",
        )],
    ),
    entry(
        "mw",
        &["memory-window", "ibv_alloc_mw"],
        t("Memory window (MW)", "内存窗口（MW）"),
        t(
            "A memory window gives the peer a part of a memory region for some time, under an rkey of its own. It is quicker to bind and to invalidate than a region is to register.",
            "内存窗口用单独的 rkey，把内存区域的一部分临时开放给对端。绑定和失效都比注册内存区域快。",
        ),
        &[t(
            "Use type 2 windows and IBV_WR_BIND_MW. The region needs IBV_ACCESS_MW_BIND.",
            "使用类型 2 的窗口和 IBV_WR_BIND_MW；内存区域需要 IBV_ACCESS_MW_BIND 权限。",
        )],
    ),
    entry(
        "cm",
        &["rdma_cm", "librdmacm", "communication-manager"],
        t("Communication manager (CM, rdma_cm)", "通信管理器（CM，rdma_cm）"),
        t(
            "A protocol on QPN 1 that exchanges QPNs, PSNs and addresses, so that programs connect by address and port as with TCP. librdmacm is its library.",
            "运行在 QPN 1 上的协议，交换 QPN、PSN 和地址，使程序可以像 TCP 一样按地址和端口建立连接。对应的库是 librdmacm。",
        ),
        &[t(
            "`rping` tries it: it needs only addresses, no GID index.",
            "用 `rping` 试验：只需要地址，不需要 GID 索引。",
        )],
    ),
    entry(
        "bth",
        &["base-transport-header", "headers", "opcode", "reth", "atomiceth", "deth", "immdt"],
        t("BTH and the headers behind it", "BTH 及其后的报头"),
        t(
            "Each packet begins with the base transport header: opcode, P_Key, destination QP, AckReq and PSN. The opcode says which headers follow: RETH (address, rkey and length of a WRITE or READ), AtomicETH, DETH (Q_Key and source QP of a datagram), AETH (of a response), ImmDt.",
            "每个报文以基本传输头开始：操作码、P_Key、目的 QP、AckReq 和 PSN。操作码决定后面有哪些报头：RETH（WRITE 或 READ 的地址、rkey 和长度）、AtomicETH、DETH（数据报的 Q_Key 和源 QP）、AETH（响应）、ImmDt。",
        ),
        &[t(
            "`rxe decode -v` shows every field with its name and place.",
            "`rxe decode -v` 显示每个字段的名称和位置。",
        )],
    ),
    entry(
        "pkey",
        &["p_key", "p-key", "pkey_index", "partition"],
        t("P_Key, the partition", "P_Key：分区"),
        t(
            "Each packet carries the number of a partition, and both ends must be in it. On RoCE there is one: index 0 has the P_Key 0xffff.",
            "每个报文都带有分区号，两端必须属于同一个分区。RoCE 只有一个分区：索引 0 的 P_Key 是 0xffff。",
        ),
        &[t("Set pkey_index to 0.", "把 pkey_index 设为 0。")],
    ),
    entry(
        "lid",
        &["dlid", "slid", "local-identifier"],
        t("LID, the address on InfiniBand", "LID：InfiniBand 的地址"),
        t(
            "A LID of 16 bits identifies a port within an InfiniBand subnet. RoCE has none: it is 0, and GIDs are the addresses.",
            "16 位的 LID 在 InfiniBand 子网内标识一个端口。RoCE 没有 LID，其值为 0，地址就是 GID。",
        ),
        &[t(
            "Choose a GID index (-x of perftest, -g of the pingpongs), and set ah_attr.is_global to 1.",
            "选择 GID 索引（perftest 的 -x，pingpong 类程序的 -g），并把 ah_attr.is_global 设为 1。",
        )],
    ),
    entry(
        "traffic-class",
        &["traffic_class", "dscp", "tos", "sl", "service-level", "priority"],
        t("Traffic class and priority", "流量类别（traffic class）与优先级"),
        t(
            "grh.traffic_class becomes the byte of the IP header that has DSCP and ECN, by which switches choose a queue. The service level (sl) is InfiniBand's; on RoCE it chooses at most the priority of a VLAN tag.",
            "grh.traffic_class 就是 IP 报头中含 DSCP 和 ECN 的那个字节，交换机据此选择队列。服务级别（sl）属于 InfiniBand；在 RoCE 上最多决定 VLAN 标签的优先级。",
        ),
        &[t(
            "Use the DSCP that the network has for RDMA, four times as a traffic class. Its low two bits are ECN's.",
            "使用网络为 RDMA 规定的 DSCP，乘以 4 就是流量类别，低两位属于 ECN。",
        )],
    ),
    entry(
        "pfc",
        &["priority-flow-control", "pause-frames", "lossless"],
        t("Priority flow control (PFC)", "优先级流控（PFC）"),
        t(
            "With PFC a switch stops the senders of one priority before its queue overflows, so nothing is lost. RoCEv2 works without it too, but each loss costs a retransmission.",
            "有了 PFC，交换机在队列溢出之前让某个优先级的发送端暂停，因此不丢包。没有 PFC，RoCEv2 也能工作，但每次丢包都要重传。",
        ),
        &[t(
            "It is set up in switches and cards, for one priority. ECN with DCQCN needs less of the network; see `rxe explain cnp`.",
            "在交换机和网卡上为一个优先级配置。ECN 加 DCQCN 对网络要求更少，见 `rxe explain cnp`。",
        )],
    ),
    entry(
        "gso",
        &["gro", "segmentation", "super-frame"],
        t("Segmentation by the host (GSO, GRO)", "主机分段（GSO、GRO）"),
        t(
            "A host may hand several packets to its card in one piece (GSO), and get several that arrived in one (GRO). A capture on that host shows them as one long frame; on the wire they are single packets.",
            "主机可以把多个报文合成一块交给网卡（GSO），到达的多个报文也可以合成一块交给主机（GRO）。在该主机上抓包看到的是一个长帧，线上仍是单个报文。",
        ),
        &[t(
            "`rxe decode` takes such frames apart. `rxe run --no-gso` sends packets one by one.",
            "`rxe decode` 会把这种帧拆开；`rxe run --no-gso` 逐个发送报文。",
        )],
    ),
    entry(
        "mad",
        &["management-datagram", "req", "rep", "rtu", "dreq", "drep", "mra", "sidr"],
        t("Messages of the communication manager (MADs)", "通信管理器的消息（MAD）"),
        t(
            "REQ asks for a connection, REP accepts it, RTU says that it may be used, REJ refuses, MRA asks for time; DREQ and DREP end it; SIDR_REQ and SIDR_REP ask for the queue pair of a datagram service. They are datagrams to QPN 1.",
            "REQ 请求连接，REP 接受，RTU 表示可以使用，REJ 拒绝，MRA 请求更多时间；DREQ 和 DREP 结束连接；SIDR_REQ 和 SIDR_REP 查询数据报服务的队列对。它们都是发往 QPN 1 的数据报。",
        ),
        &[t(
            "`rxe decode -v` shows their fields, `rxe decode --qp 1` only them.",
            "`rxe decode -v` 显示其中的字段，`rxe decode --qp 1` 只显示这些消息。",
        )],
    ),
    entry(
        "soft-roce",
        &["softroce", "rxe", "rdma_rxe", "kernel-rxe", "siw", "iwarp"],
        t("Soft-RoCE (rxe)", "Soft-RoCE（rxe）"),
        t(
            "RoCEv2 in software, on any network interface. Linux has it as the module rdma_rxe; this program does it in the processes themselves, without a module. The module siw is another protocol, iWARP, which the two do not understand.",
            "用软件在任意网络接口上实现的 RoCEv2。Linux 的内核模块是 rdma_rxe；本程序在进程内完成，不需要模块。内核模块 siw 是另一种协议 iWARP，与两者不能互通。",
        ),
        &[t(
            "`rxe devices` lists what there is; `rxe run -- PROGRAM` starts a program with it.",
            "`rxe devices` 列出设备；`rxe run -- PROGRAM` 用它启动程序。",
        )],
    ),
    entry(
        "nic",
        &["rnic", "infiniband", "ib", "card", "mlx5"],
        t("RDMA cards and InfiniBand", "RDMA 网卡与 InfiniBand"),
        t(
            "A card with RDMA (RNIC, HCA) carries out work requests itself. InfiniBand is a network of its own with cards and switches; RoCE is its transport over Ethernet. Programs use both through the same verbs.",
            "支持 RDMA 的网卡（RNIC、HCA）自己执行工作请求。InfiniBand 是有专用网卡和交换机的网络；RoCE 是它在以太网上的传输方式。程序用同样的 verbs 使用两者。",
        ),
        &[t(
            "`ibv_devinfo` says of each device whether its link layer is Ethernet or InfiniBand.",
            "`ibv_devinfo` 显示每个设备的链路层是 Ethernet 还是 InfiniBand。",
        )],
    ),
    entry(
        "odp",
        &["on-demand-paging", "ibv_access_on_demand", "pinned", "pinning"],
        t("On-demand paging (ODP)", "按需分页（ODP）"),
        t(
            "Most cards need the pages of a memory region to stay in memory: ibv_reg_mr pins them, which counts as locked memory. With ODP they are fetched when they are needed.",
            "大多数网卡要求内存区域的页面常驻内存：ibv_reg_mr 会固定它们，并计入锁定内存。使用 ODP 时，页面在需要时才调入。",
        ),
        &[t(
            "Here all memory is paged on demand, and nothing is locked. For cards see `rxe explain memlock`.",
            "在这里，所有内存都按需分页，不锁定任何页面。网卡的情况见 `rxe explain memlock`。",
        )],
    ),
];
