//! Describes a packet in words, in one line.

use std::fmt::{self, Write};
use std::time::Duration;

use rxe_core::cm::mad::{Message, RejReason};
use rxe_core::cm::service::PortSpace;
use rxe_core::types::Mtu;
use rxe_core::wire::{Aeth, NakCode, OpKind, Opcode, Syndrome};

use crate::frame::{Frame, Icrc, Transport};

/// Appends the important fields of a packet to a line, for example `len 1024, AckReq`.
/// Addresses, QP, opcode and PSN are left out. `before` precedes the fields, if there are any.
pub fn describe(
    line: &mut String,
    before: &'static str,
    frame: &Frame<'_>,
    packet: &Transport<'_>,
) {
    List { line, between: before }.packet(frame, packet);
}

/// Describes a CM message, for example `CM REQ: tcp port 4000, QPN 0x000011, PSN 0x001000`.
pub fn cm(message: &Message) -> String {
    let mut line = String::new();
    List { line: &mut line, between: "" }.message(message);
    line
}

/// Returns the spoken name of an opcode, for example `SEND ONLY` or `UC WRITE FIRST`.
pub fn opcode(opcode: Opcode) -> String {
    let name = opcode.name();
    name.strip_prefix("RC_").unwrap_or(name).replace('_', " ")
}

/// Describes an AETH syndrome:
/// `ACK`, `ACK, credits 8` (in messages), `NAK: remote access error`, `RNR NAK: try again after 0.64 ms`.
pub fn syndrome(syndrome: Syndrome) -> String {
    SyndromeWords(syndrome).to_string()
}

struct SyndromeWords(Syndrome);

impl fmt::Display for SyndromeWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Syndrome::Ack { credits: Syndrome::NO_CREDITS } => f.write_str("ACK"),
            Syndrome::Ack { credits } => {
                write!(f, "ACK, credits {}", messages_of(credits).unwrap_or_default())
            }
            Syndrome::RnrNak { timer } => {
                write!(f, "RNR NAK: try again after {}", rnr_timer(timer.duration()))
            }
            Syndrome::Nak(code) => write!(f, "NAK: {}", nak(code)),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome 0x{byte:02x}"),
        }
    }
}

/// Describes the result of an ICRC check: `right`, `wrong`, `not checked: IP fragment`.
pub fn icrc(icrc: Icrc) -> String {
    match icrc {
        Icrc::Right => "right".into(),
        Icrc::Wrong => "wrong".into(),
        Icrc::Unchecked(why) => format!("not checked: {why}"),
    }
}

/// Returns the name of a NAK code in IBTA 9.7.5.2.7.
fn nak(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequenceError => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccessError => "remote access error",
        NakCode::RemoteOperationalError => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
    }
}

/// Returns the messages that a credit code permits; `None` for 31, "does not count". IBTA 9.7.7.2.
pub fn messages_of(code: u8) -> Option<u32> {
    match code {
        0 | 1 => Some(code.into()),
        2..=30 if code.is_multiple_of(2) => Some(1 << (code / 2)),
        2..=30 => Some(3 << ((code - 3) / 2)),
        _ => None,
    }
}

/// Returns the time in an RNR NAK, for example `0.64 ms`.
pub fn rnr_timer(d: Duration) -> String {
    format!("{} ms", d.as_secs_f64() * 1000.0)
}

/// Returns a measured time in the unit that fits, for example `8.2 us`, `1.3 ms` or `2.41 s`.
pub fn time(d: Duration) -> String {
    match d.as_nanos() {
        0..10_000 => format!("{:.1} us", d.as_secs_f64() * 1e6),
        10_000..1_000_000 => format!("{:.0} us", d.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", d.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", d.as_secs_f64()),
    }
}

/// Appends phrases to a line, separated by commas.
struct List<'l> {
    line: &'l mut String,
    /// The text that precedes the next phrase.
    between: &'static str,
}

impl List<'_> {
    fn add(&mut self, words: fmt::Arguments<'_>) {
        self.line.push_str(std::mem::replace(&mut self.between, ", "));
        // Writing to a string does not fail.
        let _ = self.line.write_fmt(words);
    }

    fn packet(&mut self, frame: &Frame<'_>, packet: &Transport<'_>) {
        let (bth, ext) = (&packet.bth, &packet.ext);
        if let Some((index, count)) = packet.segment {
            self.add(format_args!("packet {index} of {count} in one frame (GSO or GRO)"));
        }
        if packet.may_be_several() && packet.payload_len > Mtu::M4096.bytes() {
            self.add(format_args!("several packets in one frame (GSO or GRO), not captured whole"));
        }
        if let Some(why) = packet.wrong {
            let why = why.explain();
            self.add(format_args!("malformed: {}", why.trim_end_matches('.')));
        }
        if packet.info.is_some_and(|info| info.has_payload) {
            self.add(format_args!("len {}", packet.payload_len));
        }
        if let Some(deth) = ext.deth {
            self.add(format_args!("from QP 0x{:06x}", deth.src_qp.value()));
        }
        if bth.solicited {
            self.add(format_args!("SE"));
        }
        if bth.ack_req {
            self.add(format_args!("AckReq"));
        }
        if let Some(srq) = ext.xrc_srq {
            self.add(format_args!("XRCSRQ 0x{:06x}", srq & 0xff_ffff));
        }
        if let Some(feth) = ext.feth {
            self.add(format_args!("PLT {} SEL {}", feth.placement, feth.selectivity));
        }
        if let Some(reth) = ext.reth {
            let (va, rkey, len) = (reth.va, reth.rkey.value(), reth.dma_len);
            self.add(format_args!("VA 0x{va:x}, R_Key 0x{rkey:08x}, DMALen {len}"));
        }
        if let Some(atomic) = ext.atomic {
            let (va, rkey) = (atomic.va, atomic.rkey.value());
            self.add(format_args!("VA 0x{va:x}, R_Key 0x{rkey:08x}"));
            let name = if packet.info.is_some_and(|i| i.kind == OpKind::FetchAdd) {
                "add"
            } else {
                "swap"
            };
            self.add(format_args!("{name} 0x{:x}", atomic.swap_add));
            if name == "swap" {
                self.add(format_args!("compare 0x{:x}", atomic.compare));
            }
        }
        if let Some(Aeth { syndrome: what, msn }) = ext.aeth {
            self.add(format_args!("{}, MSN {msn}", SyndromeWords(what)));
        }
        if let Some(value) = ext.atomic_ack {
            self.add(format_args!("found 0x{value:x}"));
        }
        if let Some(imm) = ext.imm {
            self.add(format_args!("ImmDt 0x{imm:08x}"));
        }
        if let Some(rkey) = ext.ieth {
            self.add(format_args!("invalidates R_Key 0x{rkey:08x}"));
        }
        if let Some(message) = packet.cm_message() {
            self.message(&message);
        }
        if frame.congestion_experienced {
            self.add(format_args!("ECN CE"));
        }
        if bth.fecn {
            self.add(format_args!("FECN"));
        }
        if bth.becn {
            self.add(format_args!("BECN"));
        }
        match packet.icrc {
            Icrc::Right => {}
            Icrc::Wrong => self.add(format_args!("ICRC wrong")),
            Icrc::Unchecked(why) => self.add(format_args!("ICRC not checked: {why}")),
        }
    }

    /// Appends a CM message.
    fn message(&mut self, message: &Message) {
        let name = message.name();
        match message {
            Message::Req(m) => {
                let (qpn, psn) = (m.local_qpn.value(), m.starting_psn.value());
                self.add(format_args!(
                    "CM {name}: {}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}",
                    service(m.service_id)
                ));
            }
            Message::Rep(m) => {
                let (qpn, psn) = (m.local_qpn.value(), m.starting_psn.value());
                self.add(format_args!("CM {name}: QPN 0x{qpn:06x}, PSN 0x{psn:06x}"));
            }
            Message::Rej(m) => {
                let why = RejReason(m.reason);
                self.add(format_args!("CM {name}: reason {}, {}", m.reason, why.text()));
            }
            Message::Dreq(m) => {
                self.add(format_args!("CM {name}: remote QPN 0x{:06x}", m.remote_qpn.value()));
            }
            Message::SidrReq(m) => self.add(format_args!("CM {name}: {}", service(m.service_id))),
            Message::SidrRep(m) => {
                self.add(format_args!(
                    "CM {name}: status {}, QPN 0x{:06x}",
                    m.status,
                    m.qpn.value()
                ));
            }
            _ => self.add(format_args!("CM {name}")),
        }
    }
}

/// Describes a service ID; one of RDMA CM as port space and port.
fn service(id: u64) -> String {
    match PortSpace::of_service(id) {
        Some((space, port)) => format!("{space:?} port {port}").to_lowercase(),
        None => format!("service 0x{id:016x}"),
    }
}
