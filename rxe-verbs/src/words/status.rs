//! The completion statuses of `ibv_wc_status`. IBTA 11.4.2.1.

use rxe_core::queue::Status;

use super::{Entry, Text, t};

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "SUCCESS",
        names: &["IBV_WC_SUCCESS"],
        phrases: &[],
        title: t("Completion status 0, success", "完成状态 0：成功（success）"),
        what: t("The request was carried out.", "请求已完成。"),
        causes: &[],
        remedies: &[t(
            "For a SEND or WRITE on a reliable connection it means that the peer's device has the data. It does not mean that the peer's program has seen it.",
            "在可靠连接上，SEND、WRITE 成功表示对端设备已收到数据，并不表示对端程序已经处理。",
        )],
    },
    Entry {
        id: "LOC_LEN_ERR",
        names: &["IBV_WC_LOC_LEN_ERR", "LOC_LEN"],
        phrases: &["ibv_wc_loc_len_err", "local length error"],
        title: t(
            "Completion status 1, local length error",
            "完成状态 1：本地长度错误（local length error）",
        ),
        what: t(
            "The message is longer than the receive buffer that was posted for it.",
            "消息比为它投递的接收缓冲区更长。",
        ),
        causes: &[
            t("The peer sends more than this side expects.", "对端发送的数据超出本端预期。"),
            t(
                "UD: the receive has no room for the GRH, 40 bytes in front of the payload.",
                "UD：接收缓冲区没有为载荷之前 40 字节的 GRH 留出空间。",
            ),
            t(
                "UD: the datagram to send is longer than the path MTU.",
                "UD：要发送的数据报超过路径 MTU。",
            ),
        ],
        remedies: &[
            t("Post larger receives, or send less.", "投递更大的接收缓冲区，或减小消息。"),
            t("UD: post 40 bytes more than the payload.", "UD：接收缓冲区要比载荷大 40 字节。"),
        ],
    },
    Entry {
        id: "LOC_QP_OP_ERR",
        names: &["IBV_WC_LOC_QP_OP_ERR", "LOC_QP_OP"],
        phrases: &["ibv_wc_loc_qp_op_err", "local qp operation error"],
        title: t(
            "Completion status 2, local QP operation error",
            "完成状态 2：本地 QP 操作错误（local QP operation error）",
        ),
        what: t(
            "The QP was used in a way that contradicts its set-up.",
            "对队列对的使用与它的配置矛盾。",
        ),
        causes: &[
            t(
                "A READ or an atomic, although max_rd_atomic is 0.",
                "max_rd_atomic 为 0 却发出了 READ 或原子操作。",
            ),
            t(
                "An address handle (AH) of another protection domain.",
                "使用了其他保护域（PD）的地址句柄（AH）。",
            ),
            t(
                "A key to invalidate of which no memory window is bound to this QP.",
                "要失效（invalidate）的 key 没有绑定在本队列对上的内存窗口。",
            ),
        ],
        remedies: &[
            t(
                "Set max_rd_atomic in the step to RTS to at least 1.",
                "在转到 RTS 时把 max_rd_atomic 设为至少 1。",
            ),
            t(
                "Make the QP, its memory regions and address handles in one protection domain.",
                "队列对、内存区域和地址句柄应在同一个保护域中创建。",
            ),
        ],
    },
    Entry {
        id: "LOC_PROT_ERR",
        names: &["IBV_WC_LOC_PROT_ERR", "LOC_PROT"],
        phrases: &["ibv_wc_loc_prot_err", "local protection error"],
        title: t(
            "Completion status 4, local protection error",
            "完成状态 4：本地保护错误（local protection error）",
        ),
        what: t("A local buffer may not be used like this.", "本地缓冲区不允许这样使用。"),
        causes: &[
            t(
                "The buffer lies outside its memory region, wholly or in part.",
                "缓冲区全部或部分落在内存区域（MR）之外。",
            ),
            t(
                "The lkey is wrong, is an rkey, or its region was deregistered.",
                "lkey 写错、误用了 rkey，或该区域已被注销。",
            ),
            t(
                "The region is of another protection domain than the QP.",
                "内存区域与队列对不在同一个保护域。",
            ),
            t(
                "Data arrives in a region that was registered without IBV_ACCESS_LOCAL_WRITE (receives, READs, atomics).",
                "数据要写入的区域（接收、READ、原子操作的结果）注册时没有 IBV_ACCESS_LOCAL_WRITE。",
            ),
        ],
        remedies: &[
            t(
                "Compare addr, length and lkey of each sge with what ibv_reg_mr was given and has returned.",
                "把每个 sge 的 addr、length、lkey 与 ibv_reg_mr 的参数和返回值逐一核对。",
            ),
            t(
                "Deregister memory only after the last completion of requests that use it.",
                "用到该内存的请求全部完成后再注销。",
            ),
        ],
    },
    Entry {
        id: "WR_FLUSH_ERR",
        names: &["IBV_WC_WR_FLUSH_ERR", "WR_FLUSH", "flushed"],
        phrases: &["ibv_wc_wr_flush_err", "work request flushed"],
        title: t(
            "Completion status 5, Work Request Flushed Error",
            "完成状态 5：工作请求被 flush（Work Request Flushed Error）",
        ),
        what: t(
            "An earlier request of this QP failed and put it into the error state.",
            "本队列对先前有请求失败，队列对已进入错误状态。",
        ),
        causes: &[
            t(
                "This is a consequence and not the cause: all requests that are still posted end like this.",
                "这是后果而不是原因：仍在队列中的请求都会以此状态结束。",
            ),
            t(
                "The program itself put the QP into the state ERR, or disconnected.",
                "程序自己把队列对转到 ERR，或断开了连接。",
            ),
            t(
                "The peer made a mistake, and the responder of this QP failed.",
                "对端的请求有误，本队列对的响应方因此出错。",
            ),
            t(
                "The device has stopped working: polling then fails with EIO, and IBV_EVENT_DEVICE_FATAL says why.",
                "设备已停止工作：此后轮询返回 EIO，原因见 IBV_EVENT_DEVICE_FATAL。",
            ),
        ],
        remedies: &[
            t(
                "Look at the first completion that is neither success nor flushed, on both sides.",
                "在两端查看第一个既非成功也非 flush的完成。",
            ),
            t(
                "If there is none, look at the asynchronous events (ibv_get_async_event).",
                "如果没有，查看异步事件（ibv_get_async_event）。",
            ),
            t(
                "To use the QP again, bring it to RESET, then through INIT, RTR and RTS.",
                "要再次使用，先转到 RESET，再依次经过 INIT、RTR、RTS。",
            ),
        ],
    },
    Entry {
        id: "MW_BIND_ERR",
        names: &["IBV_WC_MW_BIND_ERR", "MW_BIND"],
        phrases: &[
            "ibv_wc_mw_bind_err",
            "memory bind operation error",
            "memory management operation error",
        ],
        title: t(
            "Completion status 6, memory bind operation error",
            "完成状态 6：内存窗口绑定错误（memory bind operation error）",
        ),
        what: t("The memory window could not be bound.", "内存窗口（MW）无法绑定。"),
        causes: &[
            t("A window of type 2 is still bound.", "类型 2 的窗口仍处于绑定状态。"),
            t(
                "The region was registered without IBV_ACCESS_MW_BIND, or without a right that the window shall have.",
                "内存区域注册时没有 IBV_ACCESS_MW_BIND，或缺少窗口所要的权限。",
            ),
            t(
                "The region is of another protection domain, or deregistered.",
                "内存区域属于其他保护域，或已注销。",
            ),
        ],
        remedies: &[t(
            "Invalidate a bound window of type 2 first. Register the region with IBV_ACCESS_MW_BIND and every right of the window.",
            "类型 2 的窗口先 invalidate 再绑定；注册内存区域时加上 IBV_ACCESS_MW_BIND 和窗口所需的全部权限。",
        )],
    },
    Entry {
        id: "BAD_RESP_ERR",
        names: &["IBV_WC_BAD_RESP_ERR", "BAD_RESP"],
        phrases: &["ibv_wc_bad_resp_err", "bad response error"],
        title: t(
            "Completion status 7, bad response error",
            "完成状态 7：响应错误（bad response error）",
        ),
        what: t("The peer's answer does not fit the request.", "对端的响应与请求不符。"),
        causes: &[
            t("The peer's RDMA stack is at fault.", "对端的 RDMA 协议栈有问题。"),
            t(
                "Another host or program answers for the peer: an address used twice, or an old connection with the same QP number.",
                "有别的主机或程序替对端响应：地址重复，或旧连接用了相同的 QP 号。",
            ),
        ],
        remedies: &[t(
            "Capture the packets (--pcap, tcpdump) and look at the last answer with `rxe decode -v`.",
            "抓包（--pcap、tcpdump），用 `rxe decode -v` 查看最后一个响应。",
        )],
    },
    Entry {
        id: "LOC_ACCESS_ERR",
        names: &["IBV_WC_LOC_ACCESS_ERR", "LOC_ACCESS"],
        phrases: &["ibv_wc_loc_access_err", "local access error"],
        title: t(
            "Completion status 8, local access error",
            "完成状态 8：本地访问错误（local access error）",
        ),
        what: t(
            "A WRITE with immediate data came from the peer, and its memory access failed here. Some cards report this; rxe does not.",
            "收到对端带立即数的 WRITE，但在本端访问内存失败。部分网卡会报告此状态，rxe 不会。",
        ),
        causes: &[t(
            "The same as for remote access error (10), seen from the receiving side.",
            "原因同远端访问错误（10），只是从接收端看。",
        )],
        remedies: &[t("See `rxe explain REM_ACCESS_ERR`.", "见 `rxe explain REM_ACCESS_ERR`。")],
    },
    Entry {
        id: "REM_INV_REQ_ERR",
        names: &["IBV_WC_REM_INV_REQ_ERR", "REM_INV_REQ"],
        phrases: &["ibv_wc_rem_inv_req_err", "remote invalid request error"],
        title: t(
            "Completion status 9, remote invalid request error",
            "完成状态 9：远端认为请求无效（remote invalid request error）",
        ),
        what: t("The peer refused the request.", "对端拒绝了请求。"),
        causes: &[
            t(
                "The message is longer than the receive posted at the peer.",
                "消息比对端投递的接收缓冲区长。",
            ),
            t(
                "The peer's QP was not set up to accept the operation (qp_access_flags).",
                "对端队列对没有允许该操作（qp_access_flags）。",
            ),
            t(
                "More READs and atomics at once than the peer's max_dest_rd_atomic.",
                "同时发出的 READ 和原子操作超过对端的 max_dest_rd_atomic。",
            ),
            t("The path MTUs of the two ends differ.", "两端的路径 MTU 不同。"),
            t("The address of an atomic is not a multiple of 8.", "原子操作的地址不是 8 的倍数。"),
        ],
        remedies: &[
            t(
                "At the peer: post larger receives; add IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC to qp_access_flags in the step to INIT.",
                "在对端：投递更大的接收缓冲区；转到 INIT 时在 qp_access_flags 中加上 IBV_ACCESS_REMOTE_READ、_WRITE 或 _ATOMIC。",
            ),
            t(
                "Here: max_rd_atomic at most the peer's max_dest_rd_atomic; the same path_mtu as the peer.",
                "在本端：max_rd_atomic 不超过对端的 max_dest_rd_atomic；path_mtu 与对端相同。",
            ),
        ],
    },
    Entry {
        id: "REM_ACCESS_ERR",
        names: &["IBV_WC_REM_ACCESS_ERR", "REM_ACCESS"],
        phrases: &["ibv_wc_rem_access_err", "remote access error"],
        title: t(
            "Completion status 10, remote access error",
            "完成状态 10：远端访问错误（remote access error）",
        ),
        what: t("The peer's memory may not be used like this.", "不允许这样访问对端内存。"),
        causes: &[
            t(
                "The rkey or the remote address is wrong, often in its byte order.",
                "rkey 或远端地址错误，常见的是字节序不对。",
            ),
            t("The range reaches beyond the memory region.", "访问范围超出内存区域。"),
            t(
                "The region was registered without IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC.",
                "内存区域注册时没有 IBV_ACCESS_REMOTE_WRITE、_READ 或 _ATOMIC。",
            ),
            t(
                "The region is in another protection domain than the peer's QP, or was deregistered.",
                "内存区域与对端队列对不在同一保护域，或已注销。",
            ),
        ],
        remedies: &[
            t(
                "Print address, length and rkey on both sides and compare them. Convert them with htobe64() and htonl(), and back.",
                "在两端打印地址、长度和 rkey 并比较；传输时用 htobe64()、htonl() 转换，收到后再转回。",
            ),
            t(
                "If the peer runs under `rxe run`, its standard error says which of these is wrong.",
                "如果对端用 `rxe run` 启动，它的标准错误输出会指出具体是哪一项。",
            ),
            t(
                "The peer's QP is in the error state too: connect again.",
                "对端的队列对也已进入错误状态，需要重新建立连接。",
            ),
        ],
    },
    Entry {
        id: "REM_OP_ERR",
        names: &["IBV_WC_REM_OP_ERR", "REM_OP"],
        phrases: &["ibv_wc_rem_op_err", "remote operation error"],
        title: t(
            "Completion status 11, remote operation error",
            "完成状态 11：远端操作错误（remote operation error）",
        ),
        what: t("The peer could not carry the request out.", "对端无法执行该请求。"),
        causes: &[t(
            "A receive that the peer posted names memory that is not valid there.",
            "对端投递的接收请求引用了无效的内存。",
        )],
        remedies: &[t(
            "Look at the peer's completions: its receive failed with local protection error (4). Correct its lkey, its range, or register with IBV_ACCESS_LOCAL_WRITE.",
            "查看对端的完成：它的接收以本地保护错误（4）结束。改正它的 lkey 或范围，或注册时加上 IBV_ACCESS_LOCAL_WRITE。",
        )],
    },
    Entry {
        id: "RETRY_EXC_ERR",
        names: &["IBV_WC_RETRY_EXC_ERR", "RETRY_EXC"],
        phrases: &[
            "ibv_wc_retry_exc_err",
            "transport retry counter exceeded",
            "retry count exceeded",
            "retries exceeded",
        ],
        title: t(
            "Completion status 12, transport retry counter exceeded",
            "完成状态 12：传输重试次数用尽（transport retry counter exceeded）",
        ),
        what: t("The peer did not answer.", "对端没有响应。"),
        causes: &[
            t(
                "The peer's program has ended, or its QP is not in RTR or RTS yet.",
                "对端程序已退出，或其队列对尚未进入 RTR 或 RTS。",
            ),
            t(
                "dest_qp_num, the GIDs or the PSNs of the two ends do not fit each other.",
                "两端的 dest_qp_num、GID 或 PSN 不匹配。",
            ),
            t(
                "A wrong GID index: an address from which the peer cannot be reached, or RoCEv1 on one side.",
                "GID 索引不对：该地址与对端不通，或一端用了 RoCEv1。",
            ),
            t(
                "A firewall or security group blocks UDP port 4791 in one direction.",
                "防火墙或安全组在某个方向上拦截了 UDP 4791 端口。",
            ),
            t(
                "The network drops packets of the size of the path MTU.",
                "网络丢弃路径 MTU 大小的报文。",
            ),
            t(
                "timeout is so short or retry_cnt so small that a loaded peer or network answers too late.",
                "timeout 太短或 retry_cnt 太小，对端或网络繁忙时来不及响应。",
            ),
        ],
        remedies: &[
            t(
                "Ping the peer's address from the address of your GID (`rxe gids`, ping -I), also with packets of the path MTU and 60 bytes more (ping -M do -s 1084).",
                "从自己 GID 对应的地址 ping 对端（`rxe gids`、ping -I），再用比路径 MTU 大 60 字节的包试一次（ping -M do -s 1084）。",
            ),
            t("Open UDP port 4791 both ways.", "双向放行 UDP 4791 端口。"),
            t(
                "Set timeout to 14 and retry_cnt to 7; see `rxe explain timeout`.",
                "把 timeout 设为 14，retry_cnt 设为 7；见 `rxe explain timeout`。",
            ),
            t(
                "Capture at both ends: requests that leave and never arrive are the network's; requests that arrive and get no answer are the peer's.",
                "两端同时抓包：请求发出却没有到达，问题在网络；到达了却没有响应，问题在对端。",
            ),
        ],
    },
    Entry {
        id: "RNR_RETRY_EXC_ERR",
        names: &["IBV_WC_RNR_RETRY_EXC_ERR", "RNR_RETRY_EXC"],
        phrases: &[
            "ibv_wc_rnr_retry_exc_err",
            "rnr retry counter exceeded",
            "rnr retry count exceeded",
        ],
        title: t(
            "Completion status 13, RNR retry counter exceeded",
            "完成状态 13：RNR 重试次数用尽（RNR retry counter exceeded）",
        ),
        what: t("The peer had no receive posted.", "对端没有投递接收请求。"),
        causes: &[
            t(
                "The peer posts its receives too late, or fewer than messages come.",
                "对端投递接收太晚，或投递的数量少于收到的消息。",
            ),
            t(
                "The peer's program is busy and does not post again what it has used up.",
                "对端程序繁忙，用掉的接收没有及时补充。",
            ),
            t(
                "A WRITE with immediate data needs a receive too.",
                "带立即数的 WRITE 同样要消耗一个接收请求。",
            ),
        ],
        remedies: &[
            t(
                "Post receives before the QP goes to RTR, and again before the next message is asked for.",
                "在队列对转到 RTR 之前就投递接收，并在请求下一条消息之前补充。",
            ),
            t(
                "Set rnr_retry to 7 here (for ever), or a longer min_rnr_timer at the peer.",
                "本端把 rnr_retry 设为 7（无限重试），或在对端设置更长的 min_rnr_timer。",
            ),
            t(
                "Limit the messages on the way by credits of the program's own.",
                "在程序中用自己的信用（credit）机制限制在途消息数。",
            ),
        ],
    },
    Entry {
        id: "REM_ABORT_ERR",
        names: &["IBV_WC_REM_ABORT_ERR", "REM_ABORT"],
        phrases: &["ibv_wc_rem_abort_err", "operation aborted"],
        title: t(
            "Completion status 16, operation aborted",
            "完成状态 16：操作被中止（operation aborted）",
        ),
        what: t(
            "The peer ended the operation. Some cards report this; rxe does not.",
            "对端中止了操作。部分网卡会报告此状态，rxe 不会。",
        ),
        causes: &[t(
            "The peer's QP was reset or went into the error state.",
            "对端的队列对被重置或进入了错误状态。",
        )],
        remedies: &[t(
            "Look at the peer's completions and events, then connect again.",
            "查看对端的完成和异步事件，然后重新连接。",
        )],
    },
    Entry {
        id: "FATAL_ERR",
        names: &["IBV_WC_FATAL_ERR", "FATAL"],
        phrases: &["ibv_wc_fatal_err"],
        title: t("Completion status 19, fatal error", "完成状态 19：致命错误（fatal error）"),
        what: t(
            "The device cannot go on. rxe does not report this status.",
            "设备无法继续工作。rxe 不报告此状态。",
        ),
        causes: &[t(
            "A fault of the card, its firmware or its driver.",
            "网卡、固件或驱动出现故障。",
        )],
        remedies: &[t(
            "Look at the kernel's log (dmesg), then reset or replace the card.",
            "查看内核日志（dmesg），然后重置或更换网卡。",
        )],
    },
    Entry {
        id: "RESP_TIMEOUT_ERR",
        names: &["IBV_WC_RESP_TIMEOUT_ERR", "RESP_TIMEOUT"],
        phrases: &["ibv_wc_resp_timeout_err", "response timeout error"],
        title: t(
            "Completion status 20, response timeout error",
            "完成状态 20：响应超时（response timeout error）",
        ),
        what: t(
            "An answer of management datagrams did not come in time. Programs of verbs rarely see it.",
            "管理报文（MAD）的响应超时。verbs 程序很少见到。",
        ),
        causes: &[t(
            "The peer or the subnet manager does not answer.",
            "对端或子网管理器没有响应。",
        )],
        remedies: &[t(
            "Check the path to the peer as for `rxe explain RETRY_EXC_ERR`.",
            "按 `rxe explain RETRY_EXC_ERR` 检查到对端的路径。",
        )],
    },
    Entry {
        id: "GENERAL_ERR",
        names: &["IBV_WC_GENERAL_ERR", "GENERAL"],
        phrases: &["ibv_wc_general_err", "general error"],
        title: t("Completion status 21, general error", "完成状态 21：一般错误（general error）"),
        what: t(
            "The request failed for a reason that has no status of its own. rxe does not report this status.",
            "请求失败，但没有对应的专门状态。rxe 不报告此状态。",
        ),
        causes: &[t(
            "The provider says more in vendor_err.",
            "详细原因在 vendor_err 中，由厂商定义。",
        )],
        remedies: &[t(
            "Look up vendor_err in the card's documentation.",
            "在网卡文档中查 vendor_err。",
        )],
    },
    Entry {
        id: "RD_ERRORS",
        names: &[
            "IBV_WC_LOC_EEC_OP_ERR",
            "IBV_WC_LOC_RDD_VIOL_ERR",
            "IBV_WC_REM_INV_RD_REQ_ERR",
            "IBV_WC_INV_EECN_ERR",
            "IBV_WC_INV_EEC_STATE_ERR",
        ],
        phrases: &[
            "local ee context operation error",
            "local rdd violation error",
            "remote invalid rd request",
            "invalid ee context number",
            "invalid ee context state",
        ],
        title: t(
            "Completion statuses 3, 14, 15, 17 and 18, of reliable datagrams",
            "完成状态 3、14、15、17、18：可靠数据报（RD）专用",
        ),
        what: t(
            "Errors of the service Reliable Datagram, which no device implements.",
            "可靠数据报（RD）服务的错误；没有设备实现 RD。",
        ),
        causes: &[t(
            "The completion was read before ibv_poll_cq wrote it, or memory was overwritten.",
            "在 ibv_poll_cq 写入之前就读取了完成，或内存被破坏。",
        )],
        remedies: &[t(
            "Use only as many completions as ibv_poll_cq returned.",
            "只使用 ibv_poll_cq 返回个数之内的完成。",
        )],
    },
    Entry {
        id: "TM_ERRORS",
        names: &["IBV_WC_TM_ERR", "IBV_WC_TM_RNDV_INCOMPLETE"],
        phrases: &["ibv_wc_tm_err"],
        title: t(
            "Completion statuses 22 and 23, of tag matching",
            "完成状态 22、23：标签匹配（tag matching）专用",
        ),
        what: t(
            "Errors of tag matching by the card. rxe has no tag matching.",
            "网卡标签匹配功能的错误。rxe 没有标签匹配。",
        ),
        causes: &[t(
            "A tag or a rendezvous message could not be handled by the card.",
            "网卡无法处理某个标签或 rendezvous 消息。",
        )],
        remedies: &[t(
            "Switch tag matching off, such as with UCX_RC_TM_ENABLE=n.",
            "关闭标签匹配，例如 UCX_RC_TM_ENABLE=n。",
        )],
    },
];

pub(super) fn of(status: Status) -> &'static Entry {
    // The test walks over all statuses.
    of_code(status.code().into()).unwrap_or(&ENTRIES[0])
}

pub(super) fn of_code(code: u32) -> Option<&'static Entry> {
    let id = match code {
        0 => "SUCCESS",
        1 => "LOC_LEN_ERR",
        2 => "LOC_QP_OP_ERR",
        3 | 14 | 15 | 17 | 18 => "RD_ERRORS",
        4 => "LOC_PROT_ERR",
        5 => "WR_FLUSH_ERR",
        6 => "MW_BIND_ERR",
        7 => "BAD_RESP_ERR",
        8 => "LOC_ACCESS_ERR",
        9 => "REM_INV_REQ_ERR",
        10 => "REM_ACCESS_ERR",
        11 => "REM_OP_ERR",
        12 => "RETRY_EXC_ERR",
        13 => "RNR_RETRY_EXC_ERR",
        16 => "REM_ABORT_ERR",
        19 => "FATAL_ERR",
        20 => "RESP_TIMEOUT_ERR",
        21 => "GENERAL_ERR",
        22 | 23 => "TM_ERRORS",
        _ => return None,
    };
    ENTRIES.iter().find(|entry| entry.id == id)
}

/// The first sentence of the entry, and in short what to do.
pub(super) fn sentence(status: Status) -> String {
    let Text { en, .. } = of(status).what;
    let mut what = en.trim_end_matches('.').to_owned();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    match hint(status) {
        "" => what,
        hint => format!("{what}: {hint}"),
    }
}

const fn hint(status: Status) -> &'static str {
    match status {
        Status::Success => "",
        Status::LocalLength => "post larger receives or send less",
        Status::LocalQpOperation => {
            "a READ or atomic although max_rd_atomic is 0, an address handle of another protection \
             domain, or a key to invalidate of which no window is bound to this QP"
        }
        Status::LocalProtection => {
            "it lies outside its memory region, its lkey is wrong or of another protection domain, \
             or data arrives in a region registered without LOCAL_WRITE"
        }
        Status::WorkRequestFlushed => {
            "look at the first completion that is neither success nor flushed"
        }
        Status::MemoryWindowBind => {
            "one of type 2 that is bound must be invalidated first; the region must still be there, \
             be in the QP's protection domain and have MW_BIND and what the window shall have"
        }
        Status::BadResponse => "its stack is at fault",
        Status::RemoteInvalidRequest => {
            "a message longer than its receive, an operation its QP was not set up to accept \
             (qp_access_flags), or too many READs at once (max_dest_rd_atomic)"
        }
        Status::RemoteAccess => {
            "wrong rkey or address, a range beyond the region, or a region registered without the \
             REMOTE_ right; the peer's QP is now in the error state"
        }
        Status::RemoteOperation => "usually a receive buffer of its own is not valid",
        Status::RetryExceeded => {
            "is it alive, its QP in RTR or RTS with our QPN, addresses and path MTU, and UDP port \
             4791 not blocked by a firewall?"
        }
        Status::RnrRetryExceeded => {
            "post receives before the other side sends, or set rnr_retry to 7 (for ever)"
        }
    }
}
