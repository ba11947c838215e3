//! Unexpected PSNs: gaps and duplicates. IBTA 9.7.1, 9.7.4.1 (PSN), 9.7.5.1.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let only = |psn, len| send(Opcode::RC_SEND_ONLY, psn, len).ask();
    let gap = "9.7.4.1 (PSN), 9.7.5.2.8 (PSN sequence error)";
    let dup = "C9-105";
    vec![
        case("one packet is missing", gap)
            .packets([write(1, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 0),
        case("many packets are missing", gap)
            .packets([write(5000, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 0),
        case("the farthest PSN that counts as after", "9.7.1")
            .packets([write(0x7f_ffff, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 0),
        case("the nearest PSN that counts as before", "9.7.1")
            .packets([write(-0x80_0000, 0, 8).ask()])
            .acks(-1)
            .note(
                "half the circle away counts as a duplicate: acknowledged again, not carried out",
            ),
        case("everything behind a gap is dropped: one NAK a gap", gap)
            .packets([write(1, 0, 8).ask(), write(2, 0, 8).ask(), write(3, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 0)
            .drops_n(DropReason::GapAlreadyReported, 2),
        case("a gap of which many packets arrive at once", gap)
            .burst((1..=20).map(|psn| write(psn, 0, 8).ask()))
            .naks(NakCode::PsnSequenceError, 0)
            .drops_n(DropReason::GapAlreadyReported, 19),
        case("a late packet does not hide a gap", gap)
            .burst([write(1, 8, 8).ask(), write(0, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 1)
            .wrote(0, 8)
            .next(1)
            .note("+1 was dropped: the NAK asks for it, and acknowledges +0")
            .kernel("Answers each packet as it comes: NAK +0, and both are sent again."),
        case("a second gap after the first was closed gets its own NAK", gap)
            .packets([write(1, 0, 8), write(0, 0, 8), write(2, 8, 8), write(1, 16, 8)])
            .naks(NakCode::PsnSequenceError, 0)
            .naks(NakCode::PsnSequenceError, 1)
            .wrote(0, 8)
            .wrote(16, 8)
            .next(2),
        case("a gap that begins inside a message", gap)
            .given(rc().receive(1, 5000))
            .packets([
                send(Opcode::RC_SEND_FIRST, 0, 1024),
                bare(Opcode::RC_SEND_LAST, 2, 100).ask(),
                bare(Opcode::RC_SEND_MIDDLE, 1, 1024),
                bare(Opcode::RC_SEND_LAST, 2, 100).ask(),
            ])
            .naks(NakCode::PsnSequenceError, 1)
            .acks(2)
            .completes([got(1, 2148)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1024)
            .wrote(recv_at(1) + 2048, 100)
            .next(3),
        case("a READ request behind a gap", gap)
            .packets([read(1, 0, 100)])
            .naks(NakCode::PsnSequenceError, 0),
        case("an atomic behind a gap", gap)
            .packets([fetch_add(1, 0, 1)])
            .naks(NakCode::PsnSequenceError, 0),
        case("a wrong rkey behind a gap is a gap first", "9.7.4.1 (order of checks)")
            .packets([write(1, 0, 8).rkey(UNKNOWN, "unknown")])
            .naks(NakCode::PsnSequenceError, 0),
        case("a SEND twice takes one receive", dup)
            .given(rc().receive(1, 100).receive(2, 100))
            .packets([only(0, 8), only(0, 8)])
            .acks(0)
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a WRITE with immediate twice completes one receive", dup)
            .given(rc().receive(1, 0).receive(2, 0))
            .packets([
                rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8),
                rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8),
            ])
            .acks(0)
            .completes([got_write(1, 8)])
            .wrote(0, 8)
            .next(1),
        case("a duplicate while a receiver is not ready does not hide it", dup)
            .packets([write(0, 0, 8)])
            .burst([send(Opcode::RC_SEND_ONLY, 1, 8), write(0, 0, 8)])
            .answers([Answer::Rnr(1)])
            .wrote(0, 8)
            .next(1),
        case("a duplicate is acknowledged at the newest PSN", dup)
            .packets([write(0, 0, 8).ask(), write(1, 8, 8).ask(), write(0, 0, 8).ask()])
            .acks(0)
            .acks(1)
            .acks(1)
            .wrote(0, 8)
            .wrote(8, 8)
            .next(2),
        case("a duplicate that asks for nothing is acknowledged all the same", dup)
            .packets([write(0, 0, 8), write(0, 0, 8)])
            .acks(0)
            .wrote(0, 8)
            .next(1),
        case("a duplicate WRITE does not write again", dup)
            .packets([write(0, 0, 8), write(0, 100, 8)])
            .acks(0)
            .wrote(0, 8)
            .next(1)
            .note("the duplicate names other memory: it is not looked at"),
        case("a duplicate with a wrong rkey is not looked at", dup)
            .packets([write(0, 0, 8), write(0, 0, 8).rkey(UNKNOWN, "unknown")])
            .acks(0)
            .wrote(0, 8)
            .next(1),
        case("a duplicate inside a message does not disturb it", dup)
            .given(rc().receive(1, 5000))
            .packets([
                send(Opcode::RC_SEND_FIRST, 0, 1024),
                bare(Opcode::RC_SEND_MIDDLE, 1, 1024),
                send(Opcode::RC_SEND_FIRST, 0, 1024),
                bare(Opcode::RC_SEND_MIDDLE, 1, 1024),
                bare(Opcode::RC_SEND_LAST, 2, 4).ask(),
            ])
            .acks(1)
            .acks(1)
            .acks(2)
            .completes([got(1, 2052)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1024)
            .wrote(recv_at(1) + 2048, 4)
            .next(3),
        case("a PSN from before the connection", dup)
            .packets([write(-1, 0, 8).ask()])
            .acks(-1)
            .note("nothing was ever there: acknowledged as a duplicate, never carried out")
            .kernel("Acknowledges PSN 0xffffff, which it never had."),
        case("a duplicate does not hide a pending sequence NAK", dup)
            .packets([write(0, 0, 8)])
            .burst([write(2, 0, 8), write(0, 0, 8)])
            .naks(NakCode::PsnSequenceError, 1)
            .wrote(0, 8)
            .next(1),
        case("a duplicate READ is carried out again", "C9-105, 9.7.4.1 (PSN)")
            .packets([read(0, 0, 100), read(0, 0, 100)])
            .answers([Answer::Read(Position::Only, 0, 100), Answer::Read(Position::Only, 0, 100)])
            .next(1),
        case("a duplicate READ that begins in the middle", "9.7.5.1, C9-105")
            .packets([read(0, 0, 3000), read(1, 1024, 1976)])
            .answers([
                Answer::Read(Position::First, 0, 1024),
                Answer::Read(Position::Middle, 1, 1024),
                Answer::Read(Position::Last, 2, 952),
                Answer::Read(Position::First, 1, 1024),
                Answer::Read(Position::Last, 2, 952),
            ])
            .next(3)
            .kernel("Begins with MIDDLE, as if the first answer went on."),
        case("a duplicate READ of a piece from the middle", "9.7.5.1, C9-105")
            .packets([read(0, 0, 3000), read(1, 1024, 1024)])
            .answers([
                Answer::Read(Position::First, 0, 1024),
                Answer::Read(Position::Middle, 1, 1024),
                Answer::Read(Position::Last, 2, 952),
                Answer::Read(Position::Only, 1, 1024),
            ])
            .next(3),
        case("a duplicate READ of other memory", dup)
            .packets([read(0, 0, 100), read(0, 200, 100)])
            .answers([Answer::Read(Position::Only, 0, 100)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(1),
        case("a duplicate READ of more than before", dup)
            .packets([read(0, 0, 100), read(0, 0, 101)])
            .answers([Answer::Read(Position::Only, 0, 100)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(1),
        case("a duplicate READ from the middle whose address does not fit its PSN", dup)
            .packets([read(0, 0, 3000), read(1, 0, 1024)])
            .answers([
                Answer::Read(Position::First, 0, 1024),
                Answer::Read(Position::Middle, 1, 1024),
                Answer::Read(Position::Last, 2, 952),
            ])
            .drops(DropReason::DuplicateUnanswerable)
            .next(3)
            .kernel("Answers: any address inside the earlier READ is accepted at any of its PSNs."),
        case("a duplicate READ under another key of the same memory", dup)
            .packets([read(0, 0, 100), read(0, 0, 100).rkey(READ_ONLY, "of a read-only region")])
            .answers([Answer::Read(Position::Only, 0, 100)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(1),
        case("a duplicate READ that was never asked", dup)
            .packets([write(0, 0, 8).ask(), read(0, 0, 8)])
            .acks(0)
            .drops(DropReason::DuplicateUnanswerable)
            .wrote(0, 8)
            .next(1),
        case("a duplicate READ from before the connection", dup)
            .packets([read(-1, 0, 8)])
            .drops(DropReason::DuplicateUnanswerable),
        case("a duplicate READ whose answer is no longer kept", dup)
            .given(rc().max_dest_rd_atomic(1))
            .packets([read(0, 0, 8), read(1, 0, 8), read(0, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Read(Position::Only, 1, 8)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(2),
        case("a duplicate READ of a region that is gone", "9.7.4.1 (R_Key), C9-105")
            .packets([read(0, 0, 8)])
            .deregister(ALL, "the region")
            .packets([read(0, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .dies(NakCode::RemoteAccessError, 0),
        case("a duplicate FETCH ADD adds once and answers the same", "9.4.5.2, C9-105")
            .packets([fetch_add(0, 0, 1), fetch_add(0, 0, 1)])
            .answers([
                Answer::Atomic(0, 0x1111_1111_1111_1111),
                Answer::Atomic(0, 0x1111_1111_1111_1111),
            ])
            .word(0, 0x1111_1111_1111_1112)
            .next(1),
        case("a duplicate COMPARE SWAP answers what it found", "9.4.5.2, C9-105")
            .packets([
                compare_swap(0, 0, 0x1111_1111_1111_1111, 7),
                compare_swap(0, 0, 0x1111_1111_1111_1111, 7),
            ])
            .answers([
                Answer::Atomic(0, 0x1111_1111_1111_1111),
                Answer::Atomic(0, 0x1111_1111_1111_1111),
            ])
            .word(0, 7)
            .next(1),
        case("a duplicate atomic where a WRITE was", dup)
            .packets([write(0, 0, 8).ask(), fetch_add(0, 0, 1)])
            .acks(0)
            .drops(DropReason::DuplicateUnanswerable)
            .wrote(0, 8)
            .next(1),
        case("a duplicate atomic where a READ was", dup)
            .packets([read(0, 0, 8), fetch_add(0, 0, 1)])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .drops(DropReason::DuplicateUnanswerable)
            .next(1)
            .kernel("Answers it as the atomic: the kind of the saved answer is not compared."),
        case("a duplicate READ where an atomic was", dup)
            .packets([fetch_add(0, 0, 1), read(0, 0, 8)])
            .answers([Answer::Atomic(0, 0x1111_1111_1111_1111)])
            .drops(DropReason::DuplicateUnanswerable)
            .word(0, 0x1111_1111_1111_1112)
            .next(1)
            .kernel("Compares with the unset fields of the saved atomic."),
        case("a duplicate atomic whose answer is no longer kept", "9.4.5.2")
            .given(rc().max_dest_rd_atomic(1))
            .packets([fetch_add(0, 0, 1), fetch_add(1, 0, 1), fetch_add(0, 0, 1)])
            .answers([
                Answer::Atomic(0, 0x1111_1111_1111_1111),
                Answer::Atomic(1, 0x1111_1111_1111_1112),
            ])
            .drops(DropReason::DuplicateUnanswerable)
            .word(0, 0x1111_1111_1111_1113)
            .next(2),
        case("PSNs wrap from 0xffffff to 0", "9.7.1")
            .burst((0..6).map(|psn| write(psn, 8 * psn as u64, 8).ask()))
            .acks(5)
            .wrote(0, 8)
            .wrote(8, 8)
            .wrote(16, 8)
            .wrote(24, 8)
            .wrote(32, 8)
            .wrote(40, 8)
            .next(6)
            .note("one acknowledgement answers what came together"),
        case("a READ takes the PSNs of its answer", "9.7.3.1, 9.7.5.1")
            .packets([read(0, 0, 2049), write(1, 0, 8)])
            .answers([
                Answer::Read(Position::First, 0, 1024),
                Answer::Read(Position::Middle, 1, 1024),
                Answer::Read(Position::Last, 2, 1),
            ])
            .acks(2)
            .next(3)
            .note("the WRITE at a PSN of the READ's answer counts as a duplicate"),
    ]
}
