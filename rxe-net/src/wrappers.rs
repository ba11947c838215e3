//! Wrappers of any backend: they see each packet and pass all other calls on.

pub(crate) mod fault;
pub(crate) mod pcap;
