//! Atomics, and the number of READs and atomics that a peer may have outstanding. IBTA 9.4.5,
//! 9.7.4.1 (resources).

use crate::dsl::*;

/// A word of memory that holds the initial value.
const FILL: u64 = 0x1111_1111_1111_1111;

pub(crate) fn cases() -> Vec<Case> {
    let aligned = "9.4.5 (alignment)";
    let limit = "9.7.4.1 (resources), 9.9.3";
    let misaligned =
        |name, packet: Pkt| case(name, aligned).packets([packet]).dies(NakCode::InvalidRequest, 0);
    vec![
        misaligned("an atomic at an address that is 1 off", fetch_add(0, 1, 1)),
        misaligned("an atomic at an address that is 4 off", compare_swap(0, 4, 0, 1)),
        misaligned(
            "a misaligned atomic under a key that never was",
            fetch_add(0, 4, 1).rkey(UNKNOWN, "unknown"),
        )
        .note("either NAK is right: the address can be judged without the key")
        .kernel("Checks the key first: remote access error."),
        case("FETCH ADD wraps", "9.4.5")
            .packets([fetch_add(0, 0, u64::MAX)])
            .answers([Answer::Atomic(0, FILL)])
            .word(0, FILL - 1)
            .next(1),
        case("COMPARE SWAP that does not match changes nothing", "9.4.5")
            .packets([compare_swap(0, 0, FILL + 1, 7)])
            .answers([Answer::Atomic(0, FILL)])
            .next(1),
        case("COMPARE SWAP that matches", "9.4.5")
            .packets([compare_swap(0, 8, FILL, 0x0123_4567_89ab_cdef)])
            .answers([Answer::Atomic(0, FILL)])
            .word(8, 0x0123_4567_89ab_cdef)
            .next(1),
        case("FETCH ADD of nothing reads", "9.4.5")
            .packets([fetch_add(0, 16, 0)])
            .answers([Answer::Atomic(0, FILL)])
            .next(1),
        case("atomics one behind the other see each other", "9.4.5.1")
            .burst((0..4).map(|psn| fetch_add(psn, 0, 1)))
            .answers([
                Answer::Atomic(0, FILL),
                Answer::Atomic(1, FILL + 1),
                Answer::Atomic(2, FILL + 2),
                Answer::Atomic(3, FILL + 3),
            ])
            .word(0, FILL + 4)
            .next(4),
        case("as many READs at once as agreed", limit)
            .given(rc().max_dest_rd_atomic(2))
            .burst([read(0, 0, 8), read(1, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Read(Position::Only, 1, 8)])
            .next(2),
        case("one READ at once more than agreed", limit)
            .given(rc().max_dest_rd_atomic(2))
            .burst([read(0, 0, 8), read(1, 0, 8), read(2, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Read(Position::Only, 1, 8)])
            .dies(NakCode::InvalidRequest, 2)
            .kernel("Does not count; it recycles the oldest saved answer."),
        case("one atomic at once more than agreed", limit)
            .given(rc().max_dest_rd_atomic(1))
            .burst([fetch_add(0, 0, 1), fetch_add(1, 0, 1)])
            .answers([Answer::Atomic(0, FILL)])
            .dies(NakCode::InvalidRequest, 1)
            .word(0, FILL + 1)
            .kernel("Does not count; it recycles the oldest saved answer."),
        case("READs and atomics count together", limit)
            .given(rc().max_dest_rd_atomic(2))
            .burst([read(0, 0, 8), fetch_add(1, 8, 1), read(2, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Atomic(1, FILL)])
            .dies(NakCode::InvalidRequest, 2)
            .word(8, FILL + 1)
            .kernel("Does not count; it recycles the oldest saved answer."),
        case("a READ where none is agreed", limit)
            .given(rc().max_dest_rd_atomic(0))
            .packets([read(0, 0, 8)])
            .dies(NakCode::InvalidRequest, 0),
        case("an atomic where none is agreed", limit)
            .given(rc().max_dest_rd_atomic(0))
            .packets([fetch_add(0, 0, 1)])
            .dies(NakCode::InvalidRequest, 0),
        case("READs that were answered do not count", limit)
            .given(rc().max_dest_rd_atomic(1))
            .packets([read(0, 0, 8), read(1, 0, 8), read(2, 0, 8)])
            .answers([
                Answer::Read(Position::Only, 0, 8),
                Answer::Read(Position::Only, 1, 8),
                Answer::Read(Position::Only, 2, 8),
            ])
            .next(3),
        case("a retry of READs that wait to be answered does not count twice", limit)
            .given(rc().max_dest_rd_atomic(2))
            .burst([read(0, 0, 8), read(1, 0, 8), read(0, 0, 8), read(1, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Read(Position::Only, 1, 8)])
            .next(2),
        case("an acknowledgement keeps its place between READs", "9.7.5.1")
            .burst([read(0, 0, 8), write(1, 8, 8).ask(), read(2, 0, 8)])
            .answers([
                Answer::Read(Position::Only, 0, 8),
                Answer::Ack(1),
                Answer::Read(Position::Only, 2, 8),
            ])
            .wrote(8, 8)
            .next(3),
    ]
}
