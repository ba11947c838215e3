//! The states of a queue pair. IBTA 10.3.1.

use rxe_core::types::QpState;

use super::{Entry, t};

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "RESET",
        names: &["IBV_QPS_RESET"],
        phrases: &["failed to modify qp*to reset"],
        title: t("QP state RESET", "队列对状态 RESET（复位）"),
        what: t(
            "The queue pair is new, or was reset. Nothing can be posted, and packets for it are dropped.",
            "队列对刚创建或刚复位。不能投递请求，收到的报文被丢弃。",
        ),
        causes: &[],
        remedies: &[t(
            "Any state may go to RESET. All posted requests and their completions are then forgotten.",
            "任何状态都可以转到 RESET；已投递的请求及其未取走的完成都会被清除。",
        )],
    },
    Entry {
        id: "INIT",
        names: &["IBV_QPS_INIT"],
        phrases: &["failed to modify qp*to init", "failed to change qp*to init"],
        title: t("QP state INIT", "队列对状态 INIT（已初始化）"),
        what: t(
            "Receives can be posted. Packets are not accepted yet.",
            "可以投递接收请求，但还不接收报文。",
        ),
        causes: &[t(
            "The step to INIT fails if port_num is not 1 or pkey_index not 0 (on rxe), or if an attribute is missing.",
            "转到 INIT 失败的常见原因：port_num 不是 1、pkey_index 不是 0（对 rxe 而言），或缺少属性。",
        )],
        remedies: &[t(
            "Post the first receives here, before RTR.",
            "最初的接收请求在这里投递，先于 RTR。",
        )],
    },
    Entry {
        id: "RTR",
        names: &["IBV_QPS_RTR"],
        phrases: &[],
        title: t("QP state RTR, ready to receive", "队列对状态 RTR（可以接收）"),
        what: t(
            "The queue pair accepts packets and answers them. It cannot send requests yet.",
            "队列对接收报文并响应，但还不能发送请求。",
        ),
        causes: &[t(
            "The step to RTR fails most often because of the GID, the GID index or the path MTU.",
            "转到 RTR 失败多半是 GID、GID 索引或路径 MTU 的问题。",
        )],
        remedies: &[
            t(
                "Give ah_attr.is_global = 1, grh.dgid (the peer's GID) and grh.sgid_index (your GID index).",
                "设置 ah_attr.is_global = 1、grh.dgid（对端 GID）、grh.sgid_index（自己的 GID 索引）。",
            ),
            t(
                "Exchange QP numbers, GIDs and PSNs with the peer first.",
                "先与对端交换 QP 号、GID 和 PSN。",
            ),
        ],
    },
    Entry {
        id: "RTS",
        names: &["IBV_QPS_RTS"],
        phrases: &[],
        title: t("QP state RTS, ready to send", "队列对状态 RTS（可以发送）"),
        what: t("The queue pair sends and receives.", "队列对可以收发。"),
        causes: &[],
        remedies: &[t(
            "sq_psn must be the rq_psn of the peer. The peer must be in RTR before the first request arrives.",
            "sq_psn 必须等于对端的 rq_psn；第一个请求到达之前对端必须已在 RTR。",
        )],
    },
    Entry {
        id: "SQD",
        names: &["IBV_QPS_SQD"],
        phrases: &[],
        title: t("QP state SQD, send queue drained", "队列对状态 SQD（发送队列排空）"),
        what: t(
            "Requests that have begun are finished, and no new one begins. Then the event IBV_EVENT_SQ_DRAINED comes, if it was asked for.",
            "已开始的请求继续完成，不再开始新请求；排空后产生 IBV_EVENT_SQ_DRAINED 事件（如果要求通知）。",
        ),
        causes: &[],
        remedies: &[t(
            "Change attributes here, such as the timeout, and go back to RTS.",
            "在此修改属性（如 timeout），然后回到 RTS。",
        )],
    },
    Entry {
        id: "SQE",
        names: &["IBV_QPS_SQE"],
        phrases: &[],
        title: t("QP state SQE, send queue error", "队列对状态 SQE（发送队列错误）"),
        what: t(
            "A send of a UC or UD queue pair failed. It still receives.",
            "UC 或 UD 队列对的发送请求失败；仍可接收。",
        ),
        causes: &[t(
            "The first completion with an error says which request it was. RC queue pairs go to ERR instead.",
            "第一个出错的完成指出是哪个请求。RC 队列对则直接进入 ERR。",
        )],
        remedies: &[t(
            "Go back to RTS and post the flushed requests again.",
            "转回 RTS，重新投递被 flush的请求。",
        )],
    },
    Entry {
        id: "ERR",
        names: &["IBV_QPS_ERR", "error-state"],
        phrases: &[],
        title: t("QP state ERR, error", "队列对状态 ERR（错误）"),
        what: t(
            "The queue pair neither sends nor receives. Everything posted ends with WR_FLUSH_ERR (5).",
            "队列对不再收发，所有已投递的请求以 WR_FLUSH_ERR（5）结束。",
        ),
        causes: &[t(
            "A request failed, the peer asked for something forbidden, or the program asked for this state.",
            "请求失败、对端的请求不被允许，或程序主动转入。",
        )],
        remedies: &[
            t(
                "Find the first completion that is neither success nor flushed, on both sides.",
                "在两端查找第一个既非成功也非 flush的完成。",
            ),
            t(
                "Then go to RESET and start again from INIT, on both sides.",
                "然后两端都转到 RESET，从 INIT 重新开始。",
            ),
        ],
    },
];

pub(super) fn of(state: QpState) -> &'static Entry {
    match state {
        QpState::Reset => &ENTRIES[0],
        QpState::Init => &ENTRIES[1],
        QpState::Rtr => &ENTRIES[2],
        QpState::Rts => &ENTRIES[3],
        QpState::Sqd => &ENTRIES[4],
        QpState::Sqe => &ENTRIES[5],
        QpState::Err => &ENTRIES[6],
    }
}
