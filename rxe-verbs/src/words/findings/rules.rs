//! Findings on packets that break a rule: IBTA 9.2 to 9.7.

use super::super::{Entry, t};
use super::{DEVICE, entry};

pub(in super::super) static ENTRIES: &[Entry] = &[
    entry(
        "icrc-wrong",
        &["wrong-icrc", "bad-icrc"],
        t("A packet with a wrong ICRC", "ICRC 错误的报文"),
        t(
            "The checksum of a packet does not fit it. The receiver drops it without an answer, as if it had been lost.",
            "报文与其校验和不符。接收端不作响应直接丢弃，等同于丢包。",
        ),
        &[
            t(
                "Something between the two ends has changed the packet: damage, or a device that rewrites fields and does not know the ICRC.",
                "两端之间有设备改动了报文：传输损坏，或某个设备改写了字段却不重新计算 ICRC。",
            ),
            t("The sender computes the ICRC wrongly.", "发送端的 ICRC 计算有误。"),
        ],
        &[t(
            "Capture at both ends: if the packet leaves right and arrives wrong, the network has changed it.",
            "在两端同时抓包：如果发出时正确、到达时错误，就是网络改动了它。",
        )],
    ),
    entry(
        "icrc-not-computed",
        &["icrc-artefact"],
        t("Captured before the ICRC was computed", "在计算 ICRC 之前抓到的报文"),
        t(
            "All packets of a sender have a wrong ICRC. It is computed behind the place of the capture, so the packets on the wire are right.",
            "某个发送端的所有报文 ICRC 都不对：ICRC 在抓包点之后才计算，线路上的报文是正确的。",
        ),
        &[t(
            "The card computes it, and the capture is on its host.",
            "ICRC 由网卡计算，而抓包在该主机上进行。",
        )],
        &[t("Capture at the receiver, or at a switch.", "在接收端或交换机上抓包。")],
    ),
    entry(
        "malformed",
        &[],
        t("A packet with a wrong structure", "结构错误的报文"),
        t(
            "The packet is too short for its headers, not a multiple of 4 bytes, has a wrong pad or version, an opcode that does not exist, or a payload where none may be. Receivers drop it.",
            "报文短于其报头、长度不是 4 的倍数、填充或版本错误、操作码不存在，或在不允许的地方带有载荷。接收端会丢弃它。",
        ),
        &[t(
            "The sender makes wrong packets, or it is no RDMA.",
            "发送端构造报文有误，或根本不是 RDMA。",
        )],
        &[DEVICE],
    ),
    entry(
        "q-keys-by-turns",
        &["two-q-keys"],
        t("Datagrams with two Q_Keys", "数据报使用两个 Q_Key"),
        t(
            "Datagrams to one queue pair have two Q_Keys by turns. A queue pair has one Q_Key at a time and drops all others, without an answer.",
            "发往同一队列对的数据报交替使用两个 Q_Key。队列对同一时间只有一个 Q_Key，其余的被丢弃，不会有响应。",
        ),
        &[
            t("Two senders do not agree on the Q_Key.", "两个发送端使用的 Q_Key 不一致。"),
            t(
                "remote_qkey has its highest bit set: the qkey of the sending QP is then sent instead.",
                "remote_qkey 的最高位为 1：此时发送的是发送端队列对自己的 qkey。",
            ),
        ],
        &[t(
            "Agree on one value below 0x80000000 (`rxe explain qkey`).",
            "各方约定同一个小于 0x80000000 的值（`rxe explain qkey`）。",
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
        "changed-request",
        &[],
        t("A request sent again with another opcode", "重传的请求换了操作码"),
        t(
            "A request that is sent again must be the same packet as before. This one has the PSN of an earlier request and another opcode, so the PSNs behind it mean other packets than before too. A responder that has had a part of the message refuses the rest (NAK, invalid request), or takes the wrong bytes.",
            "重传的请求必须与原来的报文相同。这个报文的 PSN 与先前的请求相同，操作码却不同，因此其后的 PSN 也对应不同的报文。已收到部分消息的响应方会拒绝其余部分（NAK，无效请求），或者收下错误的数据。",
        ),
        &[
            t(
                "The requester is the rdma_rxe of Linux 6.1: when acknowledgements come late, it sometimes sends one packet too many first, and all others with a PSN that is one too high.",
                "请求方是 Linux 6.1 的 rdma_rxe：确认来得太迟时，它重传时有时会先多发一个报文，其余报文的 PSN 都大一。",
            ),
            t("The requester loses count when it sends again.", "请求方重传时计数错误。"),
        ],
        &[t(
            "Give the requester more time, so that it seldom sends again: a greater timeout of the queue pair (perftest: -u 18). Or use a newer kernel there.",
            "给请求方更多时间，使其很少重传：增大队列对的 timeout（perftest 用 -u 18），或在那里换用较新的内核。",
        )],
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
        t("An atomic answered twice, differently", "同一原子操作两次响应不同"),
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
            "每个确认都带有响应方已完成的消息数（MSN）。这里它与已发送的消息数不符。",
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
                "The requester ignores credits, as Linux rxe and many cards do.",
                "请求方忽略信用值，Linux rxe 和许多网卡都是这样。",
            ),
            t("The receiver posts too few receives.", "接收端投递的接收请求太少。"),
        ],
        &[t(
            "Post more receives, or let the program limit its messages on the way.",
            "投递更多接收请求，或由程序自己限制在途消息数。",
        )],
    ),
];
