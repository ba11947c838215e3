//! The asynchronous events that a device reports. IBTA 11.6.3.

use super::{Entry, t};
use crate::event::AsyncKind;

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        id: "CQ_ERR",
        names: &["IBV_EVENT_CQ_ERR"],
        phrases: &["cq error", "completion queue overflow", "cq overrun"],
        title: t(
            "Event IBV_EVENT_CQ_ERR: completion queue overflow",
            "事件 IBV_EVENT_CQ_ERR：完成队列溢出",
        ),
        what: t(
            "A completion queue was full, and completions are lost. All queue pairs that complete there are in the error state.",
            "完成队列（CQ）已满，有完成丢失；使用它的队列对全部进入错误状态。",
        ),
        causes: &[t(
            "More requests may be outstanding than the queue has room for (cqe), or it is not polled often enough.",
            "未完成的请求数可能超过 CQ 的容量（cqe），或轮询不够频繁。",
        )],
        remedies: &[t(
            "Create the queue with room for all requests of all its queue pairs, sends and receives, or poll it more often.",
            "创建 CQ 时容量要能放下所有队列对的全部发送和接收请求，或更频繁地轮询。",
        )],
    },
    Entry {
        id: "QP_FATAL",
        names: &["IBV_EVENT_QP_FATAL"],
        phrases: &["local work queue catastrophic error"],
        title: t("Event IBV_EVENT_QP_FATAL", "事件 IBV_EVENT_QP_FATAL：队列对致命错误"),
        what: t(
            "A queue pair failed by an error of its own, and no completion can say so.",
            "队列对因自身错误失效，且无法通过完成来报告。",
        ),
        causes: &[t(
            "A completion queue overflowed, or registered memory is gone.",
            "完成队列溢出，或已注册的内存不复存在。",
        )],
        remedies: &[t(
            "Look for IBV_EVENT_CQ_ERR, and for munmap or free of registered memory. Then reset the queue pair.",
            "检查是否有 IBV_EVENT_CQ_ERR，以及是否 munmap 或 free 了已注册的内存；然后复位队列对。",
        )],
    },
    Entry {
        id: "QP_REQ_ERR",
        names: &["IBV_EVENT_QP_REQ_ERR"],
        phrases: &["invalid request local work queue error"],
        title: t("Event IBV_EVENT_QP_REQ_ERR", "事件 IBV_EVENT_QP_REQ_ERR：对端请求无效"),
        what: t(
            "A queue pair failed because its peer sent an invalid request.",
            "对端发来无效请求，队列对因此失效。",
        ),
        causes: &[t(
            "The same as for the peer's completion REM_INV_REQ_ERR (9).",
            "原因同对端得到的完成状态 REM_INV_REQ_ERR（9）。",
        )],
        remedies: &[t(
            "See `rxe explain REM_INV_REQ_ERR`, then connect again.",
            "见 `rxe explain REM_INV_REQ_ERR`，然后重新连接。",
        )],
    },
    Entry {
        id: "QP_ACCESS_ERR",
        names: &["IBV_EVENT_QP_ACCESS_ERR"],
        phrases: &["local access violation work queue error"],
        title: t("Event IBV_EVENT_QP_ACCESS_ERR", "事件 IBV_EVENT_QP_ACCESS_ERR：对端访问违规"),
        what: t(
            "A queue pair failed because its peer asked for memory that it may not use.",
            "对端访问了不允许访问的内存，队列对因此失效。",
        ),
        causes: &[t(
            "The same as for the peer's completion REM_ACCESS_ERR (10).",
            "原因同对端得到的完成状态 REM_ACCESS_ERR（10）。",
        )],
        remedies: &[t(
            "See `rxe explain REM_ACCESS_ERR`, then connect again.",
            "见 `rxe explain REM_ACCESS_ERR`，然后重新连接。",
        )],
    },
    Entry {
        id: "COMM_EST",
        names: &["IBV_EVENT_COMM_EST"],
        phrases: &["communication established"],
        title: t(
            "Event IBV_EVENT_COMM_EST: communication established",
            "事件 IBV_EVENT_COMM_EST：通信已建立",
        ),
        what: t(
            "The first packet came on a queue pair that is in RTR.",
            "处于 RTR 的队列对收到了第一个报文。",
        ),
        causes: &[],
        remedies: &[t(
            "No error. With a connection manager, call rdma_notify, or go to RTS.",
            "不是错误。使用通信管理器时调用 rdma_notify，或转到 RTS。",
        )],
    },
    Entry {
        id: "SQ_DRAINED",
        names: &["IBV_EVENT_SQ_DRAINED"],
        phrases: &["send queue drained"],
        title: t("Event IBV_EVENT_SQ_DRAINED", "事件 IBV_EVENT_SQ_DRAINED：发送队列已排空"),
        what: t(
            "A queue pair in SQD has finished all requests that it had begun.",
            "处于 SQD 的队列对已完成所有已开始的请求。",
        ),
        causes: &[],
        remedies: &[t(
            "No error. Attributes can now be changed, and the queue pair can go back to RTS.",
            "不是错误。现在可以修改属性，并回到 RTS。",
        )],
    },
    Entry {
        id: "DEVICE_FATAL",
        names: &["IBV_EVENT_DEVICE_FATAL"],
        phrases: &["local catastrophic error"],
        title: t("Event IBV_EVENT_DEVICE_FATAL", "事件 IBV_EVENT_DEVICE_FATAL：设备失效"),
        what: t(
            "The device has stopped working. What was posted completes as flushed; then polling fails.",
            "设备已停止工作。已投递的请求都以“被 flush”完成，此后轮询返回错误。",
        ),
        causes: &[t(
            "The interface or the socket below it is gone, or a fault on purpose asks for it.",
            "底层的网络接口或套接字已不存在，或由 --fault 故意触发。",
        )],
        remedies: &[t(
            "Destroy the device's objects, close it and open it again.",
            "销毁该设备上的对象，关闭设备后重新打开。",
        )],
    },
    Entry {
        id: "PORT_ACTIVE",
        names: &["IBV_EVENT_PORT_ACTIVE"],
        phrases: &["port active"],
        title: t("Event IBV_EVENT_PORT_ACTIVE", "事件 IBV_EVENT_PORT_ACTIVE：端口恢复"),
        what: t("The port carries packets again.", "端口重新可以收发报文。"),
        causes: &[],
        remedies: &[t(
            "No error. Queue pairs that have failed meanwhile must be connected again.",
            "不是错误。期间失效的队列对需要重新连接。",
        )],
    },
    Entry {
        id: "PORT_ERR",
        names: &["IBV_EVENT_PORT_ERR", "PORT_DOWN"],
        phrases: &["port error", "port down"],
        title: t("Event IBV_EVENT_PORT_ERR", "事件 IBV_EVENT_PORT_ERR：端口断开"),
        what: t("The port no longer carries packets.", "端口不再收发报文。"),
        causes: &[t(
            "The network interface is down, has no carrier, or is gone.",
            "网络接口被关闭、没有载波，或已被移除。",
        )],
        remedies: &[t(
            "See ip link for the interface; ip link set DEV up, or check the cable.",
            "用 ip link 查看接口；执行 ip link set DEV up，或检查线缆。",
        )],
    },
    Entry {
        id: "SRQ_LIMIT_REACHED",
        names: &["IBV_EVENT_SRQ_LIMIT_REACHED"],
        phrases: &["srq limit reached"],
        title: t(
            "Event IBV_EVENT_SRQ_LIMIT_REACHED",
            "事件 IBV_EVENT_SRQ_LIMIT_REACHED：SRQ 低于水位",
        ),
        what: t(
            "A shared receive queue has fewer receives than its limit.",
            "共享接收队列（SRQ）中的接收请求少于设定的下限。",
        ),
        causes: &[],
        remedies: &[t(
            "Post more receives, and set the limit again with ibv_modify_srq: the event comes once.",
            "补充接收请求，并用 ibv_modify_srq 重新设置下限：此事件只触发一次。",
        )],
    },
    Entry {
        id: "QP_LAST_WQE_REACHED",
        names: &["IBV_EVENT_QP_LAST_WQE_REACHED"],
        phrases: &["last wqe reached"],
        title: t(
            "Event IBV_EVENT_QP_LAST_WQE_REACHED",
            "事件 IBV_EVENT_QP_LAST_WQE_REACHED：不再取用 SRQ",
        ),
        what: t(
            "A queue pair in the error state will take no more receives from its shared receive queue.",
            "错误状态的队列对不会再从共享接收队列取接收请求。",
        ),
        causes: &[],
        remedies: &[t(
            "Poll its completions to the end. Then the queue pair can be destroyed.",
            "取完它的所有完成之后即可销毁该队列对。",
        )],
    },
    Entry {
        id: "GID_CHANGE",
        names: &["IBV_EVENT_GID_CHANGE"],
        phrases: &["gid table change"],
        title: t("Event IBV_EVENT_GID_CHANGE", "事件 IBV_EVENT_GID_CHANGE：GID 表变化"),
        what: t(
            "The addresses of the interface have changed, and so has the GID table.",
            "接口的地址变了，GID 表随之变化。",
        ),
        causes: &[],
        remedies: &[t(
            "Read the GID table again: the GID index of an address may be another one now.",
            "重新读取 GID 表：同一地址的 GID 索引可能已经改变。",
        )],
    },
];

pub(super) fn of(kind: AsyncKind) -> &'static Entry {
    match kind {
        AsyncKind::CqErr => &ENTRIES[0],
        AsyncKind::QpFatal => &ENTRIES[1],
        AsyncKind::QpReqErr => &ENTRIES[2],
        AsyncKind::QpAccessErr => &ENTRIES[3],
        AsyncKind::CommEst => &ENTRIES[4],
        AsyncKind::SqDrained => &ENTRIES[5],
        AsyncKind::DeviceFatal => &ENTRIES[6],
        AsyncKind::PortActive => &ENTRIES[7],
        AsyncKind::PortErr => &ENTRIES[8],
        AsyncKind::SrqLimitReached => &ENTRIES[9],
        AsyncKind::QpLastWqeReached => &ENTRIES[10],
        AsyncKind::GidChange => &ENTRIES[11],
    }
}
