//! The BTH opcodes. One table holds all properties that follow from an opcode alone. IBTA 9.2.1;
//! annex A19 for FLUSH and ATOMIC WRITE; A17.9.3 for CNP.
//!
//! Invariants, which a test checks: `header_len` is the length of the BTH and of the headers that
//! the flags name; `is_request` and `has_payload` follow from the kind.

use std::fmt;

use super::header_len;

/// The first byte of the BTH: transport service in the top 3 bits, operation in the low 5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Opcode(pub u8);

/// The transport service that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: RC whose requests name a shared receive queue. IBTA A14.
    Xrc,
    /// No transport service: a congestion notification is addressed to the device.
    Cnp,
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// SEND, optionally with immediate data or an rkey to invalidate.
    Send,
    /// RDMA WRITE, optionally with immediate data.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response, which also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledgement, positive or negative.
    Acknowledge,
    /// Acknowledgement with the original value of an atomic.
    AtomicAcknowledge,
    /// ATOMIC compare and swap.
    CompareSwap,
    /// ATOMIC fetch and add.
    FetchAdd,
    /// Compare and swap under a mask, an extension of ConnectX: two 8-byte masks follow the
    /// AtomicETH and are treated as payload.
    MaskedCompareSwap,
    /// FLUSH: makes earlier writes visible or persistent.
    Flush,
    /// ATOMIC WRITE: writes 8 bytes atomically.
    AtomicWrite,
    /// Congestion notification. IBTA A17.9.3.
    Cnp,
    /// A reserved RC opcode. The responder refuses such a request with a NAK, so that the requester
    /// learns the reason. IBTA 9.7.4.1.3, 9.9.3.
    Reserved,
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither the first nor the last packet.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet of the message.
    Only,
}

impl Position {
    /// Returns the position of packet `index` (from 0) in a message of `packets` packets.
    pub const fn of(index: u32, packets: u32) -> Self {
        Self::of_some(index, 1, packets)
    }

    /// Returns the position of packets `index..index + count` in a message of `packets` packets.
    pub const fn of_some(index: u32, count: u32, packets: u32) -> Self {
        Self::new(index == 0, index + count == packets)
    }

    /// Returns the position of packet `index` of a segment with position `self`. `count` is the
    /// number of packets of the segment.
    pub const fn of_one(self, index: u32, count: u32) -> Self {
        let starts = matches!(self, Self::First | Self::Only);
        let ends = matches!(self, Self::Last | Self::Only);
        Self::new(starts && index == 0, ends && index + 1 == count)
    }

    /// Returns the position of a packet that is the first, the last, both or neither.
    const fn new(starts: bool, ends: bool) -> Self {
        match (starts, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }
}

/// The extra header in the last packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SendExtra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Immediate,
    /// An rkey to invalidate (RC only).
    Invalidate,
}

/// The properties that follow from an opcode alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// The name, as in the specification and `ib_pack.h`: `RC_SEND_FIRST`.
    pub name: &'static str,
    /// The transport service.
    pub service: Service,
    /// The operation.
    pub kind: OpKind,
    /// The position in the message; `Only` for messages of one packet.
    pub position: Position,
    /// Whether the packet carries immediate data (ImmDt, 4 bytes).
    pub has_imm: bool,
    /// Whether the packet carries an rkey to invalidate (IETH, 4 bytes).
    pub has_ieth: bool,
    /// Whether the packet carries an address range (RETH, 16 bytes).
    pub has_reth: bool,
    /// Whether the packet carries an acknowledgement (AETH, 4 bytes).
    pub has_aeth: bool,
    /// Whether the packet carries the operands of an atomic (AtomicETH, 28 bytes).
    pub has_atomic: bool,
    /// Whether the packet carries the original value of an atomic (AtomicAckETH, 8 bytes).
    pub has_atomic_ack: bool,
    /// Whether the packet carries Q_Key and source QP (DETH, 8 bytes).
    pub has_deth: bool,
    /// Whether the packet carries the number of a shared receive queue (XRCETH, 4 bytes).
    pub has_xrceth: bool,
    /// Whether the packet carries placement and selectivity of a FLUSH (FETH, 4 bytes).
    pub has_feth: bool,
    /// The length of BTH and extension headers in bytes, including the 16 reserved bytes of a CNP.
    pub header_len: usize,
    /// Whether the packet goes from requester to responder. False for responses and for CNP, which
    /// is neither.
    pub is_request: bool,
    /// Whether the packet may carry payload.
    pub has_payload: bool,
    /// Whether the packet begins a message (position First or Only).
    pub starts: bool,
    /// Whether the packet ends a message (position Last or Only).
    pub ends: bool,
    /// Whether the packet takes a receive from the queue: the first packet of a SEND, the last
    /// packet of a WRITE with immediate data.
    pub consumes_recv: bool,
    /// Whether the packet completes a receive: the last packet of a SEND or of a WRITE with
    /// immediate data.
    pub completes_recv: bool,
}

impl OpInfo {
    /// Returns whether the packet goes from responder to requester.
    pub const fn is_response(&self) -> bool {
        use OpKind::{Acknowledge, AtomicAcknowledge, ReadResponse};
        matches!(self.kind, ReadResponse | Acknowledge | AtomicAcknowledge)
    }

    /// Returns whether the operation is an atomic that is answered by an ATOMIC ACKNOWLEDGE.
    pub const fn is_atomic(&self) -> bool {
        use OpKind::{CompareSwap, FetchAdd, MaskedCompareSwap};
        matches!(self.kind, CompareSwap | FetchAdd | MaskedCompareSwap)
    }
}

impl Opcode {
    /// Returns the properties of this opcode, or `None` if it is not in the table.
    #[inline]
    pub fn info(self) -> Option<&'static OpInfo> {
        TABLE[usize::from(self.0)].as_ref()
    }

    /// Returns the name, or `UNKNOWN`.
    pub fn name(self) -> &'static str {
        self.info().map_or("UNKNOWN", |info| info.name)
    }

    /// Returns all opcodes in the table, in ascending order.
    pub fn all() -> impl Iterator<Item = &'static OpInfo> {
        TABLE.iter().flatten()
    }

    /// Returns the opcode of a SEND packet at `position`. `extra` applies to the last packet only:
    /// it is ignored for `First` and `Middle`. Returns `None` for opcodes that do not exist: a UD
    /// SEND of several packets, an invalidate outside RC and XRC, a CNP.
    pub const fn send(service: Service, position: Position, extra: SendExtra) -> Option<Self> {
        use Position::{First, Last, Middle, Only};
        let code = match (service, position, extra) {
            (Service::Ud, Only, SendExtra::None) => return Some(Self::UD_SEND_ONLY),
            (Service::Ud, Only, SendExtra::Immediate) => {
                return Some(Self::UD_SEND_ONLY_WITH_IMMEDIATE);
            }
            (Service::Ud | Service::Cnp, _, _) => return None,
            (_, First, _) => Self::RC_SEND_FIRST,
            (_, Middle, _) => Self::RC_SEND_MIDDLE,
            (_, Last, SendExtra::None) => Self::RC_SEND_LAST,
            (_, Last, SendExtra::Immediate) => Self::RC_SEND_LAST_WITH_IMMEDIATE,
            (_, Only, SendExtra::None) => Self::RC_SEND_ONLY,
            (_, Only, SendExtra::Immediate) => Self::RC_SEND_ONLY_WITH_IMMEDIATE,
            (Service::Uc, _, SendExtra::Invalidate) => return None,
            (_, Last, SendExtra::Invalidate) => Self::RC_SEND_LAST_WITH_INVALIDATE,
            (_, Only, SendExtra::Invalidate) => Self::RC_SEND_ONLY_WITH_INVALIDATE,
        };
        Some(code.in_connected(service))
    }

    /// Returns the opcode of an RDMA WRITE packet at `position`. `imm` applies to the last packet
    /// only. Returns `None` for UD and CNP, which have no WRITE.
    pub const fn write(service: Service, position: Position, imm: bool) -> Option<Self> {
        let code = match (service, position, imm) {
            (Service::Ud | Service::Cnp, _, _) => return None,
            (_, Position::First, _) => Self::RC_WRITE_FIRST,
            (_, Position::Middle, _) => Self::RC_WRITE_MIDDLE,
            (_, Position::Last, false) => Self::RC_WRITE_LAST,
            (_, Position::Last, true) => Self::RC_WRITE_LAST_WITH_IMMEDIATE,
            (_, Position::Only, false) => Self::RC_WRITE_ONLY,
            (_, Position::Only, true) => Self::RC_WRITE_ONLY_WITH_IMMEDIATE,
        };
        Some(code.in_connected(service))
    }

    /// Returns the opcode of an RDMA READ response packet at `position`.
    pub const fn read_response(position: Position) -> Self {
        match position {
            Position::First => Self::RC_READ_RESPONSE_FIRST,
            Position::Middle => Self::RC_READ_RESPONSE_MIDDLE,
            Position::Last => Self::RC_READ_RESPONSE_LAST,
            Position::Only => Self::RC_READ_RESPONSE_ONLY,
        }
    }

    /// Returns the opcode of this SEND, WRITE or READ response at another position. Returns `None`
    /// for other operations, and for datagrams.
    pub(super) fn at(self, position: Position) -> Option<Self> {
        let info = self.info()?;
        let extra = match (info.has_imm, info.has_ieth) {
            (true, _) => SendExtra::Immediate,
            (_, true) => SendExtra::Invalidate,
            _ => SendExtra::None,
        };
        match info.kind {
            OpKind::Send if info.service != Service::Ud => {
                Self::send(info.service, position, extra)
            }
            OpKind::Write => Self::write(info.service, position, info.has_imm),
            OpKind::ReadResponse => Some(Self::read_response(position).in_connected(info.service)),
            _ => None,
        }
    }

    /// Returns the UC or XRC opcode that corresponds to this RC opcode; they share the low 5 bits.
    pub const fn in_connected(self, service: Service) -> Self {
        match service {
            Service::Uc => Self(self.0 | 0x20),
            Service::Xrc => Self(self.0 | 0xa0),
            _ => self,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.pad(info.name),
            None => write!(f, "UNKNOWN_0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

/// Defines each opcode by one line: its constant and its row of the table.
macro_rules! opcodes {
    ($($name:ident = $code:literal, $service:ident $kind:ident $position:ident [$($header:ident)*];)*) => {
        #[expect(missing_docs, reason = "the names are the specification's")]
        impl Opcode {
            $(pub const $name: Self = Self($code);)*
        }

        static TABLE: [Option<OpInfo>; 256] = {
            let mut table = [None; 256];
            $(table[$code] = Some(row(
                Opcode::$name, stringify!($name), Service::$service, OpKind::$kind,
                Position::$position, &[$(Ext::$header),*],
            ));)*
            table
        };
    };
}

opcodes! {
    RC_SEND_FIRST                  = 0x00, Rc Send First [];
    RC_SEND_MIDDLE                 = 0x01, Rc Send Middle [];
    RC_SEND_LAST                   = 0x02, Rc Send Last [];
    RC_SEND_LAST_WITH_IMMEDIATE    = 0x03, Rc Send Last [Imm];
    RC_SEND_ONLY                   = 0x04, Rc Send Only [];
    RC_SEND_ONLY_WITH_IMMEDIATE    = 0x05, Rc Send Only [Imm];
    RC_WRITE_FIRST                 = 0x06, Rc Write First [Reth];
    RC_WRITE_MIDDLE                = 0x07, Rc Write Middle [];
    RC_WRITE_LAST                  = 0x08, Rc Write Last [];
    RC_WRITE_LAST_WITH_IMMEDIATE   = 0x09, Rc Write Last [Imm];
    RC_WRITE_ONLY                  = 0x0a, Rc Write Only [Reth];
    RC_WRITE_ONLY_WITH_IMMEDIATE   = 0x0b, Rc Write Only [Reth Imm];
    RC_READ_REQUEST                = 0x0c, Rc ReadRequest Only [Reth];
    RC_READ_RESPONSE_FIRST         = 0x0d, Rc ReadResponse First [Aeth];
    RC_READ_RESPONSE_MIDDLE        = 0x0e, Rc ReadResponse Middle [];
    RC_READ_RESPONSE_LAST          = 0x0f, Rc ReadResponse Last [Aeth];
    RC_READ_RESPONSE_ONLY          = 0x10, Rc ReadResponse Only [Aeth];
    RC_ACKNOWLEDGE                 = 0x11, Rc Acknowledge Only [Aeth];
    RC_ATOMIC_ACKNOWLEDGE          = 0x12, Rc AtomicAcknowledge Only [Aeth AtomicAck];
    RC_COMPARE_SWAP                = 0x13, Rc CompareSwap Only [Atomic];
    RC_FETCH_ADD                   = 0x14, Rc FetchAdd Only [Atomic];
    RC_RESERVED_15                 = 0x15, Rc Reserved Only [];
    RC_SEND_LAST_WITH_INVALIDATE   = 0x16, Rc Send Last [Ieth];
    RC_SEND_ONLY_WITH_INVALIDATE   = 0x17, Rc Send Only [Ieth];
    RC_MASKED_COMPARE_SWAP         = 0x18, Rc MaskedCompareSwap Only [Atomic];
    RC_RESERVED_19                 = 0x19, Rc Reserved Only [];
    RC_RESERVED_1A                 = 0x1a, Rc Reserved Only [];
    RC_RESERVED_1B                 = 0x1b, Rc Reserved Only [];
    RC_FLUSH                       = 0x1c, Rc Flush Only [Feth Reth];
    RC_ATOMIC_WRITE                = 0x1d, Rc AtomicWrite Only [Reth];
    RC_RESERVED_1E                 = 0x1e, Rc Reserved Only [];
    RC_RESERVED_1F                 = 0x1f, Rc Reserved Only [];

    UC_SEND_FIRST                  = 0x20, Uc Send First [];
    UC_SEND_MIDDLE                 = 0x21, Uc Send Middle [];
    UC_SEND_LAST                   = 0x22, Uc Send Last [];
    UC_SEND_LAST_WITH_IMMEDIATE    = 0x23, Uc Send Last [Imm];
    UC_SEND_ONLY                   = 0x24, Uc Send Only [];
    UC_SEND_ONLY_WITH_IMMEDIATE    = 0x25, Uc Send Only [Imm];
    UC_WRITE_FIRST                 = 0x26, Uc Write First [Reth];
    UC_WRITE_MIDDLE                = 0x27, Uc Write Middle [];
    UC_WRITE_LAST                  = 0x28, Uc Write Last [];
    UC_WRITE_LAST_WITH_IMMEDIATE   = 0x29, Uc Write Last [Imm];
    UC_WRITE_ONLY                  = 0x2a, Uc Write Only [Reth];
    UC_WRITE_ONLY_WITH_IMMEDIATE   = 0x2b, Uc Write Only [Reth Imm];

    UD_SEND_ONLY                   = 0x64, Ud Send Only [Deth];
    UD_SEND_ONLY_WITH_IMMEDIATE    = 0x65, Ud Send Only [Deth Imm];

    CNP                            = 0x81, Cnp Cnp Only [CnpReserved];

    XRC_SEND_FIRST                 = 0xa0, Xrc Send First [Xrc];
    XRC_SEND_MIDDLE                = 0xa1, Xrc Send Middle [Xrc];
    XRC_SEND_LAST                  = 0xa2, Xrc Send Last [Xrc];
    XRC_SEND_LAST_WITH_IMMEDIATE   = 0xa3, Xrc Send Last [Xrc Imm];
    XRC_SEND_ONLY                  = 0xa4, Xrc Send Only [Xrc];
    XRC_SEND_ONLY_WITH_IMMEDIATE   = 0xa5, Xrc Send Only [Xrc Imm];
    XRC_WRITE_FIRST                = 0xa6, Xrc Write First [Xrc Reth];
    XRC_WRITE_MIDDLE               = 0xa7, Xrc Write Middle [Xrc];
    XRC_WRITE_LAST                 = 0xa8, Xrc Write Last [Xrc];
    XRC_WRITE_LAST_WITH_IMMEDIATE  = 0xa9, Xrc Write Last [Xrc Imm];
    XRC_WRITE_ONLY                 = 0xaa, Xrc Write Only [Xrc Reth];
    XRC_WRITE_ONLY_WITH_IMMEDIATE  = 0xab, Xrc Write Only [Xrc Reth Imm];
    XRC_READ_REQUEST               = 0xac, Xrc ReadRequest Only [Xrc Reth];
    XRC_READ_RESPONSE_FIRST        = 0xad, Xrc ReadResponse First [Aeth];
    XRC_READ_RESPONSE_MIDDLE       = 0xae, Xrc ReadResponse Middle [];
    XRC_READ_RESPONSE_LAST         = 0xaf, Xrc ReadResponse Last [Aeth];
    XRC_READ_RESPONSE_ONLY         = 0xb0, Xrc ReadResponse Only [Aeth];
    XRC_ACKNOWLEDGE                = 0xb1, Xrc Acknowledge Only [Aeth];
    XRC_ATOMIC_ACKNOWLEDGE         = 0xb2, Xrc AtomicAcknowledge Only [Aeth AtomicAck];
    XRC_COMPARE_SWAP               = 0xb3, Xrc CompareSwap Only [Xrc Atomic];
    XRC_FETCH_ADD                  = 0xb4, Xrc FetchAdd Only [Xrc Atomic];
    XRC_RESERVED_B5                = 0xb5, Xrc Reserved Only [];
    XRC_SEND_LAST_WITH_INVALIDATE  = 0xb6, Xrc Send Last [Xrc Ieth];
    XRC_SEND_ONLY_WITH_INVALIDATE  = 0xb7, Xrc Send Only [Xrc Ieth];
    XRC_RESERVED_B8                = 0xb8, Xrc Reserved Only [];
    XRC_RESERVED_B9                = 0xb9, Xrc Reserved Only [];
    XRC_RESERVED_BA                = 0xba, Xrc Reserved Only [];
    XRC_RESERVED_BB                = 0xbb, Xrc Reserved Only [];
    XRC_FLUSH                      = 0xbc, Xrc Flush Only [Xrc Feth Reth];
    XRC_ATOMIC_WRITE               = 0xbd, Xrc AtomicWrite Only [Xrc Reth];
    XRC_RESERVED_BE                = 0xbe, Xrc Reserved Only [];
    XRC_RESERVED_BF                = 0xbf, Xrc Reserved Only [];
}

/// The row used for opcodes that are not in the table: a BTH alone.
pub(super) static BARE: OpInfo =
    row(Opcode(0xff), "UNKNOWN", Service::Cnp, OpKind::Send, Position::Only, &[]);

/// The extension headers that may follow the BTH.
#[derive(Clone, Copy)]
enum Ext {
    Imm,
    Ieth,
    Reth,
    Aeth,
    Atomic,
    AtomicAck,
    Deth,
    Xrc,
    Feth,
    CnpReserved,
}

const fn row(
    opcode: Opcode,
    name: &'static str,
    service: Service,
    kind: OpKind,
    position: Position,
    headers: &[Ext],
) -> OpInfo {
    let starts = matches!(position, Position::First | Position::Only);
    let ends = matches!(position, Position::Last | Position::Only);
    let mut info = OpInfo {
        opcode,
        name,
        service,
        kind,
        position,
        has_imm: false,
        has_ieth: false,
        has_reth: false,
        has_aeth: false,
        has_atomic: false,
        has_atomic_ack: false,
        has_deth: false,
        has_xrceth: false,
        has_feth: false,
        header_len: header_len::BTH,
        is_request: false,
        has_payload: matches!(
            kind,
            OpKind::Send
                | OpKind::Write
                | OpKind::ReadResponse
                | OpKind::AtomicWrite
                | OpKind::MaskedCompareSwap
                | OpKind::Reserved
        ),
        starts,
        ends,
        consumes_recv: false,
        completes_recv: false,
    };
    let mut i = 0;
    while i < headers.len() {
        info.header_len += match headers[i] {
            Ext::Imm => {
                info.has_imm = true;
                header_len::WORD
            }
            Ext::Ieth => {
                info.has_ieth = true;
                header_len::WORD
            }
            Ext::Reth => {
                info.has_reth = true;
                header_len::RETH
            }
            Ext::Aeth => {
                info.has_aeth = true;
                header_len::AETH
            }
            Ext::Atomic => {
                info.has_atomic = true;
                header_len::ATOMIC_ETH
            }
            Ext::AtomicAck => {
                info.has_atomic_ack = true;
                header_len::ATOMIC_ACK_ETH
            }
            Ext::Deth => {
                info.has_deth = true;
                header_len::DETH
            }
            Ext::Xrc => {
                info.has_xrceth = true;
                header_len::WORD
            }
            Ext::Feth => {
                info.has_feth = true;
                header_len::WORD
            }
            Ext::CnpReserved => header_len::CNP_RESERVED,
        };
        i += 1;
    }
    info.is_request = !info.is_response() && !matches!(kind, OpKind::Cnp);
    let is_send = matches!(kind, OpKind::Send);
    let is_write_imm = matches!(kind, OpKind::Write) && info.has_imm;
    info.consumes_recv = (is_send && starts) || is_write_imm;
    info.completes_recv = (is_send && ends) || is_write_imm;
    info
}

#[cfg(test)]
mod tests;
