//! Headers of tunnels, and of the link layers that occur inside them.
//!
//! VXLAN (RFC 7348, with the group policy and VXLAN-GPE drafts), GENEVE (RFC 8926), GTP-U (3GPP
//! TS 29.281), GRE (RFC 2784, 2890, 2637) with NVGRE (RFC 7637) and ERSPAN (draft-foschiano-erspan),
//! MPLS (RFC 3032) with pseudowires (RFC 4385), NSH (RFC 8300), the I-TAG of IEEE 802.1ah, PPP
//! (RFC 1661, 1662) and PPPoE (RFC 2516), LLC with SNAP (IEEE 802.2, RFC 1042), and IEEE 802.11.

use super::header;

header! {
    /// VXLAN, with the group of the group policy extension.
    pub VXLAN "VXLAN", 8;
    "Flags" [0, 0, 16] Hex,
    "GroupPolicyID" [2, 0, 16] Dec,
    "VNI" [4, 0, 24] Dec,
    "Reserved" [7, 0, 8] Hex,
}

header! {
    /// VXLAN with a protocol other than Ethernet inside.
    pub VXLAN_GPE "VXLAN_GPE", 8;
    "Flags" [0, 0, 8] Hex,
    "Reserved1" [1, 0, 16] Hex,
    "NextProtocol" [3, 0, 8] Dec,
    "VNI" [4, 0, 24] Dec,
    "Reserved2" [7, 0, 8] Hex,
}

header! {
    /// GENEVE, without options. The length of the options is in words of 4 bytes.
    pub GENEVE "GENEVE", 8;
    "Version" [0, 0, 2] Dec,
    "OptLen" [0, 2, 6] Dec,
    "O" [1, 0, 1] Dec,
    "C" [1, 1, 1] Dec,
    "Reserved1" [1, 2, 6] Hex,
    "ProtocolType" [2, 0, 16] Hex,
    "VNI" [4, 0, 24] Dec,
    "Reserved2" [7, 0, 8] Hex,
}

header! {
    /// An option of GENEVE.
    pub GENEVE_OPTION "GENEVEOption", 0;
    "OptionClass" [0, 0, 16] Hex,
    "Type" [2, 0, 8] Hex,
    "Reserved" [3, 0, 3] Hex,
    "Length" [3, 3, 5] Dec,
    "Data" [4, 0, 0] Bytes,
}

header! {
    /// GTP-U.
    pub GTP "GTP", 8;
    "Version" [0, 0, 3] Dec,
    "PT" [0, 3, 1] Dec,
    "Reserved" [0, 4, 1] Dec,
    "E" [0, 5, 1] Dec,
    "S" [0, 6, 1] Dec,
    "PN" [0, 7, 1] Dec,
    "MessageType" [1, 0, 8] Dec,
    "Length" [2, 0, 16] Dec,
    "TEID" [4, 0, 32] Hex,
}

header! {
    /// The fields that follow a GTP header with one of the flags E, S and PN.
    pub GTP_OPTIONAL "GTPOptional", 4;
    "SequenceNumber" [0, 0, 16] Dec,
    "N_PDUNumber" [2, 0, 8] Dec,
    "NextExtensionHeaderType" [3, 0, 8] Hex,
}

header! {
    /// An extension header of GTP. Its last byte is the type of the next one.
    pub GTP_EXTENSION "GTPExtension", 0;
    "Length" [0, 0, 8] Dec,
    "Data" [1, 0, 0] Bytes,
}

header! {
    /// GRE, without the optional fields.
    pub GRE "GRE", 4;
    "C" [0, 0, 1] Dec,
    "R" [0, 1, 1] Dec,
    "K" [0, 2, 1] Dec,
    "S" [0, 3, 1] Dec,
    "SSR" [0, 4, 1] Dec,
    "Recur" [0, 5, 3] Dec,
    "A" [1, 0, 1] Dec,
    "Flags" [1, 1, 4] Hex,
    "Version" [1, 5, 3] Dec,
    "ProtocolType" [2, 0, 16] Hex,
}

header! {
    /// The checksum of GRE.
    pub GRE_CHECKSUM "GREChecksum", 4;
    "Checksum" [0, 0, 16] Hex,
    "Offset" [2, 0, 16] Dec,
}

header! {
    /// The key of GRE.
    pub GRE_KEY "GREKey", 4;
    "Key" [0, 0, 32] Hex,
}

header! {
    /// The key of GRE that carries Ethernet, as NVGRE divides it.
    pub NVGRE "NVGRE", 4;
    "VSID" [0, 0, 24] Dec,
    "FlowID" [3, 0, 8] Hex,
}

header! {
    /// The key of GRE version 1 (PPTP).
    pub GRE_CALL "GRECall", 4;
    "PayloadLength" [0, 0, 16] Dec,
    "CallID" [2, 0, 16] Dec,
}

header! {
    /// The sequence number of GRE.
    pub GRE_SEQUENCE "GRESequence", 4;
    "SequenceNumber" [0, 0, 32] Dec,
}

header! {
    /// The acknowledgment number of GRE version 1.
    pub GRE_ACKNOWLEDGMENT "GREAcknowledgment", 4;
    "AcknowledgmentNumber" [0, 0, 32] Dec,
}

header! {
    /// ERSPAN type II.
    pub ERSPAN_II "ERSPAN_II", 8;
    "Version" [0, 0, 4] Dec,
    "VLAN" [0, 4, 12] Dec,
    "COS" [2, 0, 3] Dec,
    "En" [2, 3, 2] Dec,
    "T" [2, 5, 1] Dec,
    "SessionID" [2, 6, 10] Dec,
    "Reserved" [4, 0, 12] Hex,
    "Index" [5, 4, 20] Dec,
}

header! {
    /// ERSPAN type III, without the platform's part.
    pub ERSPAN_III "ERSPAN_III", 12;
    "Version" [0, 0, 4] Dec,
    "VLAN" [0, 4, 12] Dec,
    "COS" [2, 0, 3] Dec,
    "BSO" [2, 3, 2] Dec,
    "T" [2, 5, 1] Dec,
    "SessionID" [2, 6, 10] Dec,
    "Timestamp" [4, 0, 32] Hex,
    "SGT" [8, 0, 16] Dec,
    "P" [10, 0, 1] Dec,
    "FT" [10, 1, 5] Dec,
    "HwID" [10, 6, 6] Dec,
    "D" [11, 4, 1] Dec,
    "Gra" [11, 5, 2] Dec,
    "O" [11, 7, 1] Dec,
}

header! {
    /// The platform's part of ERSPAN type III.
    pub ERSPAN_PLATFORM "ERSPANPlatform", 8;
    "PlatfID" [0, 0, 6] Dec,
    "PlatformInfo" [0, 6, 58] Hex,
}

header! {
    /// An entry of an MPLS label stack.
    pub MPLS "MPLS", 4;
    "Label" [0, 0, 20] Dec,
    "TC" [2, 4, 3] Dec,
    "S" [2, 7, 1] Dec,
    "TTL" [3, 0, 8] Dec,
}

header! {
    /// The control word of a pseudowire.
    pub CONTROL_WORD "ControlWord", 4;
    "Zero" [0, 0, 4] Dec,
    "Flags" [0, 4, 4] Hex,
    "FRG" [1, 0, 2] Dec,
    "Length" [1, 2, 6] Dec,
    "SequenceNumber" [2, 0, 16] Dec,
}

header! {
    /// NSH, without context headers. The length of the whole is in words of 4 bytes.
    pub NSH "NSH", 8;
    "Version" [0, 0, 2] Dec,
    "O" [0, 2, 1] Dec,
    "Unassigned1" [0, 3, 1] Dec,
    "TTL" [0, 4, 6] Dec,
    "Length" [1, 2, 6] Dec,
    "Unassigned2" [2, 0, 4] Hex,
    "MDType" [2, 4, 4] Dec,
    "NextProtocol" [3, 0, 8] Dec,
    "ServicePathIdentifier" [4, 0, 24] Dec,
    "ServiceIndex" [7, 0, 8] Dec,
}

header! {
    /// The context headers of NSH.
    pub NSH_CONTEXT "NSHContext", 0;
    "Data" [0, 0, 0] Bytes,
}

header! {
    /// The tag of IEEE 802.1ah (provider backbone bridges), without its first two bytes.
    pub I_TAG "I_TAG", 4;
    "PCP" [0, 0, 3] Dec,
    "DEI" [0, 3, 1] Dec,
    "UCA" [0, 4, 1] Dec,
    "Reserved" [0, 5, 3] Dec,
    "I_SID" [1, 0, 24] Dec,
}

header! {
    /// PPPoE.
    pub PPPOE "PPPoE", 6;
    "Version" [0, 0, 4] Dec,
    "Type" [0, 4, 4] Dec,
    "Code" [1, 0, 8] Hex,
    "SessionID" [2, 0, 16] Dec,
    "Length" [4, 0, 16] Dec,
}

header! {
    /// The direction in front of a PPP frame in a capture: 0 is received.
    pub PPP_DIRECTION "PPPDirection", 1;
    "Direction" [0, 0, 8] Dec,
}

header! {
    /// Address and control, which PPP has in HDLC-like framing.
    pub PPP_FRAMING "PPPFraming", 2;
    "Address" [0, 0, 8] Hex,
    "Control" [1, 0, 8] Hex,
}

header! {
    /// PPP.
    pub PPP "PPP", 2;
    "Protocol" [0, 0, 16] Hex,
}

header! {
    /// PPP with a compressed protocol field.
    pub PPP_COMPRESSED "PPP", 1;
    "Protocol" [0, 0, 8] Hex,
}

header! {
    /// Cisco HDLC.
    pub CISCO_HDLC "CiscoHDLC", 4;
    "Address" [0, 0, 8] Hex,
    "Control" [1, 0, 8] Hex,
    "Protocol" [2, 0, 16] Hex,
}

header! {
    /// LLC with SNAP.
    pub SNAP "LLC", 8;
    "DSAP" [0, 0, 8] Hex,
    "SSAP" [1, 0, 8] Hex,
    "Control" [2, 0, 8] Hex,
    "OUI" [3, 0, 24] Hex,
    "PID" [6, 0, 16] Hex,
}

header! {
    /// IEEE 802.11, without the fields that only some frames have.
    pub WIFI "WLAN", 24;
    "Subtype" [0, 0, 4] Dec,
    "Type" [0, 4, 2] Dec,
    "Version" [0, 6, 2] Dec,
    "Order" [1, 0, 1] Dec,
    "Protected" [1, 1, 1] Dec,
    "MoreData" [1, 2, 1] Dec,
    "PowerManagement" [1, 3, 1] Dec,
    "Retry" [1, 4, 1] Dec,
    "MoreFragments" [1, 5, 1] Dec,
    "FromDS" [1, 6, 1] Dec,
    "ToDS" [1, 7, 1] Dec,
    "Duration" [2, 0, 16] Little,
    "Address1" [4, 0, 48] Mac,
    "Address2" [10, 0, 48] Mac,
    "Address3" [16, 0, 48] Mac,
    "SequenceControl" [22, 0, 16] Little,
}

header! {
    /// The fourth address of IEEE 802.11.
    pub WIFI_ADDRESS "WLANAddress", 6;
    "Address4" [0, 0, 48] Mac,
}

header! {
    /// The QoS control field of IEEE 802.11.
    pub WIFI_QOS "WLANQoS", 2;
    "QoSControl" [0, 0, 16] Little,
}

header! {
    /// The HT control field of IEEE 802.11.
    pub WIFI_HT "WLANHT", 4;
    "HTControl" [0, 0, 32] Little,
}

header! {
    /// What a capture says of the reception of an 802.11 frame.
    pub RADIOTAP "Radiotap", 0;
    "Version" [0, 0, 8] Dec,
    "Pad" [1, 0, 8] Dec,
    "Length" [2, 0, 16] Little,
    "Present" [4, 0, 32] Little,
    "Data" [8, 0, 0] Bytes,
}
