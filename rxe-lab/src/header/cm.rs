//! Headers of management datagrams.
//!
//! The MAD header (IBTA 13.4.3), the messages of the communication manager (IBTA 12.6 to 12.11), and
//! the headers that RDMA CM puts into them (IBTA A11).

use super::{Header, header};

/// Returns the CM message with this attribute ID; its bytes follow the MAD header.
pub fn cm(attribute: u16) -> Option<&'static Header> {
    Some(match attribute {
        0x10 => &REQ,
        0x11 => &MRA,
        0x12 => &REJ,
        0x13 => &REP,
        0x14 => &RTU,
        0x15 => &DREQ,
        0x16 => &DREP,
        0x17 => &SIDR_REQ,
        0x18 => &SIDR_REP,
        0x19 => &LAP,
        0x1a => &APR,
        _ => return None,
    })
}

/// The offset of the service ID in REQ and SIDR_REQ, in bytes.
pub const SERVICE_ID: usize = 8;

/// Returns the offset of the private data in REQ or SIDR_REQ; `None` for other messages.
pub fn private_data_of_request(message: &Header) -> Option<usize> {
    let asks = [REQ.name, SIDR_REQ.name].contains(&message.name);
    Some(message.fields.last().filter(|_| asks)?.byte)
}

header! {
    /// The header of a management datagram. IBTA 13.4.3.
    pub MAD "MAD", 24;
    "BaseVersion" [0, 0, 8] Dec,
    "MgmtClass" [1, 0, 8] Hex,
    "ClassVersion" [2, 0, 8] Dec,
    "Method" [3, 0, 8] Hex,
    "Status" [4, 0, 16] Hex,
    "ClassSpecific" [6, 0, 16] Hex,
    "TransactionID" [8, 0, 64] Hex,
    "AttributeID" [16, 0, 16] Hex,
    "Reserved" [18, 0, 16] Hex,
    "AttributeModifier" [20, 0, 32] Hex,
}

header! {
    /// Request for communication. IBTA 12.6.5.
    pub(super) REQ "REQ", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "Reserved1" [4, 0, 32] Hex,
    "ServiceID" [8, 0, 64] Hex,
    "LocalCAGUID" [16, 0, 64] Hex,
    "Reserved2" [24, 0, 32] Hex,
    "LocalQ_Key" [28, 0, 32] Hex,
    "LocalQPN" [32, 0, 24] Hex,
    "ResponderResources" [35, 0, 8] Dec,
    "LocalEECN" [36, 0, 24] Hex,
    "InitiatorDepth" [39, 0, 8] Dec,
    "RemoteEECN" [40, 0, 24] Hex,
    "RemoteCMResponseTimeout" [43, 0, 5] Dec,
    "TransportServiceType" [43, 5, 2] Dec,
    "EndToEndFlowControl" [43, 7, 1] Dec,
    "StartingPSN" [44, 0, 24] Hex,
    "LocalCMResponseTimeout" [47, 0, 5] Dec,
    "RetryCount" [47, 5, 3] Dec,
    "PartitionKey" [48, 0, 16] Hex,
    "PathPacketPayloadMTU" [50, 0, 4] Dec,
    "RDCExists" [50, 4, 1] Dec,
    "RNRRetryCount" [50, 5, 3] Dec,
    "MaxCMRetries" [51, 0, 4] Dec,
    "SRQ" [51, 4, 1] Dec,
    "ExtendedTransportType" [51, 5, 3] Dec,
    "PrimaryLocalPortLID" [52, 0, 16] Hex,
    "PrimaryRemotePortLID" [54, 0, 16] Hex,
    "PrimaryLocalPortGID" [56, 0, 128] Ipv6,
    "PrimaryRemotePortGID" [72, 0, 128] Ipv6,
    "PrimaryFlowLabel" [88, 0, 20] Hex,
    "Reserved3" [90, 4, 6] Hex,
    "PrimaryPacketRate" [91, 2, 6] Dec,
    "PrimaryTrafficClass" [92, 0, 8] Hex,
    "PrimaryHopLimit" [93, 0, 8] Dec,
    "PrimarySL" [94, 0, 4] Dec,
    "PrimarySubnetLocal" [94, 4, 1] Dec,
    "Reserved4" [94, 5, 3] Hex,
    "PrimaryLocalACKTimeout" [95, 0, 5] Dec,
    "Reserved5" [95, 5, 3] Hex,
    "AlternateLocalPortLID" [96, 0, 16] Hex,
    "AlternateRemotePortLID" [98, 0, 16] Hex,
    "AlternateLocalPortGID" [100, 0, 128] Ipv6,
    "AlternateRemotePortGID" [116, 0, 128] Ipv6,
    "AlternateFlowLabel" [132, 0, 20] Hex,
    "Reserved6" [134, 4, 6] Hex,
    "AlternatePacketRate" [135, 2, 6] Dec,
    "AlternateTrafficClass" [136, 0, 8] Hex,
    "AlternateHopLimit" [137, 0, 8] Dec,
    "AlternateSL" [138, 0, 4] Dec,
    "AlternateSubnetLocal" [138, 4, 1] Dec,
    "Reserved7" [138, 5, 3] Hex,
    "AlternateLocalACKTimeout" [139, 0, 5] Dec,
    "Reserved8" [139, 5, 3] Hex,
    "PrivateData" [140, 0, 0] Bytes,
}

header! {
    /// Message receipt acknowledgement. IBTA 12.6.6.
    pub(super) MRA "MRA", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "MessageMRAed" [8, 0, 2] Dec,
    "Reserved1" [8, 2, 6] Hex,
    "ServiceTimeout" [9, 0, 5] Dec,
    "Reserved2" [9, 5, 3] Hex,
    "PrivateData" [10, 0, 0] Bytes,
}

header! {
    /// Reject. IBTA 12.6.7.
    pub(super) REJ "REJ", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "MessageREJected" [8, 0, 2] Dec,
    "Reserved1" [8, 2, 6] Hex,
    "RejectInfoLength" [9, 0, 7] Dec,
    "Reserved2" [9, 7, 1] Hex,
    "Reason" [10, 0, 16] Dec,
    "ARI" [12, 0, 576] Bytes,
    "PrivateData" [84, 0, 0] Bytes,
}

header! {
    /// Reply to request for communication. IBTA 12.6.8.
    pub(super) REP "REP", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "LocalQ_Key" [8, 0, 32] Hex,
    "LocalQPN" [12, 0, 24] Hex,
    "Reserved1" [15, 0, 8] Hex,
    "LocalEEContextNumber" [16, 0, 24] Hex,
    "Reserved2" [19, 0, 8] Hex,
    "StartingPSN" [20, 0, 24] Hex,
    "Reserved3" [23, 0, 8] Hex,
    "ResponderResources" [24, 0, 8] Dec,
    "InitiatorDepth" [25, 0, 8] Dec,
    "TargetACKDelay" [26, 0, 5] Dec,
    "FailoverAccepted" [26, 5, 2] Dec,
    "EndToEndFlowControl" [26, 7, 1] Dec,
    "RNRRetryCount" [27, 0, 3] Dec,
    "SRQ" [27, 3, 1] Dec,
    "Reserved4" [27, 4, 4] Hex,
    "LocalCAGUID" [28, 0, 64] Hex,
    "PrivateData" [36, 0, 0] Bytes,
}

header! {
    /// Ready to use. IBTA 12.6.9.
    pub(super) RTU "RTU", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "PrivateData" [8, 0, 0] Bytes,
}

header! {
    /// Request for communication release. IBTA 12.6.10.
    pub(super) DREQ "DREQ", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "RemoteQPN" [8, 0, 24] Hex,
    "Reserved1" [11, 0, 8] Hex,
    "PrivateData" [12, 0, 0] Bytes,
}

header! {
    /// Reply to request for communication release. IBTA 12.6.11.
    pub(super) DREP "DREP", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "PrivateData" [8, 0, 0] Bytes,
}

header! {
    /// Service ID resolution request. IBTA 12.11.1.
    pub(super) SIDR_REQ "SIDR_REQ", 232;
    "RequestID" [0, 0, 32] Hex,
    "PartitionKey" [4, 0, 16] Hex,
    "Reserved1" [6, 0, 16] Hex,
    "ServiceID" [8, 0, 64] Hex,
    "PrivateData" [16, 0, 0] Bytes,
}

header! {
    /// Service ID resolution response. IBTA 12.11.2.
    pub(super) SIDR_REP "SIDR_REP", 232;
    "RequestID" [0, 0, 32] Hex,
    "Status" [4, 0, 8] Dec,
    "AdditionalInformationLength" [5, 0, 8] Dec,
    "Reserved1" [6, 0, 16] Hex,
    "QPN" [8, 0, 24] Hex,
    "Reserved2" [11, 0, 8] Hex,
    "ServiceID" [12, 0, 64] Hex,
    "Q_Key" [20, 0, 32] Hex,
    "AdditionalInformation" [24, 0, 576] Bytes,
    "PrivateData" [96, 0, 0] Bytes,
}

header! {
    /// Load alternate path. IBTA 12.8.1.
    pub(super) LAP "LAP", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "Reserved1" [8, 0, 32] Hex,
    "RemoteQPN" [12, 0, 24] Hex,
    "RemoteCMResponseTimeout" [15, 0, 5] Dec,
    "Reserved2" [15, 5, 3] Hex,
    "Reserved3" [16, 0, 32] Hex,
    "AlternateLocalPortLID" [20, 0, 16] Hex,
    "AlternateRemotePortLID" [22, 0, 16] Hex,
    "AlternateLocalPortGID" [24, 0, 128] Ipv6,
    "AlternateRemotePortGID" [40, 0, 128] Ipv6,
    "AlternateFlowLabel" [56, 0, 20] Hex,
    "Reserved4" [58, 4, 4] Hex,
    "AlternateTrafficClass" [59, 0, 8] Hex,
    "AlternateHopLimit" [60, 0, 8] Dec,
    "Reserved5" [61, 0, 2] Hex,
    "AlternatePacketRate" [61, 2, 6] Dec,
    "AlternateSL" [62, 0, 4] Dec,
    "AlternateSubnetLocal" [62, 4, 1] Dec,
    "Reserved6" [62, 5, 3] Hex,
    "AlternateLocalACKTimeout" [63, 0, 5] Dec,
    "Reserved7" [63, 5, 3] Hex,
    "PrivateData" [64, 0, 0] Bytes,
}

header! {
    /// Alternate path response. IBTA 12.8.2.
    pub(super) APR "APR", 232;
    "LocalCommunicationID" [0, 0, 32] Hex,
    "RemoteCommunicationID" [4, 0, 32] Hex,
    "AdditionalInformationLength" [8, 0, 8] Dec,
    "APStatus" [9, 0, 8] Dec,
    "Reserved1" [10, 0, 16] Hex,
    "AdditionalInformation" [12, 0, 576] Bytes,
    "PrivateData" [84, 0, 0] Bytes,
}

header! {
    /// A service ID that names an RDMA CM port. IBTA A11.
    pub IP_SERVICE "IP_CM_Service", 8;
    "Prefix" [0, 0, 40] Hex,
    "Protocol" [5, 0, 8] Hex,
    "DestinationPort" [6, 0, 16] Dec,
}

header! {
    /// The IPv4 header that RDMA CM puts before the private data of a request. IBTA A11.
    pub IP_CM "IP_CM", 36;
    "MajorVersion" [0, 0, 4] Dec,
    "MinorVersion" [0, 4, 4] Dec,
    "IPVersion" [1, 0, 4] Dec,
    "Reserved1" [1, 4, 4] Hex,
    "SourcePort" [2, 0, 16] Dec,
    "Reserved2" [4, 0, 96] Bytes,
    "SourceAddress" [16, 0, 32] Ipv4,
    "Reserved3" [20, 0, 96] Bytes,
    "DestinationAddress" [32, 0, 32] Ipv4,
    "PrivateData" [36, 0, 0] Bytes,
}

header! {
    /// Like [`IP_CM`], for IPv6 addresses.
    pub IP_CM_V6 "IP_CM", 36;
    "MajorVersion" [0, 0, 4] Dec,
    "MinorVersion" [0, 4, 4] Dec,
    "IPVersion" [1, 0, 4] Dec,
    "Reserved1" [1, 4, 4] Hex,
    "SourcePort" [2, 0, 16] Dec,
    "SourceAddress" [4, 0, 128] Ipv6,
    "DestinationAddress" [20, 0, 128] Ipv6,
    "PrivateData" [36, 0, 0] Bytes,
}
