//! Headers of the link layer.
//!
//! Ethernet (IEEE 802.3, 802.1Q), the pseudo-headers of libpcap, the LRH of native InfiniBand (IBTA
//! 7.7), and ERF, the records of Endace cards.

use super::header;

header! {
    /// Ethernet.
    pub ETHERNET "Ethernet", 14;
    "Destination" [0, 0, 48] Mac,
    "Source" [6, 0, 48] Mac,
    "EtherType" [12, 0, 16] Hex,
}

header! {
    /// A VLAN tag without its first two bytes, which belong to the header before it.
    pub VLAN "VLAN", 4;
    "PCP" [0, 0, 3] Dec,
    "DEI" [0, 3, 1] Dec,
    "VID" [0, 4, 12] Dec,
    "EtherType" [2, 0, 16] Hex,
}

header! {
    /// Linux cooked capture, version 1.
    pub SLL "LinuxCooked", 16;
    "PacketType" [0, 0, 16] Dec,
    "ARPHRD" [2, 0, 16] Dec,
    "AddressLength" [4, 0, 16] Dec,
    "Address" [6, 0, 64] Bytes,
    "EtherType" [14, 0, 16] Hex,
}

header! {
    /// Linux cooked capture, version 2.
    pub SLL2 "LinuxCooked2", 20;
    "EtherType" [0, 0, 16] Hex,
    "Reserved" [2, 0, 16] Hex,
    "InterfaceIndex" [4, 0, 32] Dec,
    "ARPHRD" [8, 0, 16] Dec,
    "PacketType" [10, 0, 8] Dec,
    "AddressLength" [11, 0, 8] Dec,
    "Address" [12, 0, 64] Bytes,
}

header! {
    /// BSD loopback: an address family in the byte order of the capturing host.
    pub LOOPBACK "Loopback", 4;
    "Family" [0, 0, 32] Hex,
}

header! {
    /// The record header of ERF.
    pub ERF "ERF", 16;
    "Timestamp" [0, 0, 64] Bytes,
    "Extension" [8, 0, 1] Dec,
    "Type" [8, 1, 7] Dec,
    "Flags" [9, 0, 8] Hex,
    "RecordLength" [10, 0, 16] Dec,
    "LossCounter" [12, 0, 16] Dec,
    "WireLength" [14, 0, 16] Dec,
}

header! {
    /// An extension header of ERF.
    pub ERF_EXTENSION "ERFExtension", 8;
    "More" [0, 0, 1] Dec,
    "Type" [0, 1, 7] Dec,
    "Value" [1, 0, 56] Hex,
}

header! {
    /// Local route header. IBTA 7.7.
    pub LRH "LRH", 8;
    "VL" [0, 0, 4] Dec,
    "LVer" [0, 4, 4] Dec,
    "SL" [1, 0, 4] Dec,
    "Resv2" [1, 4, 2] Dec,
    "LNH" [1, 6, 2] Dec,
    "DLID" [2, 0, 16] Hex,
    "Resv5" [4, 0, 5] Dec,
    "PktLen" [4, 5, 11] Dec,
    "SLID" [6, 0, 16] Hex,
}
