//! What a program asks of a queue pair: operations, and the flags of a request.

use super::{Entry, entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    entry(
        "send",
        &["ibv_wr_send", "send-with-imm"],
        t("SEND", "SEND（发送）"),
        t(
            "A SEND carries a message into the next receive that the peer has posted. The receiver chooses the place, and gets a completion with the length.",
            "SEND 把一条消息送进对端投递的下一个接收请求。内存位置由接收端决定，接收端得到带有长度的完成。",
        ),
        &[t(
            "Post receives before the peer sends: without one, RC answers with an RNR NAK, and UC and UD lose the message.",
            "在对端发送之前投递接收请求：没有接收请求时，RC 回复 RNR NAK，UC 和 UD 丢失消息。",
        )],
    ),
    entry(
        "recv",
        &["receive", "receive-request"],
        t("Receive", "接收请求（receive）"),
        t(
            "A receive gives memory for one message. Each SEND of the peer, and each WRITE with immediate, uses up one, in the order in which they were posted.",
            "接收请求为一条消息提供内存。对端的每个 SEND 和每个带立即数的 WRITE 按投递顺序消耗一个。",
        ),
        &[
            t(
                "Post receives in INIT, before the connection is used, and post the next one for each completion.",
                "在 INIT 状态、连接使用之前就投递接收请求；每得到一个完成，就再投递一个。",
            ),
            t(
                "Make it as long as the longest message: a longer one ends with LOC_LEN_ERR. With UD it needs 40 bytes more.",
                "长度要容纳最长的消息，更长的消息以 LOC_LEN_ERR 结束。UD 还要多留 40 字节。",
            ),
        ],
    ),
    entry(
        "write",
        &["rdma-write", "ibv_wr_rdma_write"],
        t("WRITE (RDMA WRITE)", "WRITE（RDMA 写）"),
        t(
            "A WRITE puts data into the peer's memory, at an address and rkey that the peer has sent before. It uses no receive, and the peer's program is not told, unless the WRITE has immediate data.",
            "WRITE 把数据写进对端内存，地址和 rkey 由对端事先告知。它不消耗接收请求，也不通知对端程序，除非带立即数。",
        ),
        &[t(
            "The peer's memory region and queue pair need IBV_ACCESS_REMOTE_WRITE.",
            "对端的内存区域和队列对都需要 IBV_ACCESS_REMOTE_WRITE 权限。",
        )],
    ),
    entry(
        "read",
        &["rdma-read", "ibv_wr_rdma_read"],
        t("READ (RDMA READ)", "READ（RDMA 读）"),
        t(
            "A READ fetches data from the peer's memory, at an address and rkey that the peer has sent before. The peer's program is not told. Only RC and XRC have it.",
            "READ 从对端内存取回数据，地址和 rkey 由对端事先告知，对端程序不会得到通知。只有 RC 和 XRC 支持。",
        ),
        &[t(
            "The peer's memory region and queue pair need IBV_ACCESS_REMOTE_READ. max_rd_atomic here and max_dest_rd_atomic there must be at least 1.",
            "对端的内存区域和队列对都需要 IBV_ACCESS_REMOTE_READ 权限；本端的 max_rd_atomic 和对端的 max_dest_rd_atomic 至少为 1。",
        )],
    ),
    entry(
        "atomic",
        &["atomics", "fetch-add", "fetch-and-add", "compare-swap", "compare-and-swap", "cas"],
        t("Atomic operations", "原子操作（atomic）"),
        t(
            "An atomic changes 8 bytes of the peer's memory in one step, and brings back what was there before. FETCH ADD adds a number; COMPARE SWAP writes a value if the old one is as expected. Only RC and XRC have them.",
            "原子操作一步完成对对端 8 个字节的修改，并带回原来的值。FETCH ADD 加上一个数；COMPARE SWAP 在原值符合预期时写入新值。只有 RC 和 XRC 支持。",
        ),
        &[t(
            "The address must be a multiple of 8. The peer's memory region and queue pair need IBV_ACCESS_REMOTE_ATOMIC, and max_rd_atomic counts atomics as READs.",
            "地址必须是 8 的倍数。对端的内存区域和队列对都需要 IBV_ACCESS_REMOTE_ATOMIC 权限；max_rd_atomic 把原子操作与 READ 一起计数。",
        )],
    ),
    entry(
        "signaled",
        &["ibv_send_signaled", "signalled", "unsignaled", "sq_sig_all"],
        t("Signaled requests", "产生完成的请求（signaled）"),
        t(
            "A request to the send queue leaves a completion if it has IBV_SEND_SIGNALED, or if the queue pair was created with sq_sig_all. One that fails always leaves one.",
            "发送队列中的请求带有 IBV_SEND_SIGNALED，或者队列对创建时设置了 sq_sig_all，才会留下完成。失败的请求总会留下完成。",
        ),
        &[t(
            "Signal at least one request of each full send queue, and poll for it: only then are the places of those before it free again.",
            "每填满一次发送队列，至少要有一个请求带此标志，并取走它的完成：它之前的请求所占的位置此时才释放。",
        )],
    ),
    entry(
        "inline",
        &["ibv_send_inline", "max_inline_data", "inline-data"],
        t("Inline data", "内联数据（inline）"),
        t(
            "With IBV_SEND_INLINE the data are copied when the request is posted. The memory need not be registered, and may be used again at once.",
            "使用 IBV_SEND_INLINE 时，数据在投递请求时就被复制；内存不需要注册，也可以立刻再次使用。",
        ),
        &[t(
            "Ask for room with cap.max_inline_data when the queue pair is created; the value that comes back is what there is.",
            "创建队列对时用 cap.max_inline_data 申请空间，返回的值就是实际可用的大小。",
        )],
    ),
    entry(
        "solicited",
        &["ibv_send_solicited", "solicited-event"],
        t("Solicited events", "请求式事件（solicited）"),
        t(
            "A program may ask to be woken only for messages that the sender has marked with IBV_SEND_SOLICITED, and for errors: ibv_req_notify_cq with solicited_only 1.",
            "程序可以要求只在发送端用 IBV_SEND_SOLICITED 标记的消息到达时，或出错时，才被唤醒：调用 ibv_req_notify_cq 时 solicited_only 取 1。",
        ),
        &[t(
            "Mark the last message of a group, so that the peer wakes once for all of them.",
            "标记一组消息中的最后一条，对端就只为整组唤醒一次。",
        )],
    ),
    entry(
        "fence",
        &["ibv_send_fence"],
        t("Fence", "栅栏（fence）"),
        t(
            "A request with IBV_SEND_FENCE begins only when all READs and atomics before it have completed.",
            "带 IBV_SEND_FENCE 的请求要等它之前的所有 READ 和原子操作完成后才开始。",
        ),
        &[t(
            "Use it if a request sends what a READ before it fetches.",
            "当一个请求要发送前面的 READ 取回的数据时使用。",
        )],
    ),
    entry(
        "notify",
        &["comp-channel", "completion-channel", "ibv_get_cq_event", "ibv_req_notify_cq"],
        t("Completion channel and notification", "完成通道（completion channel）与通知"),
        t(
            "A program that does not want to poll sleeps in ibv_get_cq_event. The event comes once for each ibv_req_notify_cq, at the next completion.",
            "不想轮询的程序可以在 ibv_get_cq_event 中休眠。每调用一次 ibv_req_notify_cq，下一个完成到来时产生一次事件。",
        ),
        &[t(
            "Ask for notification first, then poll until the queue is empty, then sleep: otherwise a completion in between is missed. Acknowledge events with ibv_ack_cq_events.",
            "先要求通知，再轮询到队列为空，然后休眠，否则会错过其间的完成。用 ibv_ack_cq_events 确认事件。",
        )],
    ),
    entry(
        "retransmission",
        &["retransmit", "retransmitted", "go-back-n", "resend"],
        t("Retransmission", "重传（retransmission）"),
        t(
            "RC keeps each request until it is acknowledged. After a NAK for a missing packet, a later response, or a timeout, it sends again from the packet that is missing, with all that follow.",
            "RC 保留每个请求，直到得到确认。收到缺失报文的 NAK、收到更靠后的响应，或者超时之后，从缺失的报文开始把之后的全部重发。",
        ),
        &[t(
            "`rxe check` says for each one what caused it. `rxe stat` counts them while a program runs.",
            "`rxe check` 说明每次重传的原因；`rxe stat` 在程序运行时统计次数。",
        )],
    ),
    entry(
        "multicast",
        &["mcast", "multicast-group", "ibv_attach_mcast"],
        t("Multicast", "组播（multicast）"),
        t(
            "A UD queue pair that is attached to a group gets each datagram to the group's address. The sender uses QPN 0xffffff.",
            "加入组播组的 UD 队列对会收到发往该组地址的每个数据报。发送端使用 QPN 0xffffff。",
        ),
        &[t(
            "Attach with ibv_attach_mcast, or with rdma_join_multicast, which also tells the network. `mckey` tries it.",
            "用 ibv_attach_mcast 加入，或者用同时通知网络的 rdma_join_multicast；可以用 `mckey` 试验。",
        )],
    ),
];
