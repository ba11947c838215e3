//! Findings on what is lost, late, repeated or acknowledged. IBTA 9.7.4 to 9.7.6, 9.8.2.

use super::super::{Entry, t};
use super::{DEVICE, LOSS, entry};

pub(in super::super) static ENTRIES: &[Entry] = &[
    entry(
        "sequence-nak",
        &[],
        t("Sent again after a sequence NAK", "因 PSN 序列错误 NAK 而重传"),
        t(
            "The responder missed a request, because a later one came first, and asked for it (NAK, PSN sequence error). The requester sent again from there.",
            "后面的请求先到，响应方发现中间缺少报文，于是回复 NAK（PSN 序列错误）。请求方从该处开始重传。",
        ),
        &[
            t("A packet was lost in the network or in the receiver.", "报文在网络中或接收端丢失。"),
            t(
                "Packets took several ways, and one has overtaken another.",
                "报文走了多条路径，后发的先到。",
            ),
        ],
        &[LOSS],
    ),
    entry(
        "implied-nak",
        &[],
        t("Implied NAK", "隐含 NAK"),
        t(
            "A response arrived although an earlier READ or atomic had no response yet. Responses come in order, so the earlier one is lost, and the requester asks again at once.",
            "较早的 READ 或原子操作还没有响应，后面的响应却先到了。响应按序返回，说明前一个已丢失，请求方立即重新请求。",
        ),
        &[t("A response was lost on the way back.", "响应在返回途中丢失。")],
        &[LOSS],
    ),
    entry(
        "timed-out",
        &["sent-again-after-timeout"],
        t("Sent again after a timeout", "超时重传"),
        t(
            "No answer came within the Local ACK Timeout, so the requester sent again from the oldest request without one.",
            "在 Local ACK Timeout 内没有收到响应，请求方从最早未得到响应的请求开始重传。",
        ),
        &[
            t(
                "The last packet before a pause was lost, or its acknowledgement: nothing came after it to show that.",
                "停顿前的最后一个报文或它的确认丢失：后面没有报文可以暴露这一丢失。",
            ),
            t(
                "The responder is slower than the timeout, or gone.",
                "响应方比超时时间更慢，或已经不在。",
            ),
        ],
        &[
            LOSS,
            t(
                "Compare the timer with the round trips that `rxe check` prints (`rxe explain timeout`).",
                "把定时器与 `rxe check` 给出的往返时间比较（`rxe explain timeout`）。",
            ),
        ],
    ),
    entry(
        "ack-not-requested",
        &["ackreq", "ack-req"],
        t("Nobody asked for the acknowledgement", "没有请求确认（AckReq）"),
        t(
            "The requester waited for an acknowledgement, but had set AckReq in none of its packets. Without AckReq a responder need not answer.",
            "请求方在等待确认，但没有任何报文设置 AckReq 位。没有 AckReq，响应方可以不发确认。",
        ),
        &[t(
            "The requester does not set AckReq in the last packet before it waits.",
            "请求方在等待前的最后一个报文中没有设置 AckReq。",
        )],
        &[DEVICE],
    ),
    entry(
        "unexplained",
        &[],
        t("Sent again, and the cause is not known", "重传，原因不明"),
        t(
            "A request was sent again, or came after later ones. Its responses would say why, but they fit several queue pairs, and the capture does not tell which of these is connected with which.",
            "请求被重传，或比后面的请求晚到。原因要看它的响应，但这些响应与多个队列对都相符，而抓包无法说明哪两个队列对互相连接。",
        ),
        &[
            t(
                "The capture began after the connection was made, or the program does not use rdma_cm.",
                "抓包开始时连接已经建立，或程序没有使用 rdma_cm。",
            ),
            t(
                "Several queue pairs begin with the same PSN, as in programs that use a fixed one.",
                "多个队列对使用相同的起始 PSN（例如程序里写死了 PSN）。",
            ),
        ],
        &[
            t(
                "Start the capture before the connection, or take one connection: `tshark -Y` with its queue pairs, `-w` into a file of its own.",
                "在建立连接之前开始抓包；或用 `tshark -Y` 只选一个连接的队列对，再用 `-w` 另存为文件。",
            ),
            t("Let programs choose their PSNs at random.", "让程序随机选择起始 PSN。"),
            LOSS,
        ],
    ),
    entry(
        "ack-lost",
        &[],
        t("Sent again although it was answered", "已有响应却又重传"),
        t(
            "The responder had answered a request, and the requester sent it again: the answer was lost behind the place of the capture, or came after the timeout.",
            "响应方已经响应，请求方却又重传：响应在抓包点之后丢失，或在超时之后才到。",
        ),
        &[
            t("The way back loses packets.", "返回方向丢包。"),
            t(
                "The timeout is shorter than the responder or the network needs.",
                "超时时间比响应方或网络所需的时间短。",
            ),
        ],
        &[
            LOSS,
            t(
                "Compare the timeout (`rxe explain timeout`) with the round trips that `rxe check` prints.",
                "把超时时间（`rxe explain timeout`）与 `rxe check` 给出的往返时间比较。",
            ),
        ],
    ),
    entry(
        "ack-late",
        &["late-ack"],
        t("The answer came after the timeout", "响应迟到（超时之后才到）"),
        t(
            "The requester sent a request again, and its first answer came so soon afterwards that it answers the first transmission. Nothing was lost: the answer took longer than the timeout.",
            "请求方超时重传之后，响应很快就到了，快得不可能是对重传的响应，而是对第一次发送的响应。没有丢包，只是响应比超时时间更晚。",
        ),
        &[
            t(
                "The Local ACK Timeout is shorter than the network and the responder sometimes need.",
                "Local ACK Timeout 小于网络和响应方有时所需的时间。",
            ),
            t(
                "The responder was held up: a busy host, or a large write to slow memory.",
                "响应方被延误：主机繁忙，或正在向慢速内存写入大量数据。",
            ),
            t("A queue in the network is long (congestion).", "网络中排队过长（拥塞）。"),
        ],
        &[
            t(
                "Use a longer timeout: `timeout` of ibv_modify_qp (`rxe explain timeout`). Compare it with the p99 of the round trips that `rxe check` prints.",
                "增大超时时间：ibv_modify_qp 的 `timeout`（`rxe explain timeout`），并与 `rxe check` 给出的往返时间 p99 比较。",
            ),
            t(
                "Look for what holds the responder up, or for congestion marks and CNPs.",
                "查找响应方被延误的原因，或查看拥塞标记和 CNP。",
            ),
        ],
    ),
    entry(
        "duplicated",
        &["duplicate"],
        t("Duplicated by the network", "被网络复制的报文"),
        t(
            "The same packet came twice, sooner than its sender could have sent it again. A responder answers the second one without doing it again.",
            "同一报文到达两次，间隔短于发送端重传所需的时间。响应方对第二个只响应，不再执行。",
        ),
        &[t(
            "A bridge or a mirror port sends frames twice, or the capture has two places.",
            "网桥或镜像端口重复发送，或抓包包含两个位置。",
        )],
        &[
            t(
                "Capture at one place, such as one interface of one host.",
                "只在一处抓包，例如一台主机的一个接口。",
            ),
            t(
                "Give the captures of two hosts to `rxe check` as two files, or merge them with `mergecap -I none`: without that, mergecap makes one interface of both.",
                "两台主机的抓包作为两个文件交给 `rxe check`，或用 `mergecap -I none` 合并；不加这个选项，mergecap 会把两者并成一个接口。",
            ),
        ],
    ),
    entry(
        "reordered",
        &["out-of-order"],
        t("Order changed by the network", "网络乱序"),
        t(
            "A packet came after packets with higher PSNs. A responder takes it for lost and asks for everything from there.",
            "报文晚于序号更大的报文到达。响应方会当作丢失，并要求从该处全部重传。",
        ),
        &[t(
            "The packets of one connection take several ways (packet spraying, bonds, receive queues that differ).",
            "同一连接的报文走了多条路径（逐包负载均衡、bond、不同的接收队列）。",
        )],
        &[t(
            "Balance by flow: all packets of a queue pair have one UDP source port.",
            "按流做负载均衡：同一队列对的报文使用同一个 UDP 源端口。",
        )],
    ),
    entry(
        "lost",
        &[],
        t("Packet of an unreliable connection missing", "不可靠连接（UC）丢包"),
        t(
            "A PSN of an unreliable connection (UC) is missing. Nobody sends the packet again, and the message that it belongs to is dropped.",
            "不可靠连接（UC）缺少一个 PSN。没有人会重传，它所属的消息被丢弃。",
        ),
        &[t("It was lost in the network, or not captured.", "在网络中丢失，或没有抓到。")],
        &[LOSS],
    ),
    entry(
        "datagrams-missing",
        &["datagram-gap"],
        t("PSNs of datagrams missing", "数据报缺少 PSN"),
        t(
            "The PSNs of a UD queue pair go up by one with each datagram, to whatever destination. Some are not in the capture. That is no fault: datagrams may be lost.",
            "UD 队列对每发送一个数据报，PSN 加一，不论发往哪里。抓包中缺少其中一些。这不是错误：数据报允许丢失。",
        ),
        &[
            t(
                "Datagrams to other destinations went past the place of the capture.",
                "发往其他目的地的数据报不经过抓包点。",
            ),
            t("They were lost, or not captured.", "数据报丢失，或没有抓到。"),
        ],
        &[t(
            "Capture at the sender to see all destinations; count messages in the program.",
            "在发送端抓包可看到所有目的地；由程序自己统计消息数。",
        )],
    ),
    entry(
        "unanswered",
        &["no-answer"],
        t("A request that is never answered", "始终没有响应的请求"),
        t(
            "A request was sent three times or more, and no answer came until the capture ended. The requester gives up with RETRY_EXC_ERR (12).",
            "请求发送了三次以上，直到抓包结束都没有响应。请求方最终以 RETRY_EXC_ERR（12）放弃。",
        ),
        &[
            t("The peer's process or host is gone.", "对端进程或主机已不在。"),
            t(
                "The peer's queue pair is not in RTR or RTS, or expects other numbers or addresses.",
                "对端队列对不在 RTR 或 RTS 状态，或其 QP 号、PSN、地址不一致。",
            ),
            t("A firewall drops UDP port 4791.", "防火墙丢弃 UDP 4791 端口。"),
        ],
        &[t(
            "`rxe explain RETRY_EXC` says what to compare.",
            "`rxe explain RETRY_EXC` 说明要核对什么。",
        )],
    ),
    entry(
        "not-captured",
        &[],
        t("Packets that the capture does not have", "抓包中缺少的报文"),
        t(
            "Requests were answered that are not in the capture. Nothing is wrong with the connection; the capture is not whole.",
            "有些请求得到了响应，却不在抓包中。连接没有问题，是抓包不完整。",
        ),
        &[t(
            "The host that captured was too slow, or packets went another way.",
            "抓包主机太慢，或报文走了另一条路。",
        )],
        &[t(
            "Capture fewer bytes of each packet, or into memory.",
            "减少每个报文的抓取长度，或抓到内存中。",
        )],
    ),
    entry(
        "frames-cut",
        &["cut-frames"],
        t("Frames of several packets, captured in part", "只抓到一部分的多报文帧"),
        t(
            "A host that lets the system split or merge its datagrams (GSO, GRO) captures up to 64 packets in one frame. Of a frame that was cut only the first packet is seen; the others are not checked, and do not count as missing. Nothing is wrong with the connection.",
            "如果主机由系统拆分或合并数据报（GSO、GRO），抓到的一帧中最多有 64 个报文。帧被截断后只看得到第一个报文；其余的不检查，也不算缺失。连接没有问题。",
        ),
        &[t(
            "The capture has a limit of bytes per frame (`tcpdump -s 96`).",
            "抓包时限制了每帧的字节数（`tcpdump -s 96`）。",
        )],
        &[t(
            "Capture whole frames (`tcpdump -s 0`), or run the program with `rxe run --no-gso`, so that each packet has a frame of its own.",
            "抓取完整的帧（`tcpdump -s 0`），或用 `rxe run --no-gso` 运行程序，使每个报文各占一帧。",
        )],
    ),
    entry(
        "coalescing",
        &["ack-coalescing", "coalesced"],
        t("Coalesced acknowledgements", "确认合并（ACK coalescing）"),
        t(
            "An ACK acknowledges its PSN and all before it, so a responder may answer many requests with one. A response to a READ or atomic also acknowledges the SENDs and WRITEs before it.",
            "ACK 确认其 PSN 及之前的所有请求，因此响应方可以用一个 ACK 确认多个请求。READ 或原子操作的响应也确认之前的 SEND 和 WRITE。",
        ),
        &[],
        &[t(
            "`rxe check` prints how many requests the ACKs of a connection are for.",
            "`rxe check` 会给出连接中每个 ACK 对应多少请求。",
        )],
    ),
];
