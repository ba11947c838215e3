//! Captures the RDMA packets of an interface, of all programs and of the kernel. packet(7).
//!
//! A filter tells the kernel which frames are wanted, so other traffic costs nothing. The kernel
//! removes the VLAN tag from many frames; the capture reinserts it, as the frame was on the wire.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libc::sock_filter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketType;

use super::filter::{JA, JSET_K, LD_H_ABS, RET_K, WHOLE, if_equal, jump, op, roce_v4, roce_v6};
use super::socket::{ETH_P_ALL, PACKET_IGNORE_OUTGOING, unbound};
use crate::backends::link_frame::LinkFrame;
use crate::error::NetError;
use crate::interface::net_device;
use crate::wrappers::pcap::Direction;
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg;
use rxe_sys::mmsg::{BATCH, Received, RecvArena, RecvPace};
use rxe_sys::sockopt;

/// A capture of the RDMA packets of an Ethernet interface. It includes RoCEv2 over IPv4 and IPv6
/// with CNPs, and RoCEv1, with up to two VLAN tags.
pub struct LinkCapture {
    fd: OwnedFd,
    netdev: String,
    arena: RecvArena,
    pace: RecvPace,
    /// The buffer in which a frame gets its VLAN tag back.
    tagged: Vec<u8>,
}

/// The maximum length of a frame in bytes: the longest that a host merges or segments, with tags.
const BUFFER: usize = (64 << 10) + 128;
/// The length in bytes of the Ethernet addresses, which precede a VLAN tag.
const ADDRESSES: usize = 12;

impl LinkCapture {
    /// Starts to capture on this interface. The receive buffer has `buffer` bytes, or as many as
    /// the kernel allows.
    ///
    /// # Errors
    /// The interface does not exist, is down or is not Ethernet, or CAP_NET_RAW is missing.
    pub fn open(netdev: &str, buffer: u32) -> Result<Self, NetError> {
        let device = net_device(netdev)?;
        if !device.ethernet {
            return Err(NetError::NotEthernet { netdev: netdev.into() });
        }
        if !device.up {
            return Err(NetError::DeviceDown { netdev: netdev.into() });
        }
        let fd = unbound(SocketType::RAW)?;
        let set_up = || -> io::Result<()> {
            sockopt::attach_filter(fd.as_fd(), &program())?;
            let set = |level, name, value| sockopt::set_int(fd.as_fd(), level, name, value);
            set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
            set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
            if device.loopback {
                // On loopback each frame would be captured twice.
                let _ = set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
            }
            sockopt::set_receive_buffer(fd.as_fd(), usize::try_from(buffer).unwrap_or(usize::MAX));
            sockopt::bind(fd.as_fd(), &RawAddr::link(device.index, ETH_P_ALL))
        };
        set_up().map_err(|e| NetError::os("set up a packet socket", e))?;
        Ok(Self {
            fd,
            netdev: netdev.into(),
            arena: RecvArena::new(BATCH, BUFFER),
            pace: RecvPace::default(),
            tagged: Vec::new(),
        })
    }

    /// Waits until frames have arrived, at most for `time`. A signal may end the wait early.
    pub fn wait(&self, time: Duration) {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let _ = poll(&mut fds, Timespec::try_from(time).ok().as_ref());
    }

    /// Hands the frames that have arrived to `sink`. Returns their number; 0 if there is none.
    ///
    /// # Errors
    /// The interface went down or is gone.
    pub fn receive(&mut self, sink: &mut dyn FnMut(&LinkFrame<'_>)) -> Result<usize, NetError> {
        let netdev = &self.netdev;
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENETDOWN) => match net_device(netdev) {
                Ok(_) => NetError::DeviceDown { netdev: netdev.clone() },
                Err(gone) => gone,
            },
            _ => NetError::os("receive from a packet socket", e),
        };
        let (got, _) = self.arena.recv(self.fd.as_fd(), &mut self.pace).map_err(failed)?;
        for at in 0..got {
            sink(&frame(&self.arena.get(at), &mut self.tagged));
        }
        Ok(got)
    }

    /// Stops capturing. Frames that have arrived already can still be received.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn stop(&self) -> Result<(), NetError> {
        sockopt::attach_filter(self.fd.as_fd(), &[op(RET_K, 0)])
            .map_err(|e| NetError::os("attach a filter to a packet socket", e))
    }

    /// Returns the number of frames that the kernel has dropped because they arrived too fast.
    pub fn dropped(&self) -> u64 {
        sockopt::drops(self.fd.as_fd()).into()
    }
}

/// Returns the captured frame, with the tag that the kernel has removed.
fn frame<'a>(received: &Received<'a>, tagged: &'a mut Vec<u8>) -> LinkFrame<'a> {
    const OUTGOING: u8 = 4;
    let outgoing = received.addr.bytes[10] == OUTGOING;
    let direction = if outgoing { Direction::Outbound } else { Direction::Inbound };
    let mut frame = LinkFrame { at: Duration::ZERO, direction, bytes: received.payload };
    let mut tag = None;
    for message in cmsg::messages(received.control) {
        match (message.level, message.kind) {
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => frame.at = time(message.data),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => tag = vlan_tag(message.data),
            _ => {}
        }
    }
    if let Some(tag) = tag
        && let Some((addresses, rest)) = frame.bytes.split_at_checked(ADDRESSES)
    {
        tagged.clear();
        for part in [addresses, &tag, rest] {
            tagged.extend_from_slice(part);
        }
        frame.bytes = tagged;
    }
    frame
}

/// Parses the seconds and nanoseconds of a `timespec`.
fn time(data: &[u8]) -> Duration {
    let half = data.len() / 2;
    let number = |bytes: &[u8]| match *bytes {
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        _ => 0,
    };
    let (seconds, nanos) = data.split_at(half);
    Duration::new(number(seconds), u32::try_from(number(nanos)).unwrap_or(0) % 1_000_000_000)
}

/// Parses the tag in a `struct tpacket_auxdata`, if there is one.
fn vlan_tag(data: &[u8]) -> Option<[u8; 4]> {
    const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
    const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
    let status = word(data, 0);
    if status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let [tci, tpid] = [16, 18].map(|at| match data.get(at..at + 2) {
        Some(&[a, b]) => u16::from_ne_bytes([a, b]),
        _ => 0,
    });
    let tpid = if status & TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { tpid };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

fn word(data: &[u8], at: usize) -> u32 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns the filter. It skips up to two tags.
fn program() -> Vec<sock_filter> {
    let mut p = Vec::new();
    for ethertype in [12, 16] {
        let untagged = match_type(ethertype);
        let over = u32::try_from(untagged.len()).unwrap_or(u32::MAX);
        p.extend([op(LD_H_ABS, ethertype), jump(0x8100, 1, 0), jump(0x88a8, 0, 1), op(JA, over)]);
        p.extend(untagged);
    }
    p.push(op(LD_H_ABS, 20));
    p.extend(match_type(20));
    p
}

/// Accepts or drops a frame by the EtherType, which is at offset `at` and in the accumulator.
fn match_type(at: u32) -> Vec<sock_filter> {
    const ROCE_V1: u32 = 0x8915;
    let ip = at + 2;
    let mut p = vec![jump(ROCE_V1, 0, 1), op(RET_K, WHOLE)];
    // Later fragments have no UDP header.
    let mut v4 = vec![op(LD_H_ABS, ip + 6), sock_filter { code: JSET_K, jt: 0, jf: 1, k: 0x1fff }];
    v4.push(op(RET_K, 0));
    v4.extend(roce_v4(ip));
    v4.push(op(RET_K, WHOLE));
    let mut v6 = roce_v6(ip);
    v6.push(op(RET_K, WHOLE));
    p.extend(if_equal(0x0800, &v4));
    p.extend(if_equal(0x86dd, &v6));
    p.push(op(RET_K, 0));
    p
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rxe_core::wire::NetHeader;
    use rxe_core::wire::frame::{IpUdpHeader, UdpChecksum};

    use rustix::net::{AddressFamily, SocketFlags, socket_with};

    use super::super::filter::tests::run;
    use super::*;
    use crate::testing::in_namespace;
    use rxe_sys::mmsg::{Outgoing, sendmmsg};

    /// Returns a frame with these tags, this EtherType and this packet.
    fn on_wire(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xff; ADDRESSES];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0x60, 7]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(packet);
        frame
    }

    /// Returns whether the filter accepts such a frame.
    fn takes(tags: &[u16], ethertype: u16, packet: &[u8]) -> bool {
        run(&program(), 0, &on_wire(tags, ethertype, packet)) == Some(WHOLE)
    }

    fn packet(address: &str, port: u16) -> Vec<u8> {
        let address: IpAddr = address.parse().unwrap();
        let net = NetHeader::outgoing(address, address, 1);
        IpUdpHeader::new(&net, port, UdpChecksum::None, &[0; 6]).as_bytes().to_vec()
    }

    #[test]
    fn only_roce_is_taken_with_up_to_two_tags() {
        for tags in [&[][..], &[0x8100], &[0x88a8], &[0x88a8, 0x8100]] {
            for (ethertype, address) in [(0x0800, "10.0.0.1"), (0x86dd, "fe80::1")] {
                assert!(takes(tags, ethertype, &packet(address, 4791)), "{tags:x?} {address}");
                assert!(!takes(tags, ethertype, &packet(address, 4790)), "{tags:x?} {address}");
            }
            assert!(takes(tags, 0x8915, &[0; 60]), "RoCEv1");
            assert!(!takes(tags, 0x0806, &[0; 60]), "ARP");
        }
        assert!(!takes(&[0x8100; 3], 0x0800, &packet("10.0.0.1", 4791)));
        let mut tcp = packet("10.0.0.1", 4791);
        tcp[9] = 6;
        assert!(!takes(&[], 0x0800, &tcp));
        let mut later = packet("10.0.0.1", 4791);
        later[7] = 1;
        assert!(!takes(&[], 0x0800, &later), "a later fragment");
    }

    /// Frames are sent on one end of a link as they are on the wire. The kernel removes the outer
    /// tag from those that arrive.
    #[test]
    fn frames_are_captured_at_both_ends_as_they_are_on_the_wire() {
        // A new interface loses frames until it is shown as up.
        let link = "ip link add near0 type veth peer name far0
            for end in near0 far0; do ip link set $end up; done
            for end in near0 far0; do
                until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
            done";
        in_namespace(link, || {
            let mut ends = ["near0", "far0"].map(|name| LinkCapture::open(name, 1 << 20).unwrap());
            let fd =
                socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None);
            let fd = fd.unwrap();
            let addr = RawAddr::link(net_device("near0").unwrap().index, 0x0800);
            let sent: Vec<_> = [&[][..], &[0x8100], &[0x88a8, 0x8100]]
                .map(|tags| on_wire(tags, 0x0800, &packet("10.0.0.1", 4791)))
                .into();
            for bytes in &sent {
                let parts = [bytes, &[][..], &[]];
                let frame = Outgoing { addr, control: cmsg::Control::EMPTY, parts };
                assert_eq!(sendmmsg(fd.as_fd(), &[frame]).unwrap(), 1);
            }
            for (end, direction) in ends.iter_mut().zip([Direction::Outbound, Direction::Inbound]) {
                let mut got = Vec::new();
                while got.len() < sent.len() {
                    end.wait(Duration::from_secs(10));
                    let sink = &mut |frame: &LinkFrame<'_>| {
                        assert_eq!(frame.direction, direction);
                        assert!(frame.at.as_secs() > 1_500_000_000, "{:?}", frame.at);
                        got.push(frame.bytes.to_vec());
                    };
                    assert!(end.receive(sink).unwrap() > 0, "nothing came in 10 s");
                }
                assert_eq!(got, sent, "{direction:?}");
                assert_eq!(end.dropped(), 0);
            }
        });
    }

    #[test]
    fn a_tag_that_was_taken_out_is_put_back() {
        let mut data = vec![0; 20];
        assert_eq!(vlan_tag(&data), None);
        data[..4].copy_from_slice(&0x50u32.to_ne_bytes());
        data[16..18].copy_from_slice(&0x600au16.to_ne_bytes());
        data[18..20].copy_from_slice(&0x88a8u16.to_ne_bytes());
        assert_eq!(vlan_tag(&data), Some([0x88, 0xa8, 0x60, 0x0a]));
        data[..4].copy_from_slice(&0x10u32.to_ne_bytes());
        assert_eq!(vlan_tag(&data), Some([0x81, 0x00, 0x60, 0x0a]));
        assert_eq!(vlan_tag(&data[..17]), Some([0x81, 0x00, 0, 0]));
        assert_eq!(vlan_tag(&[]), None);
    }
}
