//! Headers of the network layer: IP (RFC 791, RFC 8200), GRH (IBTA 8.3), UDP (RFC 768).

use super::header;

header! {
    /// IPv4, without options.
    pub IPV4 "IPv4", 20;
    "Version" [0, 0, 4] Dec,
    "IHL" [0, 4, 4] Dec,
    "DSCP" [1, 0, 6] Dec,
    "ECN" [1, 6, 2] Dec,
    "TotalLength" [2, 0, 16] Dec,
    "Identification" [4, 0, 16] Hex,
    "Flags" [6, 0, 3] Hex,
    "FragmentOffset" [6, 3, 13] Dec,
    "TimeToLive" [8, 0, 8] Dec,
    "Protocol" [9, 0, 8] Dec,
    "HeaderChecksum" [10, 0, 16] Hex,
    "SourceAddress" [12, 0, 32] Ipv4,
    "DestinationAddress" [16, 0, 32] Ipv4,
}

header! {
    /// The options of an IPv4 header.
    pub IPV4_OPTIONS "IPv4Options", 0;
    "Options" [0, 0, 0] Bytes,
}

header! {
    /// IPv6.
    pub IPV6 "IPv6", 40;
    "Version" [0, 0, 4] Dec,
    "DSCP" [0, 4, 6] Dec,
    "ECN" [1, 2, 2] Dec,
    "FlowLabel" [1, 4, 20] Hex,
    "PayloadLength" [4, 0, 16] Dec,
    "NextHeader" [6, 0, 8] Dec,
    "HopLimit" [7, 0, 8] Dec,
    "SourceAddress" [8, 0, 128] Ipv6,
    "DestinationAddress" [24, 0, 128] Ipv6,
}

header! {
    /// An extension header of IPv6.
    pub IPV6_EXTENSION "IPv6Extension", 0;
    "NextHeader" [0, 0, 8] Dec,
    "HdrExtLen" [1, 0, 8] Dec,
    "Data" [2, 0, 0] Bytes,
}

header! {
    /// The fragment header of IPv6.
    pub IPV6_FRAGMENT "IPv6Fragment", 8;
    "NextHeader" [0, 0, 8] Dec,
    "Reserved" [1, 0, 8] Hex,
    "FragmentOffset" [2, 0, 13] Dec,
    "Res" [3, 5, 2] Dec,
    "M" [3, 7, 1] Dec,
    "Identification" [4, 0, 32] Hex,
}

header! {
    /// Global route header. IBTA 8.3.
    pub GRH "GRH", 40;
    "IPVer" [0, 0, 4] Dec,
    "TClass" [0, 4, 8] Hex,
    "FlowLabel" [1, 4, 20] Hex,
    "PayLen" [4, 0, 16] Dec,
    "NxtHdr" [6, 0, 8] Hex,
    "HopLmt" [7, 0, 8] Dec,
    "SGID" [8, 0, 128] Ipv6,
    "DGID" [24, 0, 128] Ipv6,
}

header! {
    /// UDP.
    pub UDP "UDP", 8;
    "SourcePort" [0, 0, 16] Dec,
    "DestinationPort" [2, 0, 16] Dec,
    "Length" [4, 0, 16] Dec,
    "Checksum" [6, 0, 16] Hex,
}
