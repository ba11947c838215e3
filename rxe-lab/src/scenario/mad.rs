//! Builds a management datagram with a CM message, field by field. IBTA 12.6, 13.4.

use std::net::Ipv6Addr;

use toml::Spanned;

use super::description::{Fields, Packet};
use super::error::{Mistake, Result};
use super::field::{self, Place};
use crate::header;

/// The length of a management datagram in bytes.
const LEN: usize = 256;

/// The general services queue pair, source and destination of CM messages. IBTA 3.9.2.3.
pub(super) const QP1: u32 = 1;
/// The Q_Key of [`QP1`]. IBTA 10.2.4.
pub(super) const QP1_QKEY: u32 = 0x8001_0000;

/// Returns the CM messages given for a packet, each with its attribute ID.
fn messages(packet: &Packet) -> impl Iterator<Item = (u16, &Spanned<Fields>)> {
    let all = [
        &packet.req,
        &packet.mra,
        &packet.rej,
        &packet.rep,
        &packet.rtu,
        &packet.dreq,
        &packet.drep,
        &packet.sidr_req,
        &packet.sidr_rep,
        &packet.lap,
        &packet.apr,
    ];
    (0x10..).zip(all).filter_map(|(attribute, fields)| Some((attribute, fields.as_ref()?)))
}

/// Returns whether the packet is a management datagram.
pub(super) fn is_given(packet: &Packet) -> bool {
    packet.mad.is_some() || packet.ip_cm.is_some() || messages(packet).next().is_some()
}

/// Returns the bytes of the datagram; fields not given have defaults.
pub(super) fn payload(packet: &Packet, place: &mut Place<'_>) -> Result<Vec<u8>> {
    let other = packet.bytes.as_ref().map(Spanned::span);
    if let Some(span) = other.or(packet.data.as_ref().map(Spanned::span)) {
        let text = "the payload is the management datagram: leave out `bytes` and `data`";
        return Err(Mistake::new(span, text));
    }
    let mut given = messages(packet);
    let message = given.next();
    if let Some((_, second)) = given.next() {
        return Err(Mistake::at(second, "a management datagram has one message: leave this out"));
    }
    let mut bytes = vec![0; LEN];
    let (head, body) = bytes.split_at_mut(header::MAD.len);
    let usual = [("BaseVersion", 1), ("MgmtClass", 7), ("ClassVersion", 2), ("Method", 3)];
    let attribute = message.map_or(0, |(attribute, _)| u64::from(attribute));
    for (name, value) in usual.into_iter().chain([("AttributeID", attribute)]) {
        field::put_named(&header::MAD, head, name, value);
    }
    if let Some(fields) = &packet.mad {
        field::write(&header::MAD, head, fields.get_ref(), place)?;
    }
    if let Some((attribute, fields)) = message
        && let Some(header) = header::cm(attribute)
    {
        field::write(header, body, fields.get_ref(), place)?;
    }
    if let Some(fields) = &packet.ip_cm {
        let header = message.and_then(|(attribute, _)| header::cm(attribute));
        let private = header.and_then(header::private_data_of_request).ok_or_else(|| {
            let text = "IP_CM stands in the private data of a REQ or a SIDR_REQ: give one of these";
            Mistake::at(fields, text)
        })?;
        write_ip_cm(&mut body[private..], fields.get_ref(), place)?;
    }
    Ok(bytes)
}

/// Writes the header of RDMA CM; the IP version follows from the addresses. IBTA A11.
fn write_ip_cm(bytes: &mut [u8], fields: &Fields, place: &mut Place<'_>) -> Result<()> {
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    let any_v6 = fields.values().any(|value| value.get_ref().as_str().is_some_and(is_v6));
    let (ip_cm, version) = if any_v6 { (&header::IP_CM_V6, 6) } else { (&header::IP_CM, 4) };
    field::put_named(ip_cm, bytes, "IPVersion", version);
    field::write(ip_cm, bytes, fields, place)
}
