//! What `rxe check` finds in captures, beside what other entries explain: the names of its findings.

use super::{Entry, SECTIONS, Text, t};

const fn entry(
    id: &'static str,
    names: &'static [&'static str],
    title: Text,
    what: Text,
    causes: &'static [Text],
    remedies: &'static [Text],
) -> Entry {
    Entry { id, names, phrases: &[], title, what, causes, remedies }
}

/// The entry of a finding. A name that is also that of a concept has an entry of its own here.
pub(super) fn of(name: &str) -> Option<&'static Entry> {
    let id = match name {
        "timeout" => "timed-out",
        "icrc" => "icrc-wrong",
        "q-key" => "q-keys-by-turns",
        _ => name,
    };
    let mut all = SECTIONS.iter().flat_map(|section| section.entries);
    all.find(|entry| entry.id == id || entry.names.contains(&id))
}

/// What to do about packets that are lost.
const LOSS: Text = t(
    "Compare the counters of drops on both hosts and on the switches (`ethtool -S`, `rxe stat`), and use flow control (PFC) or congestion control (ECN).",
    "对比两端主机和交换机的丢包计数（`ethtool -S`、`rxe stat`），并启用流控（PFC）或拥塞控制（ECN）。",
);

/// What to do about a device that breaks a rule.
const DEVICE: Text = t(
    "Look at the frames with `rxe decode -v`, and report it to the maker of the device that sent them.",
    "用 `rxe decode -v` 查看这些帧，并报告给发送方设备的厂商。",
);

pub(super) static ENTRIES: &[Entry] = &[
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
            "在 Local ACK Timeout 内没有收到应答，请求方从最早未被应答的请求开始重传。",
        ),
        &[
            t(
                "The last packet before a pause was lost, or its acknowledgement: nothing came after it to show that.",
                "停顿前的最后一个报文或它的应答丢失：后面没有报文可以暴露这一丢失。",
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
        "icrc-wrong",
        &["wrong-icrc", "bad-icrc"],
        t("A packet with a wrong ICRC", "ICRC 错误的报文"),
        t(
            "The checksum of a packet does not fit it. The receiver drops it without an answer, as if it had been lost.",
            "报文与其校验和不符。接收方不作应答直接丢弃，等同于丢包。",
        ),
        &[
            t(
                "Something between the two ends has changed the packet: damage, or a device that rewrites fields and does not know the ICRC.",
                "两端之间有设备改动了报文：传输损坏，或某个设备改写了字段却不重新计算 ICRC。",
            ),
            t("The sender computes the ICRC wrongly.", "发送方的 ICRC 计算有误。"),
        ],
        &[t(
            "Capture at both ends: if the packet leaves right and arrives wrong, the network has changed it.",
            "在两端同时抓包：如果发出时正确、到达时错误，就是网络改动了它。",
        )],
    ),
    entry(
        "q-keys-by-turns",
        &["two-q-keys"],
        t("Datagrams with two Q_Keys", "数据报使用两个 Q_Key"),
        t(
            "Datagrams to one queue pair have two Q_Keys by turns. A queue pair has one Q_Key at a time and drops all others, without an answer.",
            "发往同一队列对的数据报交替使用两个 Q_Key。队列对同一时间只有一个 Q_Key，其余的被丢弃，不会有应答。",
        ),
        &[
            t("Two senders do not agree on the Q_Key.", "两个发送方使用的 Q_Key 不一致。"),
            t(
                "remote_qkey has its highest bit set: the qkey of the sending QP is then sent instead.",
                "remote_qkey 的最高位为 1：此时发送的是发送方队列对自己的 qkey。",
            ),
        ],
        &[t(
            "Agree on one value below 0x80000000 (`rxe explain qkey`).",
            "各方约定同一个小于 0x80000000 的值（`rxe explain qkey`）。",
        )],
    ),
    entry(
        "ack-not-requested",
        &["ackreq", "ack-req"],
        t("Nobody asked for the acknowledgement", "没有请求应答（AckReq）"),
        t(
            "The requester waited for an acknowledgement, but had set AckReq in none of its packets. Without AckReq a responder need not answer.",
            "请求方在等待应答，但没有任何报文设置 AckReq 位。没有 AckReq，响应方可以不应答。",
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
        t("Sent again although it was answered", "已应答却又重传"),
        t(
            "The responder had answered a request, and the requester sent it again: the answer was lost behind the place of the capture, or came after the timeout.",
            "响应方已经应答，请求方却又重传：应答在抓包点之后丢失，或在超时之后才到。",
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
        t("The answer came after the timeout", "应答迟到（超时之后才到）"),
        t(
            "The requester sent a request again, and its first answer came so soon afterwards that it answers the first transmission. Nothing was lost: the answer took longer than the timeout.",
            "请求方超时重传之后，应答很快就到了，快得不可能是对重传的应答，而是对第一次发送的应答。没有丢包，只是应答比超时时间更晚。",
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
            "同一报文到达两次，间隔短于发送方重传所需的时间。响应方对第二个只应答，不再执行。",
        ),
        &[t(
            "A bridge or a mirror port sends frames twice, or the capture has two places.",
            "网桥或镜像端口重复发送，或抓包包含两个位置。",
        )],
        &[t(
            "Capture at one place, such as one interface of one host.",
            "只在一处抓包，例如一台主机的一个接口。",
        )],
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
        t("A request that is never answered", "始终没有应答的请求"),
        t(
            "A request was sent three times or more, and no answer came until the capture ended. The requester gives up with RETRY_EXC_ERR (12).",
            "请求发送了三次以上，直到抓包结束都没有应答。请求方最终以 RETRY_EXC_ERR（12）放弃。",
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
        "opcode-order",
        &["opcode-sequence"],
        t("Opcodes in a wrong order", "操作码顺序错误"),
        t(
            "A message is FIRST, any number of MIDDLE and LAST, or ONLY. A packet does not follow the one before it so.",
            "一个消息由 FIRST、若干 MIDDLE 和 LAST 组成，或只有 ONLY。某个报文不符合这个顺序。",
        ),
        &[t("The requester cuts messages wrongly.", "请求方切分消息的方式不对。")],
        &[DEVICE],
    ),
    entry(
        "length",
        &[],
        t("A length that does not fit", "长度不符"),
        t(
            "All packets of a message but the last have the path MTU as payload, a LAST has at least one byte, and a WRITE has as many bytes as its RETH says. A datagram has one packet, of at most 4096 bytes.",
            "除最后一个外，消息的每个报文载荷都等于路径 MTU；LAST 至少一个字节；WRITE 的总字节数等于 RETH 中的长度。数据报只有一个报文，最多 4096 字节。",
        ),
        &[t(
            "The ends do not agree on the path MTU, or the requester counts wrongly.",
            "两端的路径 MTU 不一致，或请求方计数错误。",
        )],
        &[t(
            "Compare the path MTU of both ends (`rxe explain path-mtu`).",
            "比较两端的路径 MTU（`rxe explain path-mtu`）。",
        )],
    ),
    entry(
        "response",
        &["read-response"],
        t("A response that does not fit its request", "响应与请求不符"),
        t(
            "The response to a PSN has another kind, place or length than the request asks for. The requester ends with BAD_RESP_ERR (7).",
            "某个 PSN 的响应在类型、位置或长度上与请求不符。请求方以 BAD_RESP_ERR（7）结束。",
        ),
        &[t(
            "The responder cuts READ responses wrongly, or counts their PSNs wrongly.",
            "响应方切分 READ 响应的方式不对，或 PSN 计数错误。",
        )],
        &[DEVICE],
    ),
    entry(
        "atomic-replay",
        &["atomic-twice"],
        t("An atomic answered twice, differently", "同一原子操作两次应答不同"),
        t(
            "An atomic was sent again and answered with another value. It must be done once, and its result kept for this case.",
            "原子操作重传后得到了不同的值。它只能执行一次，结果要保留以备重传时使用。",
        ),
        &[
            t("The responder has done it again.", "响应方重复执行了它。"),
            t(
                "The requester had more READs and atomics outstanding than the responder keeps.",
                "请求方在途的 READ 和原子操作多于响应方能保留的数目。",
            ),
        ],
        &[t(
            "max_rd_atomic must not be more than the peer's max_dest_rd_atomic (`rxe explain rd-atomic`).",
            "max_rd_atomic 不能大于对端的 max_dest_rd_atomic（`rxe explain rd-atomic`）。",
        )],
    ),
    entry(
        "msn",
        &["message-sequence-number"],
        t("Message sequence number (MSN)", "消息序列号（MSN）"),
        t(
            "Each acknowledgement carries how many messages the responder has completed. Here the number does not fit the messages that were sent.",
            "每个应答都带有响应方已完成的消息数（MSN）。这里它与已发送的消息数不符。",
        ),
        &[t("The responder counts a message twice or not.", "响应方把某个消息多计或漏计了一次。")],
        &[DEVICE],
    ),
    entry(
        "credits",
        &["credit", "end-to-end-flow-control", "lsn"],
        t("Credits of end-to-end flow control", "端到端流控的信用值（credit）"),
        t(
            "An ACK tells how many receives are left, as a code: 0 to 4 are themselves, 5 is 6, 6 is 8, 7 is 12 and so on up to 30 for 32768; 31 says that the responder does not count. It cannot take a receive back, and must have those that it told of.",
            "ACK 用一个代码告知还剩多少接收请求：0–4 即其本身，5 表示 6，6 表示 8，7 表示 12，直到 30 表示 32768；31 表示响应方不计数。响应方不能收回接收请求，且必须确有所告知的数目。",
        ),
        &[
            t("The responder writes the number, not its code.", "响应方写的是数目本身而不是代码。"),
            t(
                "Its receive queue is shared (SRQ), and others take its receives: then it must send 31.",
                "它使用共享接收队列（SRQ），接收请求被其他队列对取走：此时应发送 31。",
            ),
        ],
        &[DEVICE],
    ),
    entry(
        "credit-limit",
        &["limit-sequence-number"],
        t("More messages than the credits permit", "发送的消息超过信用值"),
        t(
            "SENDs and WRITEs with immediate data need credits: the requester may send as many as the last ACK permits, and one more. Here it sent more. A receive may be there in time; if not, an RNR NAK follows.",
            "SEND 和带立即数的 WRITE 需要信用值：请求方最多可发送上一个 ACK 允许的数目再加一个。这里超出了。如果接收请求没有及时投递，就会出现 RNR NAK。",
        ),
        &[
            t(
                "The requester ignores credits, as Linux rxe and many adapters do.",
                "请求方忽略信用值，Linux rxe 和许多网卡都是这样。",
            ),
            t("The receiver posts too few receives.", "接收方投递的接收请求太少。"),
        ],
        &[t(
            "Post more receives, or let the program limit its messages on the way.",
            "投递更多接收请求，或由程序自己限制在途消息数。",
        )],
    ),
    entry(
        "malformed",
        &[],
        t("A packet with a wrong structure", "结构错误的报文"),
        t(
            "The packet is too short for its headers, not a multiple of 4 bytes, has a wrong pad or version, an opcode that does not exist, or a payload where none may be. Receivers drop it.",
            "报文短于其报头、长度不是 4 的倍数、填充或版本错误、操作码不存在，或在不允许的地方带有载荷。接收方会丢弃它。",
        ),
        &[t(
            "The sender makes wrong packets, or it is no RDMA.",
            "发送方构造报文有误，或根本不是 RDMA。",
        )],
        &[DEVICE],
    ),
    entry(
        "icrc-not-computed",
        &["icrc-artefact"],
        t("Captured before the ICRC was computed", "在计算 ICRC 之前抓到的报文"),
        t(
            "All packets of a sender have a wrong ICRC. It is computed behind the place of the capture, so the packets on the wire are right.",
            "某个发送方的所有报文 ICRC 都不对：ICRC 在抓包点之后才计算，线路上的报文是正确的。",
        ),
        &[t(
            "The adapter computes it, and the capture is on its host.",
            "ICRC 由网卡计算，而抓包在该主机上进行。",
        )],
        &[t("Capture at the receiver, or at a switch.", "在接收端或交换机上抓包。")],
    ),
    entry(
        "not-captured",
        &[],
        t("Packets that the capture does not have", "抓包中缺少的报文"),
        t(
            "Requests were answered that are not in the capture. Nothing is wrong with the connection; the capture is not whole.",
            "有些请求得到了应答，却不在抓包中。连接没有问题，是抓包不完整。",
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
        "coalescing",
        &["ack-coalescing", "coalesced"],
        t("Coalesced acknowledgements", "应答合并（ACK coalescing）"),
        t(
            "An ACK acknowledges its PSN and all before it, so a responder may answer many requests with one. A response to a READ or atomic also acknowledges the SENDs and WRITEs before it.",
            "ACK 确认其 PSN 及之前的所有请求，因此响应方可以用一个 ACK 应答多个请求。READ 或原子操作的响应也确认之前的 SEND 和 WRITE。",
        ),
        &[],
        &[t(
            "`rxe check` prints how many requests the ACKs of a connection are for.",
            "`rxe check` 会给出连接中每个 ACK 对应多少请求。",
        )],
    ),
];
