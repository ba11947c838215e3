//! Probes that ask whether a peer still exists, and reports of ICMP "port unreachable" in return.
//!
//! A peer's host sends "port unreachable" if no process receives at the address. The kernel reports
//! an ICMP message to the socket that sent the datagram. The sockets of data packets ignore such
//! reports, because a report would make the next send fail. So probes leave from separate sockets,
//! one for each address, whose error queue is read before the next probes leave. No thread sleeps
//! on these sockets, so a report wakes none.
//!
//! A report quotes the datagram. The caller compares the quote with the probe it sent: a host that
//! cannot read the probes cannot forge a report.

use std::net::IpAddr;
use std::os::fd::AsFd;

use rxe_core::cm::mad;
use rxe_core::types::{Qkey, Qpn};
use rxe_core::wire::{Bth, Deth, Ext, NetHeader, Opcode, emit};

use crate::host::udp_socket::UdpSocket;
use rxe_sys::cmsg::{self, Control};
use rxe_sys::mmsg::{Outgoing, recv_error, sendmmsg};
use rxe_sys::sockopt::set_int;

/// The source port of probes of block 0; block `b` uses port `FIRST_PORT + b`. The ports are below
/// the source ports of data over `udp`, in the range of RoCEv2 (49152 to 65535), and above the
/// ports that Linux assigns to sockets that request none. A firewall that passes data thus passes
/// probes.
const FIRST_PORT: u16 = 0xf800;
/// The maximum number of reports that are read per socket at a time.
const MAX_REPORTS: usize = 256;
/// The length of BTH and DETH in bytes.
const HEADERS: usize = 12 + 8;

/// The sockets that probes leave from.
#[derive(Debug)]
pub struct PeerProbes {
    port: u16,
    scope: u32,
    /// The sockets, each opened with the first probe from its address.
    sockets: Vec<UdpSocket>,
}

impl PeerProbes {
    /// Creates the probes for the process with this block, on the interface with index `scope`.
    pub(crate) fn new(block: u8, scope: u32) -> Self {
        Self { port: FIRST_PORT + u16::from(block), scope, sockets: Vec::new() }
    }

    /// Sends a management datagram from queue pair 1 to queue pair 1. Returns `false` if there is
    /// no socket for it: another program has the port, or no descriptor is left.
    pub fn probe(&mut self, net: &NetHeader, mad: &[u8; mad::LEN]) -> bool {
        let net = NetHeader { src_port: self.port, ..*net };
        let Some(socket) = self.socket(net.src) else { return false };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Default::default());
        let ext = Ext { deth: Some(Deth::new(Qkey::GSI, Qpn::GSI)), ..Ext::default() };
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &ext, mad);
        let out = Outgoing {
            addr: socket.destination(&net),
            control: socket.control(&net, None),
            parts: [&packet, &[], &[]],
        };
        // A report about an earlier probe makes one send fail.
        let tries = std::iter::repeat_with(|| sendmmsg(socket.as_fd(), &[out])).take(2);
        // A probe that cannot be sent is lost, as on a wire.
        let _ = tries.into_iter().find(Result::is_ok);
        true
    }

    /// Calls `f` for each report that a peer's host has no receiver. Passes the peer's address and
    /// the management datagram that was sent there.
    pub fn unreachable_reports(&mut self, f: &mut dyn FnMut(IpAddr, &[u8; mad::LEN])) {
        let mut buf = [0; 512];
        for socket in &self.sockets {
            for _ in 0..MAX_REPORTS {
                let Ok(Some((len, to, control))) = recv_error(socket.as_fd(), &mut buf) else {
                    break;
                };
                let quoted = buf[..len].get(HEADERS..).and_then(|rest| rest.first_chunk());
                if let (Some(to), Some(mad)) = (to.to_inet(), quoted)
                    && is_port_unreachable(&control)
                {
                    f(to.ip(), mad);
                }
            }
        }
    }

    /// Closes the socket of an address that was left.
    pub(crate) fn leave(&mut self, address: IpAddr) {
        self.sockets.retain(|socket| socket.address() != address);
    }

    fn socket(&mut self, address: IpAddr) -> Option<&UdpSocket> {
        let known = self.sockets.iter().position(|socket| socket.address() == address);
        let at = known.or_else(|| {
            let socket = UdpSocket::open_sender(address, self.port, self.scope, false).ok()?;
            let (level, name) = match address {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
            };
            set_int(socket.as_fd(), level, name, 1).ok()?;
            self.sockets.push(socket);
            Some(self.sockets.len() - 1)
        })?;
        self.sockets.get(at)
    }
}

/// Returns whether a report is "port unreachable" from the destination host. Other ICMP messages,
/// such as those of a router without a route, prove nothing.
fn is_port_unreachable(control: &Control) -> bool {
    const ORIGIN_ICMP: u8 = 2;
    const ORIGIN_ICMP6: u8 = 3;
    cmsg::messages(control.as_bytes()).any(|m| {
        let report = matches!(
            (m.level, m.kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        // `struct sock_extended_err`: the errno (4 bytes), then the origin, the type and the code.
        let of = m.data.get(4..7);
        report && (of == Some(&[ORIGIN_ICMP, 3, 3]) || of == Some(&[ORIGIN_ICMP6, 1, 4]))
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as System;
    use std::time::{Duration, Instant};

    use rxe_core::wire::UDP_PORT;

    use super::*;

    /// Collects the reports about these probes for up to 20 s.
    fn unreachable_reports(peer_probes: &mut PeerProbes, wanted: usize) -> Vec<(IpAddr, Vec<u8>)> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while all.len() < wanted && Instant::now() < end {
            peer_probes.unreachable_reports(&mut |to, mad| all.push((to, mad.to_vec())));
            std::thread::yield_now();
        }
        all
    }

    #[test]
    fn a_host_says_where_nobody_receives_and_nothing_where_somebody_does() {
        for [own, gone, there] in
            [["127.19.0.1", "127.19.0.2", "127.19.0.3"], ["127.19.1.1", "127.19.1.1", "127.19.1.2"]]
        {
            let [own, gone, there]: [IpAddr; 3] = [own, gone, there].map(|ip| ip.parse().unwrap());
            let living = System::bind((there, UDP_PORT)).unwrap();
            let mut peer_probes = PeerProbes::new(7, 0);
            // Sent one after the other, so that a report arrives before the next probe.
            for n in 0..20 {
                for to in [there, gone] {
                    let net = NetHeader::outgoing(own, to, 0);
                    assert!(peer_probes.probe(&net, &[n; 256]));
                }
            }
            let refused = unreachable_reports(&mut peer_probes, 20);
            let expected = (0..20).map(|n| (gone, vec![n; 256]));
            assert!(refused.into_iter().eq(expected));
            living.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            for _ in 0..20 {
                let mut buf = [0; 512];
                let (len, from) = living.recv_from(&mut buf).unwrap();
                assert_eq!((len, from.port()), (HEADERS + 256 + 4, FIRST_PORT + 7));
            }
            assert!(unreachable_reports(&mut peer_probes, 0).is_empty());
            peer_probes.leave(own);
            assert!(peer_probes.sockets.is_empty());
        }
    }

    #[test]
    fn only_a_closed_port_is_a_refusal() {
        let report = |level, kind, data: [u8; 8]| {
            let mut control = Control::EMPTY;
            control.push(libc::IPPROTO_IP, libc::IP_TTL, &[64; 4]);
            control.push(level, kind, &data);
            is_port_unreachable(&control)
        };
        let (v4, v6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
        let icmp = |origin, kind, code| [111, 0, 0, 0, origin, kind, code, 0];
        assert!(report(v4, libc::IP_RECVERR, icmp(2, 3, 3)));
        assert!(report(v6, libc::IPV6_RECVERR, icmp(3, 1, 4)));
        for other in [icmp(2, 3, 1), icmp(2, 3, 13), icmp(2, 11, 0), icmp(1, 3, 3), icmp(3, 3, 3)] {
            assert!(!report(v4, libc::IP_RECVERR, other));
        }
        assert!(!report(v4, libc::IP_TOS, icmp(2, 3, 3)));
    }
}
