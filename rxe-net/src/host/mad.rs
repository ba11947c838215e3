//! Finds the process that a packet to QP1 is for. IBTA 13.4, 12.6.
//!
//! The high 8 bits of a connection's local communication ID are the block of its process. So every
//! message of the communication manager names its process, with two exceptions. The first message
//! of a conversation names a service. And the REJ of a client that gives up before it has an answer
//! names no process: only the process that has the request can tell that it is meant.

/// The recipient of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MadRecipient {
    /// The process that has this block.
    Block(u8),
    /// The process that listens on this service.
    Service(u64),
    /// A process that listens; the message does not say which.
    Listener,
    /// Any process, because all would refuse or answer the packet in the same way.
    AnyProcess,
}

/// The offset of the management datagram, after BTH and DETH. Its header has 24 bytes.
const MAD: usize = 12 + 8;
const BODY: usize = MAD + 24;
const CLASS_CM: u8 = 0x07;

const REQ: u16 = 0x0010;
const REJ: u16 = 0x0012;
const SIDR_REQ: u16 = 0x0017;
const SIDR_REP: u16 = 0x0018;

/// Returns the recipient of a packet to QP1. `packet` holds all bytes from BTH to ICRC.
pub(super) fn destination(packet: &[u8]) -> MadRecipient {
    route(packet).unwrap_or(MadRecipient::AnyProcess)
}

fn route(packet: &[u8]) -> Option<MadRecipient> {
    if *packet.get(MAD + 1)? != CLASS_CM {
        return None;
    }
    let attribute = u16::from_be_bytes(packet.get(MAD + 16..MAD + 18)?.try_into().ok()?);
    Some(match attribute {
        REQ | SIDR_REQ => {
            let service = packet.get(BODY + 8..BODY + 16)?.try_into().ok()?;
            MadRecipient::Service(u64::from_be_bytes(service))
        }
        // A SIDR_REP begins with the request ID of the process that asked. In other messages the
        // receiver's communication ID is the second field.
        SIDR_REP => MadRecipient::Block(*packet.get(BODY)?),
        REJ if *packet.get(BODY + 4..BODY + 8)? == [0; 4] => MadRecipient::Listener,
        _ => MadRecipient::Block(*packet.get(BODY + 4)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(attribute: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; BODY];
        packet[MAD + 1] = CLASS_CM;
        packet[MAD + 16..MAD + 18].copy_from_slice(&attribute.to_be_bytes());
        packet.extend(body);
        packet.resize(MAD + 256 + 4, 0);
        packet
    }

    #[test]
    fn requests_go_by_service_and_all_else_by_the_receiver_s_id() {
        let service = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x06, 0x12, 0x34];
        assert_eq!(destination(&packet(REQ, &service)), MadRecipient::Service(0x0106_1234));
        assert_eq!(destination(&packet(SIDR_REQ, &service)), MadRecipient::Service(0x0106_1234));
        let ids = [5, 0, 0, 1, 9, 0, 0, 2];
        assert_eq!(destination(&packet(SIDR_REP, &ids)), MadRecipient::Block(5));
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(
                destination(&packet(attribute, &ids)),
                MadRecipient::Block(9),
                "{attribute:#x}"
            );
        }
    }

    #[test]
    fn a_client_that_gives_up_names_nobody() {
        let ids = [5, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(destination(&packet(REJ, &ids)), MadRecipient::Listener);
        assert_eq!(
            destination(&packet(0x14, &ids)),
            MadRecipient::Block(0),
            "no other message does"
        );
        assert_eq!(destination(&packet(REJ, &[5, 0, 0, 1, 0, 0, 0, 1])), MadRecipient::Block(0));
    }

    #[test]
    fn what_is_no_message_of_the_cm_is_anybody_s() {
        let mut other = packet(REQ, &[0; 16]);
        other[MAD + 1] = 0x03;
        assert_eq!(destination(&other), MadRecipient::AnyProcess);
        let whole = packet(REQ, &[0; 16]);
        for len in 0..BODY + 16 {
            assert_eq!(destination(&whole[..len]), MadRecipient::AnyProcess, "{len}");
        }
    }
}
