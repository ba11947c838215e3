//! Fuzzes management datagrams (MADs) of the communication manager.
//! Any 256 bytes are parsed or rejected. A parsed message is unchanged after it was emitted and
//! parsed again.

use rxe_core::cm::mad::{LEN, Mad, Message};
use rxe_core::cm::service::{IP_CM_LEN, IpCmHeader, PortSpace};

use super::input::Input;

/// Parses the bytes as a datagram, or as the bytes after a valid header.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => raw(input.rest()),
        1 => {
            let bytes = input.rest();
            if let Some(header) = bytes.first_chunk::<IP_CM_LEN>().and_then(IpCmHeader::parse) {
                assert_eq!(IpCmHeader::parse(&header.emit()), Some(header));
            }
            if let Some(id) = bytes.first_chunk().map(|id| u64::from_be_bytes(*id))
                && let Some((space, port)) = PortSpace::of_service(id)
            {
                assert_eq!(space.service_id(port), id);
            }
        }
        _ => {
            // A header of the CM class, with one of its attributes or the next few.
            let mut bytes = [0; LEN];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = 0x10 + input.byte() % 16;
            let body = input.bytes(LEN - 24);
            bytes[24..24 + body.len()].copy_from_slice(body);
            raw(&bytes);
        }
    }
}

fn raw(bytes: &[u8]) {
    let Some(mad) = Mad::new(bytes) else {
        assert_ne!(bytes.len(), LEN);
        return;
    };
    let header = mad.header();
    let recipient = mad.recipient();
    let Some(message) = mad.message() else { return };
    assert_eq!(message.attr_id(), header.attr_id);
    assert!(!message.name().is_empty());
    let again = message.emit(header.tid);
    let read = Mad::new(&again).expect("256 bytes");
    assert_eq!(read.message(), Some(message.clone()));
    assert_eq!(read.recipient(), recipient);
    assert_eq!(read.header().tid, header.tid);
    assert_eq!(read.message().as_ref().map(|m| m.emit(header.tid)), Some(again));
    if let Message::Req(req) = &message
        && let Some(ip) = req.private_data.first_chunk::<IP_CM_LEN>()
    {
        let _ = IpCmHeader::parse(ip);
    }
}
