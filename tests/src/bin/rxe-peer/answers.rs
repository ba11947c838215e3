//! The JSON form of completions and asynchronous events.

use rxe_verbs::{AsyncEvent, Completion, CompletionOp, Immediate, Status};
use serde_json::{Value, json};

/// Returns a completion in the form that the protocol defines.
pub(crate) fn completion(c: &Completion) -> Value {
    let mut out = json!({
        "wr_id": c.id, "status": status(c.status), "qpn": c.qpn.value(), "vendor_err": 0,
    });
    if c.status != Status::Success {
        return out;
    }
    let opcode = match c.op {
        CompletionOp::Send => "SEND",
        CompletionOp::RdmaWrite => "RDMA_WRITE",
        CompletionOp::RdmaRead => "RDMA_READ",
        CompletionOp::CompareSwap => "COMP_SWAP",
        CompletionOp::FetchAdd => "FETCH_ADD",
        CompletionOp::BindWindow => "BIND_MW",
        CompletionOp::LocalInvalidate => "LOCAL_INV",
        CompletionOp::Flush => "FLUSH",
        CompletionOp::AtomicWrite => "ATOMIC_WRITE",
        CompletionOp::Recv => "RECV",
        CompletionOp::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
    };
    out["opcode"] = opcode.into();
    out["byte_len"] = c.byte_len.into();
    if matches!(c.op, CompletionOp::Recv | CompletionOp::RecvRdmaWithImm) {
        out["src_qp"] = c.src_qp.value().into();
        let mut flags = Vec::new();
        match c.imm {
            Some(Immediate::Data(imm)) => {
                flags.push("with_imm");
                out["imm"] = imm.into();
            }
            Some(Immediate::Invalidated(key)) => {
                flags.push("with_inv");
                out["invalidated"] = key.value().into();
            }
            None => {}
        }
        if c.grh {
            flags.push("grh");
        }
        out["flags"] = json!(flags);
    }
    out
}

/// Returns the name of a status in `enum ibv_wc_status`, without `IBV_WC_`.
fn status(status: Status) -> &'static str {
    match status {
        Status::Success => "SUCCESS",
        Status::LocalLength => "LOC_LEN_ERR",
        Status::LocalQpOperation => "LOC_QP_OP_ERR",
        Status::LocalProtection => "LOC_PROT_ERR",
        Status::WorkRequestFlushed => "WR_FLUSH_ERR",
        Status::MemoryWindowBind => "MW_BIND_ERR",
        Status::BadResponse => "BAD_RESP_ERR",
        Status::RemoteInvalidRequest => "REM_INV_REQ_ERR",
        Status::RemoteAccess => "REM_ACCESS_ERR",
        Status::RemoteOperation => "REM_OP_ERR",
        Status::RetryExceeded => "RETRY_EXC_ERR",
        Status::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
    }
}

/// Returns the name of an event in `enum ibv_event_type`, without `IBV_EVENT_`.
pub(crate) fn event(event: &AsyncEvent) -> &'static str {
    let name = event.kind.name();
    name.strip_prefix("IBV_EVENT_").unwrap_or(name)
}
