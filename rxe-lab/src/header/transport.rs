//! Transport headers. IBTA 9.2 and 9.3; A14 (XRCETH), A17.9.3 (CNP), A19 (FETH).

use super::header;

header! {
    /// Base transport header. IBTA 9.2.
    pub BTH "BTH", 12;
    "OpCode" [0, 0, 8] Dec,
    "SE" [1, 0, 1] Dec,
    "M" [1, 1, 1] Dec,
    "Pad" [1, 2, 2] Dec,
    "TVer" [1, 4, 4] Dec,
    "P_Key" [2, 0, 16] Hex,
    "F" [4, 0, 1] Dec,
    "B" [4, 1, 1] Dec,
    "Resv6a" [4, 2, 6] Dec,
    "DestQP" [5, 0, 24] Hex,
    "A" [8, 0, 1] Dec,
    "Resv7" [8, 1, 7] Dec,
    "PSN" [9, 0, 24] Hex,
}

header! {
    /// Datagram extended transport header. IBTA 9.3.2.
    pub DETH "DETH", 8;
    "Q_Key" [0, 0, 32] Hex,
    "Resv8" [4, 0, 8] Dec,
    "SrcQP" [5, 0, 24] Hex,
}

header! {
    /// RDMA extended transport header. IBTA 9.3.3.
    pub RETH "RETH", 16;
    "VA" [0, 0, 64] Hex,
    "R_Key" [8, 0, 32] Hex,
    "DMALen" [12, 0, 32] Dec,
}

header! {
    /// Atomic extended transport header. IBTA 9.3.4.
    pub ATOMIC_ETH "AtomicETH", 28;
    "VA" [0, 0, 64] Hex,
    "R_Key" [8, 0, 32] Hex,
    "SwapDt" [12, 0, 64] Hex,
    "CmpDt" [20, 0, 64] Hex,
}

header! {
    /// Acknowledge extended transport header. IBTA 9.3.5.
    pub AETH "AETH", 4;
    "Syndrome" [0, 0, 8] Hex,
    "MSN" [1, 0, 24] Dec,
}

header! {
    /// Atomic acknowledge extended transport header. IBTA 9.5.3.
    pub ATOMIC_ACK_ETH "AtomicAckETH", 8;
    "OrigRemDt" [0, 0, 64] Hex,
}

header! {
    /// Immediate data. IBTA 9.3.6.
    pub IMM_DT "ImmDt", 4;
    "ImmDt" [0, 0, 32] Hex,
}

header! {
    /// Invalidate extended transport header. IBTA 9.3.7.
    pub IETH "IETH", 4;
    "R_Key" [0, 0, 32] Hex,
}

header! {
    /// XRC extended transport header. IBTA A14.
    pub XRCETH "XRCETH", 4;
    "Resv8" [0, 0, 8] Dec,
    "XRCSRQ" [1, 0, 24] Hex,
}

header! {
    /// Flush extended transport header. IBTA A19.
    pub FETH "FETH", 4;
    "Resv26" [0, 0, 26] Hex,
    "SEL" [3, 2, 2] Dec,
    "PLT" [3, 4, 4] Dec,
}

header! {
    /// The reserved bytes of a congestion notification. IBTA A17.9.3.
    pub CNP "CNP", 16;
    "Reserved" [0, 0, 128] Bytes,
}

header! {
    /// The payload, without the pad.
    pub PAYLOAD "Payload", 0;
    "Data" [0, 0, 0] Bytes,
}

header! {
    /// Invariant CRC. IBTA 7.8.1.
    pub ICRC "ICRC", 4;
    "ICRC" [0, 0, 32] Hex,
}
