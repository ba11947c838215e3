//! The texts of explanations about queue pairs: what was wrong, where, and what to do.

use rxe_core::engine::{FailedRequest, MemoryRange, ResponderError};
use rxe_core::mem::{Access, AccessError, FaultCause, MemoryFault};
use rxe_core::queue::CompletionOp;
use rxe_core::wire::DropReason;
use rxe_verbs::{Completion, QpState, QpType, Qpn, Status};

use super::regions::{Region, Regions};

/// What is known of a request that was not answered, since the request was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// Whether the peer has reported gaps (NAK, PSN sequence error).
    pub(super) gaps: bool,
    /// The reason why the last dropped packet for this queue pair was dropped.
    pub(super) dropped: Option<DropReason>,
}

/// Explains that a request of this side has failed by an injected fault.
pub(super) fn request_failed_on_purpose(qpn: Qpn, status: Status) -> String {
    format!(
        "QP {qpn}: a request failed on purpose: --fault or RXE_FAULT asks for \"{status}\" (wc=)"
    )
}

/// Explains that a request of this side has failed.
pub(super) fn request_failed(
    qpn: Qpn,
    status: Status,
    detail: Option<AccessError>,
    request: &FailedRequest,
    evidence: Evidence,
    regions: &Regions,
) -> String {
    let FailedRequest { op, range, peer, peer_qp, answered, .. } = *request;
    let what = name(op);
    let to = format!("QP {peer_qp} at {peer}");
    let begin = format!("QP {qpn}: {what} to {to} failed");
    match (status, range) {
        (Status::LocalProtection, _) if matches!(detail, Some(AccessError::Faulted(_))) => {
            let why = detail.map_or("", AccessError::explain);
            format!("{begin}: {why}")
        }
        (Status::LocalProtection, Some(range)) => {
            let why = detail.map_or("the memory is not usable", AccessError::explain);
            let more = near(detail, range, regions, "lkey", false);
            format!(
                "QP {qpn}: {what} names {} by sg_list with lkey {:#010x}: {why}{more}; give memory \
                 that ibv_reg_mr registered in the queue pair's protection domain, and the lkey of \
                 that region",
                bytes(range),
                range.key.value(),
            )
        }
        (Status::RemoteAccess, Some(range)) => format!(
            "{begin}: the peer does not let it use {} with rkey {:#010x}; compare both with what the \
             peer sent you, also their byte order (htobe64, htonl), and check that its region is that \
             long, was registered with {} and is in the protection domain of its queue pair. If the \
             peer runs under `rxe run`, its stderr says which of these is wrong",
            bytes(range),
            range.key.value(),
            right(op),
        ),
        (Status::RetryExceeded, _) => format!("{begin}: {}", silence(peer_qp, answered, evidence)),
        (Status::RnrRetryExceeded, _) => format!(
            "{begin}: {peer} had no receive posted on that queue pair, in all tries that rnr_retry \
             allows: it must call ibv_post_recv before this side sends, or this side must set rnr_retry \
             to 7 (forever)"
        ),
        _ => format!("{begin} with \"{status}\": {}", status.meaning()),
    }
}

/// Explains that the peer did not answer. `of` is its queue pair.
fn silence(of: Qpn, answered: bool, evidence: Evidence) -> String {
    let tries = "no acknowledgement came after all retries";
    match evidence.dropped {
        // Other answers have arrived in sequence, so the PSNs of both sides agree.
        Some(DropReason::StaleResponse) if answered && !evidence.gaps => {
            return format!(
                "{tries}. The last packet that was dropped here repeats an answer that had come before: the \
                 peer is slower than timeout and retry_cnt of this queue pair allow (make them larger), or \
                 has ended since"
            );
        }
        Some(reason @ (DropReason::GhostAck | DropReason::StaleResponse)) if !evidence.gaps => {
            return format!(
                "{tries}. The peer's answers do not fit ({}): its rq_psn must be the sq_psn of this \
                 side",
                lower(reason)
            );
        }
        Some(reason) if !evidence.gaps => {
            return format!("{tries}. Packets did come, but were dropped: {}", lower(reason));
        }
        _ => {}
    }
    if evidence.gaps {
        return format!(
            "{tries}. The peer reports that earlier packets are missing: its rq_psn must be the sq_psn \
             of this side; if it is, most packets get lost in the network"
        );
    }
    if answered {
        return format!(
            "{tries}. The peer has answered before: has its program ended, or the link gone down?"
        );
    }
    format!(
        "{tries}, and nothing ever came from there. Check that a program with an RDMA device runs at that \
         address (`rxe run`, or a kernel's), that its queue pair has the number {of} and is in RTR or \
         RTS with this side's GID and QP number, that the path MTUs are equal, and that UDP port 4791 \
         is open both ways (firewalls, security groups)"
    )
}

/// Explains that a wrong request of the peer has put the queue pair into the error state.
pub(super) fn responder_failed(
    qpn: Qpn,
    error: ResponderError,
    asked: Option<MemoryRange>,
    regions: &Regions,
) -> String {
    let end = "the queue pair is now in the error state, and all requests on it are flushed";
    let todo = match error {
        ResponderError::RemoteAccess(why) => {
            let range = asked.map_or(String::new(), |range| {
                format!(" {} with rkey {:#010x}", bytes(range), range.key.value())
            });
            let more = asked.map_or(String::new(), |r| near(Some(why), r, regions, "rkey", true));
            return format!(
                "QP {qpn}: the peer asked for{range}, and was refused: {}{more}; {end}",
                why.explain()
            );
        }
        ResponderError::OperationNotEnabled => {
            "add IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC to qp_access_flags in the step to INIT"
        }
        ResponderError::TooManyReads => {
            "the peer's max_rd_atomic must not be larger than max_dest_rd_atomic here"
        }
        ResponderError::BadLength => "both ends must have the same path_mtu",
        ResponderError::MessageTooLong => "post larger receives, or send less",
        ResponderError::BadReceiveBuffer(_) => {
            "receives must name memory that is registered with IBV_ACCESS_LOCAL_WRITE"
        }
        ResponderError::MisalignedAtomic => "give the address of a word that is aligned to 8 bytes",
        _ => "the peer must not send this",
    };
    format!("QP {qpn}: the peer's request was refused: {error}; {todo}; {end}")
}

/// Explains that a copy failed because registered memory is not mapped.
pub(super) fn memory_faulted(qpn: Qpn, fault: MemoryFault, regions: &Regions) -> String {
    let MemoryFault { addr, cause } = fault;
    let inside = |region: &&Region| {
        let offset = addr.checked_sub(region.at as u64);
        offset.is_some_and(|offset| offset < region.len)
    };
    // A small region is more informative than one that covers all memory.
    let region = regions.values().filter(inside).min_by_key(|region| region.len);
    let of = region.map_or(String::new(), |region| {
        format!(
            ", byte {} of the {} that were registered at {:#x},",
            addr - region.at as u64,
            region.len,
            region.at
        )
    });
    let (what, todo) = match cause {
        FaultCause::Unmapped => (
            "is not mapped (munmap, free, the end of a thread)",
            "call ibv_dereg_mr before the memory is given back",
        ),
        FaultCause::Protected => (
            "does not allow the access (mprotect)",
            "call ibv_dereg_mr before its protection is changed",
        ),
        FaultCause::BeyondFile => (
            "lies behind the end of the file that is mapped there (ftruncate)",
            "call ibv_dereg_mr before the file is cut",
        ),
        FaultCause::Other => ("cannot be accessed", "see the kernel's log for memory errors"),
    };
    if region.is_some_and(|region| region.access.contains(Access::ON_DEMAND)) {
        return format!(
            "QP {qpn}: the memory at {addr:#x}{of} {what}: on-demand paging needs it while a request \
             uses it. The queue pair goes into the error state"
        );
    }
    format!(
        "QP {qpn}: the memory at {addr:#x}{of} {what}: {todo}. An adapter would keep using the \
         old pages; here the queue pair goes into the error state"
    )
}

/// Compares the memory that a request named with the regions that are registered here.
fn near(
    why: Option<AccessError>,
    range: MemoryRange,
    regions: &Regions,
    kind: &str,
    from_peer: bool,
) -> String {
    let key = range.key.value();
    match (why, regions.get(&key)) {
        (Some(AccessError::UnknownKey), _) => {
            if regions.contains_key(&key.swap_bytes()) {
                let cure = if from_peer {
                    "is one: send it with htonl() and read it with ntohl()"
                } else {
                    "is one: do not convert it"
                };
                return format!(
                    ". The key in reverse byte order, {:#010x}, {cure}",
                    key.swap_bytes()
                );
            }
            match regions.iter().next() {
                None => ". This process has no region on this device".into(),
                Some((known, region)) if regions.len() == 1 => format!(
                    ". The only region of this process has {kind} {known:#010x} and is {}",
                    extent(region)
                ),
                Some(_) => format!(". This process has {} regions with others", regions.len()),
            }
        }
        (Some(AccessError::OutOfBounds), Some(region)) => {
            let swapped = range.addr.swap_bytes();
            let inside =
                swapped.checked_sub(region.start).is_some_and(|offset| offset < region.len);
            let hint = if inside && from_peer {
                ". The address has the wrong byte order: send it with htobe64() and read it with \
                 be64toh()"
            } else {
                ""
            };
            format!(". The region is {}{hint}", extent(region))
        }
        (Some(AccessError::NotPermitted), Some(region)) => {
            format!(". The region was registered with {}", rights(region.access))
        }
        _ => String::new(),
    }
}

fn extent(region: &Region) -> String {
    format!("{} bytes from {:#x}", region.len, region.start)
}

fn rights(access: Access) -> String {
    let names: Vec<&str> = [
        (Access::LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
        (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
        (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
        (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
    ]
    .into_iter()
    .filter_map(|(bit, name)| access.contains(bit).then_some(name))
    .collect();
    if names.is_empty() { "no rights (0)".into() } else { format!("{} only", names.join(" | ")) }
}

/// Returns the access right that an operation needs in the peer's region.
fn right(op: CompletionOp) -> &'static str {
    match op {
        CompletionOp::RdmaRead => "IBV_ACCESS_REMOTE_READ",
        CompletionOp::CompareSwap | CompletionOp::FetchAdd => "IBV_ACCESS_REMOTE_ATOMIC",
        CompletionOp::Flush => "IBV_ACCESS_FLUSH_GLOBAL",
        _ => "IBV_ACCESS_REMOTE_WRITE",
    }
}

fn bytes(range: MemoryRange) -> String {
    let s = if range.len == 1 { "" } else { "s" };
    format!("{} byte{s} at {:#x}", range.len, range.addr)
}

/// Returns the name of an operation, with its article.
pub(super) fn name(op: CompletionOp) -> &'static str {
    match op {
        CompletionOp::Send => "a SEND",
        CompletionOp::RdmaWrite => "an RDMA WRITE",
        CompletionOp::RdmaRead => "an RDMA READ",
        CompletionOp::CompareSwap => "a COMPARE AND SWAP",
        CompletionOp::FetchAdd => "a FETCH AND ADD",
        CompletionOp::BindWindow => "the bind of a memory window",
        CompletionOp::LocalInvalidate => "an invalidation",
        CompletionOp::Flush => "a FLUSH",
        CompletionOp::AtomicWrite => "an ATOMIC WRITE",
        CompletionOp::Recv | CompletionOp::RecvRdmaWithImm => "a receive",
    }
}

/// Returns why a queue pair is in the error state, given the request that failed.
pub(super) fn cause_of_request(request: &FailedRequest, status: Status) -> String {
    format!("{} of it failed with \"{status}\"", name(request.op))
}

/// Explains that a request was flushed because the queue pair had failed.
pub(super) fn flushed(qpn: Qpn, id: u64, cause: &str) -> String {
    format!(
        "QP {qpn}: the request with wr_id {id:#x} and those behind it were not executed, because \
         the queue pair is in the error state: {cause}; look for that cause, not at the flushed requests"
    )
}

/// Explains a failed request for which no event of the engine gives a reason.
pub(super) fn completion(failed: &Completion, service: QpType) -> String {
    let Completion { qpn, id, status, op, .. } = *failed;
    let received = matches!(op, CompletionOp::Recv | CompletionOp::RecvRdmaWithImm);
    let why = match (status, service, received) {
        (Status::LocalLength, QpType::Ud, false) => {
            "a datagram is one packet, so it may not be longer than the path MTU (active_mtu of \
             ibv_query_port)"
        }
        (Status::LocalLength, QpType::Ud, true) => {
            "the datagram is longer than the receive that was posted for it: a receive needs 40 bytes \
             more than the payload, for the GRH in front of it"
        }
        _ => status.meaning(),
    };
    format!("QP {qpn}: {} with wr_id {id:#x} failed: {why}", name(op))
}

/// Explains that a completion queue overflowed.
pub(super) fn overflow(qpn: Qpn) -> String {
    format!(
        "the completion queue of QP {qpn} was full and completions are lost; all queue pairs that \
         complete there are now in the error state: create it with room (cqe) for all requests that \
         may be outstanding on them, or poll it more often"
    )
}

/// Explains that the peer has had no receive for some time.
pub(super) fn no_receive_there(qpn: Qpn) -> String {
    format!(
        "QP {qpn}: the peer has had no receive posted for some time (RNR), and this side keeps \
         trying, as rnr_retry says: the peer must call ibv_post_recv, once for each message"
    )
}

/// Explains that this side has had no receive for some time.
pub(super) fn no_receive_here(qpn: Qpn) -> String {
    format!(
        "QP {qpn}: the peer sends, and has found no receive posted here for some time (RNR): call \
         ibv_post_recv before the peer sends, once for each message"
    )
}

/// Explains that packets keep arriving for a queue pair that does not exist.
pub(super) fn unknown_qp(qpn: Qpn) -> String {
    format!(
        "somebody keeps sending to QP {qpn}, which this process does not have: check the peer's \
         dest_qp_num; or it is the peer of a program that has ended"
    )
}

/// Explains that packets of this process come back to it.
/// No process on its address has that queue pair.
pub(super) fn unknown_own_peer(qpn: Qpn) -> String {
    format!(
        "a queue pair of this process keeps sending to QP {qpn}, which no process on this address \
         has: check dest_qp_num, which it was given in the step to RTR; or its peer's program has \
         ended"
    )
}

/// Explains that a packet of the peer was dropped, if a mistake of the program is likely.
pub(super) fn dropped(
    qpn: Qpn,
    reason: DropReason,
    service: QpType,
    state: QpState,
) -> Option<String> {
    let todo = match reason {
        DropReason::WrongService => "make both ends with the same qp_type",
        DropReason::WrongQkey => {
            "remote_qkey in the sender's request must be the qkey that this queue pair was given in \
             the step to INIT"
        }
        DropReason::ReceiveQueueEmpty => {
            "unreliable messages do not wait: post receives before the peer sends, and enough of them"
        }
        DropReason::AccessDenied if service == QpType::Uc => {
            "the rkey, the range, the region's rights or qp_access_flags do not allow it, and on an \
             unreliable connection the peer is not told"
        }
        DropReason::WrongSource => {
            "ah_attr.grh.dgid here must be the GID that the peer chose by its sgid_index"
        }
        DropReason::WrongDestination => {
            "ah_attr.grh.dgid of the peer must be the GID that sgid_index names here"
        }
        DropReason::WrongLength => "both ends must have the same path_mtu",
        DropReason::WrongQpState => {
            "the peer has been sending for some time: bring the queue pair to RTR"
        }
        DropReason::IcrcMismatch => {
            "something on the way changes packets, or the sender's stack computes it otherwise"
        }
        _ => return None,
    };
    let kind = match service {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend | QpType::XrcRecv => "XRC",
    };
    let state = state.name();
    Some(format!("QP {qpn} ({kind}, in {state}): {}; {todo}", lower(reason)))
}

/// Returns a reason with a lower-case first letter, for use within a sentence.
fn lower(reason: DropReason) -> String {
    let text = reason.explain().trim_end_matches('.');
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_answers_of_a_peer_that_has_answered_do_not_speak_of_wrong_numbers() {
        let evidence = Evidence { gaps: false, dropped: Some(DropReason::StaleResponse) };
        let said = |answered| silence(Qpn::from_wire(0x1234), answered, evidence);
        assert!(said(true).contains("is slower than timeout and retry_cnt"), "{}", said(true));
        assert!(!said(true).contains("rq_psn"));
        assert!(said(false).contains("its rq_psn must be the sq_psn of this side"));
    }
}
