//! What users of verbs have to know: what RDMA is, its transports, addresses, keys, timers and counters.

use super::{Entry, entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    entry(
        "rdma",
        &["remote-direct-memory-access"],
        t("RDMA, remote direct memory access", "RDMA（远程直接内存访问）"),
        t(
            "RDMA lets one program read and write the memory of a program on another host. The other program takes no part. With a network card, the system is not called for each message.",
            "RDMA 让一个程序直接读写另一台主机上程序的内存，对端程序不参与。使用网卡时，每条消息也不经过系统调用。",
        ),
        &[t(
            "Programs use it through verbs. `rxe demo` shows each operation.",
            "程序通过 verbs 使用 RDMA。`rxe demo` 演示每种操作。",
        )],
    ),
    entry(
        "verbs",
        &["libibverbs", "verb"],
        t("Verbs, the interface of RDMA programs", "verbs：RDMA 程序的接口"),
        t(
            "The verbs are what a program can ask of an RDMA device: make objects, connect, post requests, poll for completions. The library libibverbs has them as functions in C, such as ibv_post_send.",
            "verbs 是程序能够要求 RDMA 设备做的事：创建对象、建立连接、投递请求、轮询完成。库 libibverbs 把它们提供为 C 函数，例如 ibv_post_send。",
        ),
        &[t(
            "`rxe run` starts a program with a libibverbs that needs no network card with RDMA.",
            "用 `rxe run` 启动程序，它使用的 libibverbs 不需要 RDMA 网卡。",
        )],
    ),
    entry(
        "roce",
        &["rocev2", "rocev1"],
        t("RoCE, RDMA over Converged Ethernet", "RoCE：以太网上的 RDMA"),
        t(
            "RoCEv2 sends each RDMA packet in a UDP datagram to port 4791, over IPv4 or IPv6. RoCEv1 sends it in an Ethernet frame without IP, so it passes no router.",
            "RoCEv2 把每个 RDMA 报文放在发往端口 4791 的 UDP 数据报里，经 IPv4 或 IPv6 传送。RoCEv1 直接放在以太网帧里，没有 IP，不能经过路由器。",
        ),
        &[t("rxe sends RoCEv2, and decodes both.", "rxe 收发 RoCEv2，两种都能解析。")],
    ),
    entry(
        "rc",
        &["reliable-connection", "ibv_qpt_rc"],
        t("Reliable connection (RC)", "可靠连接（RC）"),
        t(
            "A connection of two queue pairs over which each message arrives once and in order: packets are acknowledged, and those that are lost are sent again. It has SEND, WRITE, READ and atomics.",
            "两个队列对之间的连接，每条消息按顺序到达，并且只到达一次：报文需要确认，丢失的报文会重传。支持 SEND、WRITE、READ 和原子操作。",
        ),
        &[t(
            "Use it unless you know why not. It is also what rdma_cm connects by default.",
            "没有特别理由时就用它；rdma_cm 默认建立的也是这种连接。",
        )],
    ),
    entry(
        "uc",
        &["unreliable-connection", "ibv_qpt_uc"],
        t("Unreliable connection (UC)", "不可靠连接（UC）"),
        t(
            "A connection of two queue pairs without acknowledgements. A message that loses a packet is lost, and nobody is told. It has SEND and WRITE.",
            "两个队列对之间的连接，没有确认。丢失一个报文，整条消息就丢失，也没有任何通知。支持 SEND 和 WRITE。",
        ),
        &[t(
            "`rxe perf send bw --transport uc` counts what is lost.",
            "`rxe perf send bw --transport uc` 会统计丢失多少。",
        )],
    ),
    entry(
        "ud",
        &["unreliable-datagram", "datagram", "ibv_qpt_ud"],
        t("Unreliable datagram (UD)", "不可靠数据报（UD）"),
        t(
            "One queue pair sends to any number of others, and to multicast groups. Each message is one packet, which may be lost or overtaken. It has only SEND.",
            "一个队列对可以发给任意多个队列对，也可以发给组播组。每条消息是一个报文，可能丢失或乱序。只支持 SEND。",
        ),
        &[t(
            "Give an address handle, a QPN and a Q_Key with each request. A receive needs 40 bytes more, for the GRH.",
            "每个请求都要给出地址句柄、QPN 和 Q_Key；接收缓冲区要多留 40 字节给 GRH。",
        )],
    ),
    entry(
        "post",
        &["posting"],
        t("Post", "投递（post）"),
        t(
            "To post is to put a request into a queue of a queue pair. The call returns at once. A completion says later that the request has ended, and how.",
            "投递就是把请求放进队列对的一个队列。调用立即返回；请求何时结束、结果如何，由之后的完成给出。",
        ),
        &[t(
            "ibv_post_send posts to the send queue, ibv_post_recv to the receive queue.",
            "ibv_post_send 投递到发送队列，ibv_post_recv 投递到接收队列。",
        )],
    ),
    entry(
        "requester",
        &["responder"],
        t("Requester and responder", "请求方（requester）与响应方（responder）"),
        t(
            "The requester sends a request (SEND, WRITE, READ, an atomic), the responder carries it out and answers. Both ends of a connection may be both.",
            "请求方发出请求（SEND、WRITE、READ、原子操作），响应方执行并给出响应。连接的两端可以同时是两者。",
        ),
        &[t(
            "A status that begins with \"remote\" was found by the responder: look at its side.",
            "名称以 remote 开头的状态由响应方发现，请到那一端查找原因。",
        )],
    ),
    entry(
        "flush",
        &[],
        t("Flush", "flush（冲刷）"),
        t(
            "When a queue pair goes into the error state, all requests that are still in it end with WR_FLUSH_ERR (5): they are flushed. The operation FLUSH is another thing: it makes written data visible, or persistent, at the responder.",
            "队列对进入错误状态时，其中尚未结束的请求都以 WR_FLUSH_ERR（5）结束，称为 flush。FLUSH 操作是另一回事：它让写入的数据在响应方可见或持久。",
        ),
        &[t(
            "Find the first completion that is neither success nor flushed: it has the cause.",
            "查找第一个既非成功也非 flush的完成：它才是原因。",
        )],
    ),
    Entry {
        id: "qp",
        names: &["queue-pair", "qp-states", "states", "modify-qp"],
        phrases: &[],
        title: t("Queue pair (QP) and its states", "队列对（QP）及其状态"),
        what: t(
            "A queue pair is a send queue and a receive queue, one end of a connection. A program brings it from RESET through INIT and RTR to RTS with ibv_modify_qp, one step a call.",
            "队列对由发送队列和接收队列组成，是连接的一端。程序用 ibv_modify_qp 依次把它从 RESET 转到 INIT、RTR、RTS，每次一步。",
        ),
        causes: &[],
        remedies: &[
            t(
                "INIT: receives can be posted. RTR: it receives. RTS: it also sends. ERR: all requests are flushed.",
                "INIT：可以投递接收；RTR：可以接收；RTS：还可以发送；ERR：所有请求被 flush。",
            ),
            t(
                "`rxe explain INIT`, RTR and RTS list the attributes that each step needs.",
                "`rxe explain INIT`、RTR、RTS 列出每一步需要的属性。",
            ),
        ],
    },
    Entry {
        id: "gid",
        names: &["gids"],
        phrases: &[],
        title: t("GID, the address of a RoCE port", "GID：RoCE 端口的地址"),
        what: t(
            "A GID has 128 bits and identifies a port, as an IPv6 address does. With RoCEv2 it is an IP address of the interface: IPv6 as it is, IPv4 as ::ffff:a.b.c.d.",
            "GID 有 128 位，标识一个端口，形式同 IPv6 地址。RoCEv2 的 GID 就是接口的 IP 地址：IPv6 原样，IPv4 写作 ::ffff:a.b.c.d。",
        ),
        causes: &[],
        remedies: &[t(
            "`rxe gids` lists them (show_gids on cards). Both ends exchange their GIDs before they connect.",
            "用 `rxe gids` 列出（网卡上用 show_gids）。两端在建立连接前交换 GID。",
        )],
    },
    Entry {
        id: "gid-index",
        names: &["sgid_index", "gid index", "gid-idx", "sgid"],
        phrases: &["wrong gid index", "invalid sgid_index"],
        title: t("GID index (sgid_index)", "GID 索引（sgid_index）"),
        what: t(
            "The GID index chooses which of the port's addresses packets are sent from, and on cards whether they are RoCEv1 or RoCEv2. It is -x of perftest and -g of the pingpongs.",
            "GID 索引选择报文的源地址；在网卡上还决定用 RoCEv1 还是 RoCEv2。perftest 用 -x 指定，pingpong 类程序用 -g 指定。",
        ),
        causes: &[
            t(
                "No index given: the pingpongs then use no GRH, which RoCE needs.",
                "没有指定索引：pingpong 类程序不带 GRH，而 RoCE 必须有 GRH。",
            ),
            t(
                "The entry is empty, link-local, IPv6 where the peer has IPv4, or RoCEv1 where the peer has RoCEv2.",
                "该项为空、是链路本地地址、与对端一个 IPv6 一个 IPv4，或一个 RoCEv1 一个 RoCEv2。",
            ),
            t(
                "The index is that of the other host: each side has its own table.",
                "误用了另一台主机的索引：两端各有自己的 GID 表。",
            ),
        ],
        remedies: &[t(
            "Choose the row of `rxe gids` with an address from which you can ping the peer.",
            "在 `rxe gids` 中选能 ping 通对端的那个地址所在的行。",
        )],
    },
    Entry {
        id: "path-mtu",
        names: &["mtu", "path_mtu", "active_mtu"],
        phrases: &[
            "requested mtu is higher",
            "mtu is not supported",
            "active mtu",
            "configure mtu",
        ],
        title: t("Path MTU", "路径 MTU（path MTU）"),
        what: t(
            "The path MTU is the largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes. It must be the same at both ends, and packets must fit the MTU of every link: the payload and 80 bytes for headers, so a link MTU of 1104 for 1024 and of 4176 for 4096.",
            "路径 MTU 是单个报文载荷的上限：256、512、1024、2048 或 4096 字节。两端必须相同；载荷加上为报头预留的 80 字节不能超过沿途每段链路的 MTU：1024 需要 1104，4096 需要 4176。",
        ),
        causes: &[
            t(
                "Too large for the interface: ibv_modify_qp refuses the step to RTR.",
                "超过接口允许的值：ibv_modify_qp 拒绝转到 RTR。",
            ),
            t(
                "Different at the two ends: requests end with REM_INV_REQ_ERR (9).",
                "两端不同：请求以 REM_INV_REQ_ERR（9）结束。",
            ),
            t(
                "Too large for a switch on the way: small messages pass, large ones end with RETRY_EXC_ERR (12).",
                "超过途中交换机的 MTU：小消息正常，大消息以 RETRY_EXC_ERR（12）结束。",
            ),
        ],
        remedies: &[t(
            "An Ethernet MTU of 1500 carries 1024; 4200 or 9000 carries 4096. Use the smaller active_mtu of both ends (ibv_devinfo).",
            "以太网 MTU 为 1500 时用 1024，为 4200 或 9000 时可用 4096。取两端 active_mtu（ibv_devinfo）中较小者。",
        )],
    },
    Entry {
        id: "timeout",
        names: &["ack-timeout", "local-ack-timeout", "qp-timeout"],
        phrases: &[],
        title: t("Local ACK timeout (timeout)", "本地 ACK 超时（timeout）"),
        what: t(
            "How long a requester waits for an acknowledgement before it sends again: 4.096 µs times 2 to the power of the code (0 to 31). Code 0 waits for ever.",
            "请求方等待确认（ACK）的时间，超过则重传：4.096 µs 乘以 2 的代码次方（代码 0 到 31）。代码 0 表示无限等待。",
        ),
        causes: &[
            t(
                "Too short: a loaded peer is taken for dead (RETRY_EXC_ERR).",
                "太短：繁忙的对端被当作失效（RETRY_EXC_ERR）。",
            ),
            t(
                "0: a lost packet is never noticed, and the program hangs.",
                "为 0：丢包无法发现，程序会挂起。",
            ),
        ],
        remedies: &[t(
            "14 (67 ms) is usual. A card may wait up to four times as long. `rxe explain timeout 14` computes any code.",
            "通常用 14（67 ms）。实际等待最长可达四倍。`rxe explain timeout 14` 可换算任意代码。",
        )],
    },
    Entry {
        id: "retry-cnt",
        names: &["retry_cnt", "retry-count", "retries"],
        phrases: &[],
        title: t("Retry count (retry_cnt)", "重试次数（retry_cnt）"),
        what: t(
            "How often a request is sent again when no answer comes, 0 to 7. Then it ends with RETRY_EXC_ERR (12).",
            "没有响应时重传的次数，0 到 7；用尽后请求以 RETRY_EXC_ERR（12）结束。",
        ),
        causes: &[t(
            "0: the first lost packet ends the connection.",
            "为 0：丢一个报文就会断开连接。",
        )],
        remedies: &[t(
            "Use 7. A dead peer is noticed after about (retry_cnt + 1) times the timeout.",
            "用 7。对端失效大约在（retry_cnt + 1）倍超时之后被发现。",
        )],
    },
    Entry {
        id: "rnr-retry",
        names: &["rnr_retry"],
        phrases: &[],
        title: t("RNR retry count (rnr_retry)", "RNR 重试次数（rnr_retry）"),
        what: t(
            "How often a request is sent again when the peer has no receive posted, 0 to 6. 7 means for ever.",
            "对端没有投递接收时重试的次数，0 到 6；7 表示无限重试。",
        ),
        causes: &[t(
            "When the count is used up, the request ends with RNR_RETRY_EXC_ERR (13).",
            "次数用尽后请求以 RNR_RETRY_EXC_ERR（13）结束。",
        )],
        remedies: &[t(
            "Use 7 unless a slow peer shall be an error.",
            "除非要把慢的对端当作错误，否则用 7。",
        )],
    },
    Entry {
        id: "rnr",
        names: &[
            "rnr-timer",
            "min_rnr_timer",
            "min-rnr-timer",
            "receiver-not-ready",
            "rnr-nak",
            "rnr-never",
        ],
        phrases: &["rnr nak", "receiver not ready"],
        title: t(
            "Receiver not ready (RNR) and its timer (min_rnr_timer)",
            "接收未就绪（RNR）及其定时器（min_rnr_timer）",
        ),
        what: t(
            "A message came and no receive was posted for it. The responder answers with an RNR NAK, which carries its min_rnr_timer: the requester waits at least that long and tries again.",
            "消息到达时没有已投递的接收请求。响应方回复 RNR NAK，其中带有 min_rnr_timer：请求方至少等待这么久再重试。",
        ),
        causes: &[t("Receives are posted too late or too few.", "接收请求投递得太晚或太少。")],
        remedies: &[
            t(
                "Post receives before the peer sends, once for each SEND or WRITE with immediate data.",
                "在对端发送之前投递接收；每个 SEND 或带立即数的 WRITE 对应一个。",
            ),
            t(
                "12 (0.64 ms) is usual. Code 0 is the longest time, 655.36 ms, not the shortest.",
                "通常用 12（0.64 ms）。代码 0 是最长的 655.36 ms，而不是最短。",
            ),
        ],
    },
    Entry {
        id: "syndrome",
        names: &["aeth", "syndromes", "nak", "ack"],
        phrases: &[],
        title: t("AETH syndrome: ACK, RNR NAK and NAK", "AETH 的 syndrome：ACK、RNR NAK 与 NAK"),
        what: t(
            "The syndrome is the byte of an acknowledgement that says what it means: 0x00 to 0x1f ACK with credits, 0x20 to 0x3f RNR NAK with a timer code, 0x60 to 0x64 NAK with a code.",
            "syndrome 是确认报文中说明其含义的字节：0x00–0x1f 为带信用值的 ACK，0x20–0x3f 为带定时器代码的 RNR NAK，0x60–0x64 为带代码的 NAK。",
        ),
        causes: &[],
        remedies: &[t(
            "`rxe explain syndrome 0x62` explains a byte; `rxe decode` shows them in a capture.",
            "`rxe explain syndrome 0x62` 解释某个字节；`rxe decode` 显示抓包中的 syndrome。",
        )],
    },
    Entry {
        id: "psn",
        names: &["sq_psn", "rq_psn"],
        phrases: &[],
        title: t("Packet sequence number (PSN)", "报文序列号（PSN）"),
        what: t(
            "Each packet of a connection has a number of 24 bits, which wraps. sq_psn is the first one that a side sends, rq_psn the first one that it expects.",
            "连接中的每个报文都有 24 位序号，到头后回绕。sq_psn 是本端发送的第一个，rq_psn 是本端期望的第一个。",
        ),
        causes: &[t(
            "If rq_psn is not the peer's sq_psn, requests end with RETRY_EXC_ERR (12).",
            "rq_psn 与对端的 sq_psn 不同，请求会以 RETRY_EXC_ERR（12）结束。",
        )],
        remedies: &[t(
            "Exchange the first PSNs with QP number and GID.",
            "起始 PSN 与 QP 号、GID 一起交换。",
        )],
    },
    Entry {
        id: "qkey",
        names: &["q_key", "q-key", "remote_qkey"],
        phrases: &[],
        title: t("Q_Key, the key of datagrams", "Q_Key：数据报的密钥"),
        what: t(
            "Each UD datagram carries a Q_Key of 32 bits. If the Q_Key is not that of the receiving queue pair, the datagram is dropped without an answer.",
            "每个 UD 数据报带有 32 位 Q_Key；与接收端队列对的 qkey 不同则被丢弃，不会有响应。",
        ),
        causes: &[
            t(
                "remote_qkey of the request differs from the qkey of the receiving QP.",
                "请求中的 remote_qkey 与接收端队列对的 qkey 不同。",
            ),
            t(
                "remote_qkey has its highest bit set: the qkey of the sending QP is then sent instead.",
                "remote_qkey 的最高位为 1：此时发送的是发送端队列对自己的 qkey。",
            ),
        ],
        remedies: &[t(
            "Agree on one value below 0x80000000. librdmacm uses 0x01234567.",
            "两端约定同一个小于 0x80000000 的值。librdmacm 使用 0x01234567。",
        )],
    },
    Entry {
        id: "mr",
        names: &["memory-region", "ibv_reg_mr", "registration"],
        phrases: &[],
        title: t("Memory region (MR)", "内存区域（MR）"),
        what: t(
            "Memory that ibv_reg_mr registered, so that the device may use it. It has an lkey for the program's own requests and an rkey for the peer's.",
            "由 ibv_reg_mr 注册、允许设备访问的内存。lkey 供本端请求使用，rkey 供对端使用。",
        ),
        causes: &[],
        remedies: &[t(
            "Register with IBV_ACCESS_LOCAL_WRITE for receives, READs and atomics, and with IBV_ACCESS_REMOTE_* for what the peer may do. Keep it registered until the last completion.",
            "用于接收、READ、原子操作结果时加 IBV_ACCESS_LOCAL_WRITE；允许对端访问时加 IBV_ACCESS_REMOTE_*。最后一个完成之前不要注销。",
        )],
    },
    Entry {
        id: "lkey",
        names: &["l_key", "local-key"],
        phrases: &[],
        title: t("lkey, the local key of a memory region", "lkey：内存区域的本地密钥"),
        what: t(
            "Each sge of a request names its memory region by lkey.",
            "请求中的每个 sge 用 lkey 指明内存区域。",
        ),
        causes: &[t(
            "A wrong lkey, or a range beyond the region, gives LOC_PROT_ERR (4).",
            "lkey 错误或范围超出区域，会得到 LOC_PROT_ERR（4）。",
        )],
        remedies: &[t(
            "Use mr->lkey as it is: without htonl(), and not the rkey.",
            "直接使用 mr->lkey：不要 htonl()，也不要用 rkey 代替。",
        )],
    },
    Entry {
        id: "rkey",
        names: &["r_key", "remote-key"],
        phrases: &[],
        title: t("rkey, the remote key of a memory region", "rkey：内存区域的远端密钥"),
        what: t(
            "A peer names the memory that it READs or WRITEs by rkey and address. The program sends both to the peer in a message of its own.",
            "对端做 READ、WRITE 时用 rkey 和地址指明内存。程序需要自己把这两者发给对端。",
        ),
        causes: &[t(
            "A wrong rkey, range or right gives the peer REM_ACCESS_ERR (10).",
            "rkey、范围或权限错误，对端会得到 REM_ACCESS_ERR（10）。",
        )],
        remedies: &[t(
            "Send rkey and address in a fixed byte order, and register with IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC.",
            "以固定字节序发送 rkey 和地址，注册时加上 IBV_ACCESS_REMOTE_READ、_WRITE 或 _ATOMIC。",
        )],
    },
    Entry {
        id: "rd-atomic",
        names: &["max_rd_atomic", "max_dest_rd_atomic"],
        phrases: &[],
        title: t("max_rd_atomic and max_dest_rd_atomic", "max_rd_atomic 与 max_dest_rd_atomic"),
        what: t(
            "How many READs and atomics may be on the way at once: max_rd_atomic those that this side sends, max_dest_rd_atomic those that it answers.",
            "同时在途的 READ 和原子操作数：max_rd_atomic 是本端发出的，max_dest_rd_atomic 是本端响应的。",
        ),
        causes: &[t(
            "max_rd_atomic larger than the peer's max_dest_rd_atomic gives REM_INV_REQ_ERR (9). 0 gives LOC_QP_OP_ERR (2) for each READ.",
            "max_rd_atomic 大于对端的 max_dest_rd_atomic 会得到 REM_INV_REQ_ERR（9）；为 0 时每个 READ 得到 LOC_QP_OP_ERR（2）。",
        )],
        remedies: &[t(
            "Use min(own max_qp_init_rd_atom, peer's max_qp_rd_atom), as ibv_devinfo -v shows them.",
            "取本端 max_qp_init_rd_atom 与对端 max_qp_rd_atom 中较小者（ibv_devinfo -v）。",
        )],
    },
    Entry {
        id: "cq",
        names: &["completion-queue", "ibv_poll_cq"],
        phrases: &[],
        title: t("Completion queue (CQ)", "完成队列（CQ）"),
        what: t(
            "Each finished request leaves a completion with wr_id and status in a completion queue. The program takes it with ibv_poll_cq.",
            "每个结束的请求在完成队列中留下一个完成，含 wr_id 和状态；程序用 ibv_poll_cq 取出。",
        ),
        causes: &[],
        remedies: &[t(
            "Check the status of every completion. If it is not success, only wr_id, status, qp_num and vendor_err are valid.",
            "检查每个完成的状态。若不是成功，只有 wr_id、status、qp_num、vendor_err 有效。",
        )],
    },
];
