//! The librdmacm operations of the peer program.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rxe_core::types::{Gid, Qpn};

use super::{Peer, PeerError, bytes_of, hex_of, number, strange};

/// An rdma_cm port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// An rdma_cm event that the peer program received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    kind: u8,
    pub(crate) status: i32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) private_data: Vec<u8>,
}

impl Event {
    pub(crate) const REQUEST: &str = "CONNECT_REQUEST";
    pub(crate) const REJECTED: &str = "REJECTED";
    pub(crate) const ESTABLISHED: &str = "ESTABLISHED";
    pub(crate) const DISCONNECTED: &str = "DISCONNECTED";
    /// The connection's timewait period is over. The event may come at any time.
    pub(crate) const TIMEWAIT_EXIT: &str = "TIMEWAIT_EXIT";

    /// Parses `KIND STATUS RESPONDER_RESOURCES INITIATOR_DEPTH DATA`.
    fn parse(words: &[String]) -> Option<Self> {
        let [_, status, _, _, data] = words else { return None };
        let byte = |i| u8::try_from(number(words, i)?).ok();
        Some(Self {
            kind: byte(0)?,
            status: status.parse().ok()?,
            responder_resources: byte(2)?,
            initiator_depth: byte(3)?,
            private_data: if data == "-" { Vec::new() } else { bytes_of(data)? },
        })
    }

    /// Returns the event's name, without `RDMA_CM_EVENT_`.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            0 => "ADDR_RESOLVED",
            1 => "ADDR_ERROR",
            2 => "ROUTE_RESOLVED",
            3 => "ROUTE_ERROR",
            4 => Self::REQUEST,
            5 => "CONNECT_RESPONSE",
            6 => "CONNECT_ERROR",
            7 => "UNREACHABLE",
            8 => Self::REJECTED,
            9 => Self::ESTABLISHED,
            10 => Self::DISCONNECTED,
            11 => "DEVICE_REMOVAL",
            14 => "ADDR_CHANGE",
            15 => Self::TIMEWAIT_EXIT,
            _ => "an event that no peer has",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.status == 0 { Ok(()) } else { write!(f, ", status {}", self.status) }
    }
}

impl Peer {
    /// Lets the peer program listen on this port.
    pub(crate) fn listen(&mut self, space: Space, port: u16) -> Result<(), PeerError> {
        self.ask(&format!("listen {space} {port}")).map(drop)
    }

    /// Lets the peer program connect to `to`. Returns its queue pair.
    pub(crate) fn dial(
        &mut self,
        space: Space,
        to: IpAddr,
        port: u16,
        data: &[u8],
    ) -> Result<Qpn, PeerError> {
        let gid = Ipv6Addr::from(*Gid::from(to).as_bytes());
        self.ask_for_qpn("dial", &format!("{space} {gid} {port} {}", data_of(data)))
    }

    /// Returns the peer program's next event, or `None` after `wait`.
    pub(crate) fn event(&mut self, wait: Duration) -> Result<Option<Event>, PeerError> {
        let words = self.ask_for(&format!("event {}", wait.as_millis()), wait)?;
        if words.is_empty() {
            return Ok(None);
        }
        Event::parse(&words).map(Some).ok_or_else(|| strange("event"))
    }

    /// Lets the peer program accept the connection request. Returns its queue pair.
    pub(crate) fn accept(&mut self, data: &[u8]) -> Result<Qpn, PeerError> {
        self.ask_for_qpn("accept", &data_of(data))
    }

    /// Lets the peer program reject the connection request.
    pub(crate) fn reject(&mut self, data: &[u8]) -> Result<(), PeerError> {
        self.ask(&format!("reject {}", data_of(data))).map(drop)
    }

    /// Lets the peer program disconnect, or confirm a disconnect.
    pub(crate) fn disconnect(&mut self) -> Result<(), PeerError> {
        self.ask("disconnect").map(drop)
    }

    fn ask_for_qpn(&mut self, request: &str, words: &str) -> Result<Qpn, PeerError> {
        let words = self.ask(&format!("{request} {words}"))?;
        let qpn = number(&words, 0).and_then(|n| u32::try_from(n).ok()).and_then(Qpn::new);
        qpn.ok_or_else(|| strange(request))
    }
}

fn data_of(data: &[u8]) -> String {
    if data.is_empty() { "-".into() } else { hex_of(data) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_whole_or_not_at_all() {
        let parse =
            |line: &str| Event::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let event = parse("8 28 1 0 c0ffee").unwrap();
        assert_eq!(event.to_string(), "REJECTED, status 28");
        assert_eq!(event.private_data, [0xc0, 0xff, 0xee]);
        assert_eq!(parse("9 -110 0 0 -").unwrap().status, -110);
        for bad in
            ["8 28 1 0", "8 28 1 0 c", "8 28 1 0 xy", "256 0 0 0 -", "9 0 300 0 -", "9 0 0 0 - -"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
