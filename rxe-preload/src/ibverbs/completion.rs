//! Converts completions to the program's format. IBTA 11.4.2.1.

use std::ffi::c_uint;

use rxe_verbs::{Completion, CompletionOp, Immediate, Status};

use super::abi::{IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc};

/// Converts a completion to the program's structure.
pub(super) fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.id,
        status: completion.status.code().into(),
        opcode: completion.op as c_uint,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_or_rkey: immediate(completion),
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qp.value(),
        wc_flags: flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: network(completion),
        dlid_path_bits: 0,
    }
}

/// Returns the value of `imm_data`: immediate data in network byte order, or a key.
pub(super) fn immediate(completion: &Completion) -> u32 {
    match completion.imm {
        None => 0,
        Some(Immediate::Data(number)) => number.to_be(),
        Some(Immediate::Invalidated(key)) => key.value(),
    }
}

/// Returns the type of a datagram's IP header, in place of a service level.
/// RoCE has no service level. ConnectX adapters report the type there, and programs (UCX) expect
/// it. IBTA A17.4.5.1.
pub(super) fn network(completion: &Completion) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match (completion.grh, completion.ipv4) {
        (false, _) => 0,
        (true, true) => UDP | IPV4,
        (true, false) => UDP | IPV6,
    }
}

/// Returns `wc_flags`.
/// Every received message has [`IBV_WC_GRH`], as with kernel `rdma_rxe`, because every RoCE packet
/// has a GRH. Only for datagrams is the GRH also in the buffer.
pub(super) fn flags(completion: &Completion) -> c_uint {
    let received = matches!(completion.op, CompletionOp::Recv | CompletionOp::RecvRdmaWithImm)
        && completion.status == Status::Success;
    let grh = if received { IBV_WC_GRH } else { 0 };
    grh | match completion.imm {
        None => 0,
        Some(Immediate::Data(_)) => IBV_WC_WITH_IMM,
        Some(Immediate::Invalidated(_)) => IBV_WC_WITH_INV,
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::types::{Qpn, Time};

    use super::*;

    #[test]
    fn every_message_that_was_received_has_a_grh_and_only_datagrams_have_it_in_the_buffer() {
        let qpn = Qpn::from_wire(7);
        let flags_of = |op, status, grh| {
            let new = Completion::new(1, status, qpn, Time::ZERO);
            let completion = Completion { op, grh, ipv4: true, ..new };
            (flags(&completion), network(&completion))
        };
        for op in [CompletionOp::Recv, CompletionOp::RecvRdmaWithImm] {
            assert_eq!(flags_of(op, Status::Success, false), (IBV_WC_GRH, 0));
            assert_eq!(flags_of(op, Status::WorkRequestFlushed, false), (0, 0));
        }
        assert_eq!(flags_of(CompletionOp::Recv, Status::Success, true), (IBV_WC_GRH, 10));
        assert_eq!(flags_of(CompletionOp::Send, Status::Success, false), (0, 0));
    }
}
