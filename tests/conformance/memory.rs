//! Memory that a peer has no right to. IBTA 9.7.4.1 (R_Key), 10.6.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let rule = "9.7.4.1 (R_Key), 10.6.3";
    let zero = "9.7.4.1 (R_Key, zero-length)";
    let refused = |name, packet: Pkt| {
        case(name, rule)
            .given(rc().receive(1, 100))
            .packets([packet.ask()])
            .dies(NakCode::RemoteAccessError, 0)
            .completes([flushed(1)])
    };
    let nothing = |name, packet: Pkt| case(name, zero).packets([packet.ask()]).acks(0).next(1);
    let reads_nothing = |name, packet: Pkt| {
        case(name, zero).packets([packet]).answers([Answer::Read(Position::Only, 0, 0)]).next(1)
    };
    let other_pd = "Its checks of protection domains are among the deviations that google/rdma-unit-test lists (PdRcLoopbackMrTest).";
    let end = MEMORY;
    vec![
        refused("a WRITE under a key that never was", write(0, 0, 8).rkey(UNKNOWN, "unknown")),
        refused("a READ under a key that never was", read(0, 0, 8).rkey(UNKNOWN, "unknown")),
        refused(
            "an atomic under a key that never was",
            fetch_add(0, 0, 1).rkey(UNKNOWN, "unknown"),
        ),
        refused("a WRITE under key 0", write(0, 0, 8).rkey(KEY_0, "0")),
        refused("a READ under key 0xffffffff", read(0, 0, 8).rkey(KEY_ONES, "0xffffffff")),
        refused(
            "a WRITE under the key of a region that is gone",
            write(0, 0, 8).rkey(DEREGISTERED, "deregistered"),
        ),
        refused(
            "a READ under the key of a region that is gone",
            read(0, 0, 8).rkey(DEREGISTERED, "deregistered"),
        ),
        refused(
            "an atomic under the key of a region that is gone",
            fetch_add(0, 0, 1).rkey(DEREGISTERED, "deregistered"),
        ),
        refused(
            "a WRITE into another protection domain",
            write(0, 0, 8).rkey(OTHER_PD, "of another PD"),
        )
        .kernel(other_pd),
        refused(
            "a READ from another protection domain",
            read(0, 0, 8).rkey(OTHER_PD, "of another PD"),
        )
        .kernel(other_pd),
        refused(
            "an atomic in another protection domain",
            fetch_add(0, 0, 1).rkey(OTHER_PD, "of another PD"),
        )
        .kernel(other_pd),
        refused(
            "a WRITE into a region without REMOTE_WRITE",
            write(0, 0, 8).rkey(READ_ONLY, "of a read-only region"),
        ),
        refused(
            "a READ from a region without REMOTE_READ",
            read(0, 0, 8).rkey(WRITE_ONLY, "of a write-only region"),
        ),
        refused(
            "a READ from a region for local use",
            read(0, 0, 8).rkey(LOCAL_ONLY, "of a local region"),
        ),
        refused(
            "a WRITE into a region for local use",
            write(0, 0, 8).rkey(LOCAL_ONLY, "of a local region"),
        ),
        refused(
            "an atomic on a region without REMOTE_ATOMIC",
            fetch_add(0, 0, 1).rkey(NO_ATOMIC, "of a region without atomics"),
        ),
        refused("a WRITE that begins one byte before the region", write(0, 0, 8).va(BASE - 1)),
        refused("a WRITE that ends one byte behind the region", write(0, end - 7, 8)),
        refused("a WRITE right behind the region", write(0, end, 4)),
        refused("a READ that begins one byte before the region", read(0, 0, 8).va(BASE - 1)),
        refused("a READ that ends one byte behind the region", read(0, end - 7, 8)),
        refused("a READ of more than the whole region", read(0, 0, MEMORY as usize + 1)),
        refused("an atomic half behind the region", fetch_add(0, end - 4, 1).va(BASE + end)),
        refused("a WRITE at address 0", write(0, 0, 8).va(0)),
        refused("a WRITE whose range wraps round 2⁶⁴", write(0, 0, 8).va(u64::MAX - 3)),
        refused(
            "a READ whose range wraps round 2⁶⁴ to the region",
            read(0, 0, 0).va(u64::MAX - 3).dma_len(0x10_0010),
        ),
        refused("a READ at the last byte of the address space", read(0, 0, 1).va(u64::MAX)),
        refused(
            "an atomic at the last word of the address space",
            fetch_add(0, 0, 1).va(u64::MAX - 7),
        ),
        refused(
            "the whole range of a WRITE is checked at its first packet",
            rdma(Opcode::RC_WRITE_FIRST, 0, 1024, end - 1024, 2000),
        ),
        case("a READ that ends with the region", rule)
            .packets([read(0, end - 8, 8)])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .next(1),
        case("a WRITE that ends with the region", rule)
            .packets([write(0, end - 8, 8).ask()])
            .acks(0)
            .wrote(end - 8, 8)
            .next(1),
        case(
            "a region that goes away inside a WRITE",
            "9.7.4.1 (R_Key), 10.6 (invalidation in flight)",
        )
        .packets([rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 3000)])
        .deregister(ALL, "the region")
        .packets([bare(Opcode::RC_WRITE_MIDDLE, 1, 1024)])
        .dies(NakCode::RemoteAccessError, 1)
        .wrote(0, 1024),
        case("a region that goes away before its READ is answered", "9.7.4.1 (R_Key)")
            .burst([read(0, 0, 3000).rkey(READ_ONLY, "of a read-only region")])
            .deregister(READ_ONLY, "that region")
            .answers([
                Answer::Read(Position::First, 0, 1024),
                Answer::Read(Position::Middle, 1, 1024),
                Answer::Read(Position::Last, 2, 952),
            ])
            .packets([read(3, 0, 8).rkey(READ_ONLY, "of a read-only region")])
            .dies(NakCode::RemoteAccessError, 3),
        case("a region that goes away takes no other with it", rule)
            .deregister(READ_ONLY, "another region")
            .packets([read(0, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .next(1),
        nothing(
            "a WRITE of nothing under a key that never was",
            write(0, 0, 0).rkey(UNKNOWN, "unknown"),
        ),
        nothing(
            "a WRITE of nothing under key 0 at address 0",
            write(0, 0, 0).rkey(KEY_0, "0").va(0),
        ),
        nothing("a WRITE of nothing outside every region", write(0, 0, 0).va(u64::MAX)),
        nothing(
            "a WRITE of nothing into another protection domain",
            write(0, 0, 0).rkey(OTHER_PD, "of another PD"),
        ),
        reads_nothing(
            "a READ of nothing under a key that never was",
            read(0, 0, 0).rkey(UNKNOWN, "unknown"),
        ),
        reads_nothing(
            "a READ of nothing at the last byte of the address space",
            read(0, 0, 0).va(u64::MAX),
        ),
        reads_nothing(
            "a READ of nothing under the key of a region that is gone",
            read(0, 0, 0).rkey(DEREGISTERED, "deregistered"),
        ),
        case("a duplicate READ of nothing", "9.7.4.1 (R_Key), C9-105")
            .packets([read(0, 0, 0), read(0, 0, 0).rkey(UNKNOWN, "unknown")])
            .answers([Answer::Read(Position::Only, 0, 0), Answer::Read(Position::Only, 0, 0)])
            .next(1),
        case("a READ of nothing that becomes a READ of something as a duplicate", "C9-105")
            .packets([read(0, 0, 0).rkey(UNKNOWN, "unknown"), read(0, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 0)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(1),
    ]
}
