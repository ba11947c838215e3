//! What wraps any backend: it sees each packet on its way, and passes everything else on.

pub(crate) mod fault;
pub(crate) mod pcap;
