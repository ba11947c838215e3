use super::*;

/// Opcode, name and header length of each opcode, copied by hand from the specification.
const EXPECTED: [(u8, &str, usize); 79] = [
    (0x00, "RC_SEND_FIRST", 12),
    (0x01, "RC_SEND_MIDDLE", 12),
    (0x02, "RC_SEND_LAST", 12),
    (0x03, "RC_SEND_LAST_WITH_IMMEDIATE", 16),
    (0x04, "RC_SEND_ONLY", 12),
    (0x05, "RC_SEND_ONLY_WITH_IMMEDIATE", 16),
    (0x06, "RC_WRITE_FIRST", 28),
    (0x07, "RC_WRITE_MIDDLE", 12),
    (0x08, "RC_WRITE_LAST", 12),
    (0x09, "RC_WRITE_LAST_WITH_IMMEDIATE", 16),
    (0x0a, "RC_WRITE_ONLY", 28),
    (0x0b, "RC_WRITE_ONLY_WITH_IMMEDIATE", 32),
    (0x0c, "RC_READ_REQUEST", 28),
    (0x0d, "RC_READ_RESPONSE_FIRST", 16),
    (0x0e, "RC_READ_RESPONSE_MIDDLE", 12),
    (0x0f, "RC_READ_RESPONSE_LAST", 16),
    (0x10, "RC_READ_RESPONSE_ONLY", 16),
    (0x11, "RC_ACKNOWLEDGE", 16),
    (0x12, "RC_ATOMIC_ACKNOWLEDGE", 24),
    (0x13, "RC_COMPARE_SWAP", 40),
    (0x14, "RC_FETCH_ADD", 40),
    (0x15, "RC_RESERVED_15", 12),
    (0x16, "RC_SEND_LAST_WITH_INVALIDATE", 16),
    (0x17, "RC_SEND_ONLY_WITH_INVALIDATE", 16),
    (0x18, "RC_MASKED_COMPARE_SWAP", 40),
    (0x19, "RC_RESERVED_19", 12),
    (0x1a, "RC_RESERVED_1A", 12),
    (0x1b, "RC_RESERVED_1B", 12),
    (0x1c, "RC_FLUSH", 32),
    (0x1d, "RC_ATOMIC_WRITE", 28),
    (0x1e, "RC_RESERVED_1E", 12),
    (0x1f, "RC_RESERVED_1F", 12),
    (0x20, "UC_SEND_FIRST", 12),
    (0x21, "UC_SEND_MIDDLE", 12),
    (0x22, "UC_SEND_LAST", 12),
    (0x23, "UC_SEND_LAST_WITH_IMMEDIATE", 16),
    (0x24, "UC_SEND_ONLY", 12),
    (0x25, "UC_SEND_ONLY_WITH_IMMEDIATE", 16),
    (0x26, "UC_WRITE_FIRST", 28),
    (0x27, "UC_WRITE_MIDDLE", 12),
    (0x28, "UC_WRITE_LAST", 12),
    (0x29, "UC_WRITE_LAST_WITH_IMMEDIATE", 16),
    (0x2a, "UC_WRITE_ONLY", 28),
    (0x2b, "UC_WRITE_ONLY_WITH_IMMEDIATE", 32),
    (0x64, "UD_SEND_ONLY", 20),
    (0x65, "UD_SEND_ONLY_WITH_IMMEDIATE", 24),
    (0x81, "CNP", 28),
    (0xa0, "XRC_SEND_FIRST", 16),
    (0xa1, "XRC_SEND_MIDDLE", 16),
    (0xa2, "XRC_SEND_LAST", 16),
    (0xa3, "XRC_SEND_LAST_WITH_IMMEDIATE", 20),
    (0xa4, "XRC_SEND_ONLY", 16),
    (0xa5, "XRC_SEND_ONLY_WITH_IMMEDIATE", 20),
    (0xa6, "XRC_WRITE_FIRST", 32),
    (0xa7, "XRC_WRITE_MIDDLE", 16),
    (0xa8, "XRC_WRITE_LAST", 16),
    (0xa9, "XRC_WRITE_LAST_WITH_IMMEDIATE", 20),
    (0xaa, "XRC_WRITE_ONLY", 32),
    (0xab, "XRC_WRITE_ONLY_WITH_IMMEDIATE", 36),
    (0xac, "XRC_READ_REQUEST", 32),
    (0xad, "XRC_READ_RESPONSE_FIRST", 16),
    (0xae, "XRC_READ_RESPONSE_MIDDLE", 12),
    (0xaf, "XRC_READ_RESPONSE_LAST", 16),
    (0xb0, "XRC_READ_RESPONSE_ONLY", 16),
    (0xb1, "XRC_ACKNOWLEDGE", 16),
    (0xb2, "XRC_ATOMIC_ACKNOWLEDGE", 24),
    (0xb3, "XRC_COMPARE_SWAP", 44),
    (0xb4, "XRC_FETCH_ADD", 44),
    (0xb5, "XRC_RESERVED_B5", 12),
    (0xb6, "XRC_SEND_LAST_WITH_INVALIDATE", 20),
    (0xb7, "XRC_SEND_ONLY_WITH_INVALIDATE", 20),
    (0xb8, "XRC_RESERVED_B8", 12),
    (0xb9, "XRC_RESERVED_B9", 12),
    (0xba, "XRC_RESERVED_BA", 12),
    (0xbb, "XRC_RESERVED_BB", 12),
    (0xbc, "XRC_FLUSH", 36),
    (0xbd, "XRC_ATOMIC_WRITE", 32),
    (0xbe, "XRC_RESERVED_BE", 12),
    (0xbf, "XRC_RESERVED_BF", 12),
];

#[test]
fn the_table_is_the_specification_s() {
    let table: Vec<_> = Opcode::all().map(|i| (i.opcode.0, i.name, i.header_len)).collect();
    assert_eq!(table, EXPECTED);
    for info in Opcode::all() {
        assert_eq!(info.opcode.info(), Some(info), "each row stands at its own opcode");
    }
}

#[test]
fn header_lengths_are_the_sum_of_the_headers() {
    for info in Opcode::all() {
        let sum = 12
            + 4 * (usize::from(info.has_imm)
                + usize::from(info.has_ieth)
                + usize::from(info.has_aeth)
                + usize::from(info.has_xrceth)
                + usize::from(info.has_feth))
            + 8 * (usize::from(info.has_atomic_ack) + usize::from(info.has_deth))
            + 16 * (usize::from(info.has_reth) + usize::from(info.kind == OpKind::Cnp))
            + 28 * usize::from(info.has_atomic);
        assert_eq!(info.header_len, sum, "{}", info.name);
    }
}

#[test]
fn names_say_what_the_flags_say() {
    for info in Opcode::all() {
        let name = info.name;
        assert_eq!(info.has_imm, name.ends_with("WITH_IMMEDIATE"), "{name}");
        assert_eq!(info.has_ieth, name.ends_with("WITH_INVALIDATE"), "{name}");
        assert_eq!(info.starts, !name.contains("MIDDLE") && !name.contains("LAST"), "{name}");
        assert_eq!(info.ends, !name.contains("MIDDLE") && !name.contains("FIRST"), "{name}");
        let service = match info.service {
            Service::Rc => "RC_",
            Service::Uc => "UC_",
            Service::Ud => "UD_",
            Service::Xrc => "XRC_",
            Service::Cnp => "CNP",
        };
        assert!(name.starts_with(service), "{name}");
        assert!(!(info.is_request && info.is_response()), "{name}");
    }
}

#[test]
fn a_receive_is_taken_by_the_first_of_a_send_and_the_last_of_a_write_with_immediate() {
    let names = |filter: fn(&OpInfo) -> bool| -> Vec<&str> {
        Opcode::all().filter(|i| i.service == Service::Rc && filter(i)).map(|i| i.name).collect()
    };
    assert_eq!(
        names(|i| i.consumes_recv),
        [
            "RC_SEND_FIRST",
            "RC_SEND_ONLY",
            "RC_SEND_ONLY_WITH_IMMEDIATE",
            "RC_WRITE_LAST_WITH_IMMEDIATE",
            "RC_WRITE_ONLY_WITH_IMMEDIATE",
            "RC_SEND_ONLY_WITH_INVALIDATE",
        ]
    );
    assert_eq!(
        names(|i| i.completes_recv),
        [
            "RC_SEND_LAST",
            "RC_SEND_LAST_WITH_IMMEDIATE",
            "RC_SEND_ONLY",
            "RC_SEND_ONLY_WITH_IMMEDIATE",
            "RC_WRITE_LAST_WITH_IMMEDIATE",
            "RC_WRITE_ONLY_WITH_IMMEDIATE",
            "RC_SEND_LAST_WITH_INVALIDATE",
            "RC_SEND_ONLY_WITH_INVALIDATE",
        ]
    );
}

#[test]
fn constructors_lead_to_the_row_with_the_properties_asked_for() {
    use Position::{First, Last, Middle, Only};
    for service in [Service::Rc, Service::Uc, Service::Ud, Service::Xrc, Service::Cnp] {
        for position in [First, Middle, Last, Only] {
            for extra in [SendExtra::None, SendExtra::Immediate, SendExtra::Invalidate] {
                let Some(opcode) = Opcode::send(service, position, extra) else { continue };
                let info = opcode.info().unwrap();
                let want = (service, OpKind::Send, position);
                assert_eq!((info.service, info.kind, info.position), want);
                assert_eq!(info.has_imm, info.ends && extra == SendExtra::Immediate);
                assert_eq!(info.has_ieth, info.ends && extra == SendExtra::Invalidate);
            }
            for imm in [false, true] {
                let Some(opcode) = Opcode::write(service, position, imm) else { continue };
                let info = opcode.info().unwrap();
                let want = (service, OpKind::Write, position);
                assert_eq!((info.service, info.kind, info.position), want);
                assert_eq!(info.has_imm, info.ends && imm);
            }
        }
    }
    for position in [First, Middle, Last, Only] {
        let info = Opcode::read_response(position).info().unwrap();
        assert_eq!((info.kind, info.position), (OpKind::ReadResponse, position));
    }
    assert_eq!(Opcode::send(Service::Uc, Only, SendExtra::Invalidate), None);
    assert_eq!(Opcode::send(Service::Ud, First, SendExtra::None), None);
    assert_eq!(Opcode::write(Service::Ud, Only, false), None);
}

#[test]
fn no_headers_are_longer_than_the_longest() {
    let longest = Opcode::all().map(|info| info.header_len).max();
    assert_eq!(longest, Some(header_len::MAX));
}
