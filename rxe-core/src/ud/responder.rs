//! The UD responder: each datagram consumes one receive or is dropped. IBTA 9.8.3.2.

use crate::mem::write_spans;
use crate::message::{complete_receive, complete_receive_failed};
use crate::queue::{CompletionOp, Status};
use crate::service::{Ctx, QpView};
use crate::wire::{DropReason, NetHeader, Packet, grh};

/// Receives a datagram.
pub(crate) fn receive(view: &QpView<'_>, ctx: &mut Ctx<'_>, net: &NetHeader, packet: &Packet<'_>) {
    if let Err(reason) = deliver(view, ctx, net, packet) {
        ctx.drop_packet(view, reason);
    }
}

fn deliver(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    net: &NetHeader,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    debug_assert!(packet.info().starts && packet.info().ends, "a datagram is one packet");
    debug_assert_eq!(packet.count(), 1, "datagrams are not coalesced");
    let deth = packet.deth().ok_or(DropReason::WrongService)?;
    if deth.qkey != view.attr.qkey {
        return Err(DropReason::WrongQkey);
    }
    let bytes = packet.source();
    if bytes.len() > view.max_mtu().bytes() {
        return Err(DropReason::WrongLength);
    }
    let receive = view.take_receive(ctx).ok_or(DropReason::ReceiveQueueEmpty)?;
    let len = grh::LEN + bytes.len();
    if (len as u64) > receive.capacity() {
        complete_receive_failed(view, ctx, &receive, Status::LocalLength);
        return Err(DropReason::ReceiveTooSmall);
    }
    let pd = view.receive_pd();
    let scatter = |offset, len| ctx.mem.scatter(pd, &receive.sges, offset, len);
    let spans = scatter(0, grh::LEN).and_then(|head| {
        let body = scatter(grh::LEN as u64, bytes.len())?;
        write_spans(&head, &grh::of(net, packet.wire_len()))?;
        bytes.write_to(&body)
    });
    if let Err(why) = spans {
        ctx.report_memory_fault(view, why);
        complete_receive_failed(view, ctx, &receive, Status::LocalProtection);
        return Err(DropReason::AccessDenied);
    }
    let ipv4 = net.dst.is_ipv4();
    complete_receive(view, ctx, &receive, CompletionOp::Recv, len as u64, packet, ipv4);
    Ok(())
}
