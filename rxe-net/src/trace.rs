//! A wrapper that writes a line about each packet of any backend.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use rxe_core::wire::{Frame, IpId, NetHeader, Packet, TxBatch};

use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::{NetError, SharedFd, Sharing};

/// A backend that writes one line for each packet:
///
/// ```text
/// 0.000123 > 10.0.0.1 10.0.0.2 RC_SEND_ONLY qp 0x11 psn 0x5 ack 64 B
/// ```
///
/// `>` is a packet that leaves, `<` one that arrives. Errors of the output are ignored.
pub struct Trace<B, W> {
    inner: B,
    out: W,
    start: Instant,
    line: String,
}

impl<B: Backend, W: Write + Send> Trace<B, W> {
    /// Writes lines about the packets of `inner` to `out`.
    pub fn new(inner: B, out: W) -> Self {
        Self { inner, out, start: Instant::now(), line: String::new() }
    }
}

impl<B: Backend, W: Write + Send> Backend for Trace<B, W> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let Self { inner, out, start, line } = self;
        let mut whole = Vec::new();
        inner.receive(budget, &mut |frame| {
            frame.for_each_whole(&mut whole, &mut |frame| {
                describe(line, start, '<', frame);
                let _ = out.write_all(line.as_bytes());
                sink(frame);
            });
        })
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let mut lines = Vec::new();
        for frame in batch.frames() {
            describe(&mut self.line, &self.start, '>', &frame);
            lines.push(self.line.clone());
        }
        let result = self.inner.send(batch);
        let sent = lines.len() - batch.pending().len();
        for line in &lines[..sent] {
            let _ = self.out.write_all(line.as_bytes());
        }
        result
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.inner.for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn watch(&mut self, on: bool) {
        self.inner.watch(on);
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.inner.sharing()
    }
}

/// Writes the lines about a frame to `line`.
fn describe(line: &mut String, start: &Instant, arrow: char, frame: &Frame<'_>) {
    line.clear();
    let at = start.elapsed().as_secs_f64();
    for (net, bytes) in frame.packets() {
        let NetHeader { src, dst, .. } = net;
        // Writing to a String cannot fail.
        let _ = write!(line, "{at:.6} {arrow} {src} {dst} ");
        let _ = match Packet::parse(bytes) {
            Ok(p) => {
                let ack = if p.ack_req() { " ack" } else { "" };
                let (name, qpn, psn) = (p.info().name, p.dest_qp().value(), p.psn().value());
                let len = p.payload().len();
                write!(line, "{name} qp {qpn:#x} psn {psn:#x}{ack} {len} B")
            }
            Err(why) => write!(line, "{} B, not a packet: {why}", bytes.len()),
        };
        if let IpId::Known { id, .. } = net.id
            && arrow == '<'
        {
            let _ = write!(line, " id {id}");
        }
        line.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rxe_core::types::{Psn, Qpn};
    use rxe_core::wire::{Bth, Ext, Opcode, TxLimits, emit};

    use super::*;
    use crate::testing::receive_packets;
    use crate::{Hub, Impairments};

    #[test]
    fn each_packet_has_its_line() {
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
        let hub = Hub::new(1, Impairments::default());
        let mut from = Trace::new(hub.port(&[a]).unwrap(), Vec::new());
        let mut to = Trace::new(hub.port(&[b]).unwrap(), Vec::new());
        let mut batch = TxBatch::new(TxLimits::default());
        let net = NetHeader::outgoing(a, b, 4791);
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11).unwrap(), Psn::new(5));
        batch.push(net, emit::len(bth.opcode, 8), |net, buf| {
            emit::packet_from(net, buf, &bth, &Ext::default(), &[0; 8]);
        });
        batch.push(net, 3, |_, buf| buf.extend([1, 2, 3]));
        from.send(&mut batch).unwrap();
        receive_packets(&mut to, 2);
        let lines = |out: &[u8]| -> Vec<String> {
            let text = String::from_utf8(out.to_vec()).unwrap();
            text.lines().map(|l| l.split_once(' ').unwrap().1.to_owned()).collect()
        };
        let (sent, got) = (lines(&from.out), lines(&to.out));
        assert_eq!(sent[0], "> 10.0.0.1 10.0.0.2 RC_SEND_ONLY qp 0x11 psn 0x5 8 B");
        assert!(sent[1].starts_with("> 10.0.0.1 10.0.0.2 3 B, not a packet: "), "{}", sent[1]);
        assert_eq!(got[0], format!("<{} id 0", &sent[0][1..]));
        assert_eq!((sent.len(), got.len()), (2, 2));
    }
}
