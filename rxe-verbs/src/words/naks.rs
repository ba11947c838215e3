//! The NAK codes of an AETH. IBTA 9.7.5.2.7.

use rxe_core::wire::NakCode;

use super::{Entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "nak-0",
        names: &["psn-sequence-error"],
        phrases: &["psn sequence error", "nak sequence error"],
        title: t(
            "NAK code 0, PSN sequence error (syndrome 0x60)",
            "NAK 代码 0：PSN 序列错误（syndrome 0x60）",
        ),
        what: t(
            "A packet is missing at the responder. The NAK carries the PSN that it expected, and the requester sends again from there.",
            "响应方发现缺少报文。NAK 带有它期望的 PSN，请求方从该 PSN 开始重传。",
        ),
        causes: &[
            t("The network lost or reordered packets.", "网络丢包或乱序。"),
            t(
                "The peer's rq_psn is not the sq_psn of this side. Then no packet is accepted, and the request ends with RETRY_EXC_ERR.",
                "对端的 rq_psn 与本端的 sq_psn 不同：所有报文都不被接受，请求最终以 RETRY_EXC_ERR 结束。",
            ),
        ],
        remedies: &[
            t(
                "A few are harmless. If there are many, look for drops: ethtool -S, PFC, ECN, receive buffers (net.core.rmem_max).",
                "少量出现无妨。若很多，查找丢包处：ethtool -S、PFC、ECN、接收缓冲区（net.core.rmem_max）。",
            ),
            t("Compare rq_psn and sq_psn of both sides.", "核对两端的 rq_psn 和 sq_psn。"),
        ],
    },
    Entry {
        id: "nak-1",
        names: &["invalid-request"],
        phrases: &["nak: invalid request"],
        title: t(
            "NAK code 1, invalid request (syndrome 0x61)",
            "NAK 代码 1：无效请求（syndrome 0x61）",
        ),
        what: t(
            "The responder does not accept the request. The requester's completion is REM_INV_REQ_ERR (9).",
            "响应方不接受该请求。请求方得到完成状态 REM_INV_REQ_ERR（9）。",
        ),
        causes: &[
            t(
                "A message longer than its receive, or an operation that qp_access_flags do not allow.",
                "消息比接收缓冲区长，或 qp_access_flags 不允许该操作。",
            ),
            t(
                "Too many READs and atomics at once, different path MTUs, or an opcode out of sequence or that the responder does not support.",
                "同时发出的 READ 和原子操作过多、两端路径 MTU 不同，操作码顺序错误，或响应方不支持该操作码。",
            ),
        ],
        remedies: &[t("See `rxe explain REM_INV_REQ_ERR`.", "见 `rxe explain REM_INV_REQ_ERR`。")],
    },
    Entry {
        id: "nak-2",
        names: &["remote-access-error"],
        phrases: &["nak: remote access error", "remoteaccesserror"],
        title: t(
            "NAK code 2, remote access error (syndrome 0x62)",
            "NAK 代码 2：远端访问错误（syndrome 0x62）",
        ),
        what: t(
            "The responder's memory may not be used like this. The requester's completion is REM_ACCESS_ERR (10).",
            "不允许这样访问响应方的内存。请求方得到完成状态 REM_ACCESS_ERR（10）。",
        ),
        causes: &[t(
            "A wrong rkey or address, a range beyond the region, a missing right, or another protection domain.",
            "rkey 或地址错误、超出区域、缺少权限，或保护域不同。",
        )],
        remedies: &[t("See `rxe explain REM_ACCESS_ERR`.", "见 `rxe explain REM_ACCESS_ERR`。")],
    },
    Entry {
        id: "nak-3",
        names: &["remote-operational-error"],
        phrases: &["nak: remote operational error"],
        title: t(
            "NAK code 3, remote operational error (syndrome 0x63)",
            "NAK 代码 3：远端操作错误（syndrome 0x63）",
        ),
        what: t(
            "The responder has a problem of its own. The requester's completion is REM_OP_ERR (11).",
            "响应方自身出现问题。请求方得到完成状态 REM_OP_ERR（11）。",
        ),
        causes: &[
            t(
                "A receive at the responder names memory that is not valid.",
                "响应方的接收请求引用了无效内存。",
            ),
            t(
                "From Linux rxe also: a message longer than its receive.",
                "对 Linux rxe 还可能是：消息比接收缓冲区长。",
            ),
        ],
        remedies: &[t("See `rxe explain REM_OP_ERR`.", "见 `rxe explain REM_OP_ERR`。")],
    },
    Entry {
        id: "nak-4",
        names: &["invalid-rd-request"],
        phrases: &["nak: invalid rd request"],
        title: t(
            "NAK code 4, invalid RD request (syndrome 0x64)",
            "NAK 代码 4：无效的 RD 请求（syndrome 0x64）",
        ),
        what: t(
            "An error of reliable datagrams (RD), a service that no device implements.",
            "可靠数据报（RD）服务的错误；没有设备实现 RD。",
        ),
        causes: &[t("A damaged packet, or a peer that is at fault.", "报文损坏，或对端有问题。")],
        remedies: &[t(
            "Capture the packet and look at its ICRC with `rxe decode -v`.",
            "抓包并用 `rxe decode -v` 检查 ICRC。",
        )],
    },
];

pub(super) fn of(code: NakCode) -> &'static Entry {
    match code {
        NakCode::PsnSequenceError => &ENTRIES[0],
        NakCode::InvalidRequest => &ENTRIES[1],
        NakCode::RemoteAccessError => &ENTRIES[2],
        NakCode::RemoteOperationalError => &ENTRIES[3],
        NakCode::InvalidRdRequest => &ENTRIES[4],
    }
}
