//! Payloads that stay in the sender's memory until the receiver has the system copy them.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rxe_core::mem::{AccessError, Buffer, Source, Span, Token, Validity, WritableSpan};
use rxe_core::wire::{Held, NetHeader, Placed, TxBatch, UDP_PORT};

use super::super::{OneCopy, Shm, link};
use super::{ip, memory, offer_with, open_with};
use crate::lease::message;
use crate::shm::wake::WakeUp;
use crate::testing::in_namespace;
use crate::{Backend, UdpBackend};

fn net() -> NetHeader {
    NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT)
}

/// The BTH of SEND middle packets to the first process on an address.
const MIDDLE: [u8; 12] = [1, 0, 0xff, 0xff, 0, 1, 0, 0, 0, 0, 0, 0];

fn send(from: &mut Shm<UdpBackend>, payload: &Source<'_>, count: u16) {
    let direct = Backend::direct(from).unwrap();
    assert_eq!(direct.send(&net(), &MIDDLE, payload, count), Ok(Placed::Sent));
    from.send(&mut TxBatch::new(from.capabilities().tx)).unwrap();
}

/// What became of the next record.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    /// The bytes were in the record.
    Bytes(Vec<u8>),
    /// They were lent.
    Lent(Vec<u8>),
    /// They were lent, and could not be read.
    Nothing,
}

fn receive(to: &mut Shm<UdpBackend>) -> Got {
    let mut got = None;
    while got.is_none() {
        to.receive(1, &mut |frame| {
            let [train] = frame.apart else { panic!("{} records", frame.apart.len()) };
            let lent = matches!(train.payload, Held::There(_));
            let mut bytes = Vec::new();
            let read = train.with_payload_here(|train| {
                let Held::Here(payload) = train.payload else { panic!("it is here") };
                payload.append_to(&mut bytes).unwrap();
            });
            got = Some(match (lent, read) {
                (false, _) => Got::Bytes(bytes),
                (true, Ok(())) => Got::Lent(bytes),
                (true, Err(AccessError::OutOfBounds)) => Got::Nothing,
                (true, Err(why)) => panic!("{why:?}"),
            });
        })
        .unwrap();
    }
    got.unwrap()
}

/// Two ends that have a ring: the first record brings it about.
fn ends(from: OneCopy, to: OneCopy) -> [Shm<UdpBackend>; 2] {
    let [mut from, mut to] = [open_with("127.0.0.1", from), open_with("127.0.0.2", to)];
    send(&mut from, &Source::Bytes(&[7; 512]), 2);
    assert_eq!(receive(&mut to), Got::Bytes(vec![7; 512]));
    [from, to]
}

fn filled(len: usize) -> (Buffer, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let buffer = Buffer::zeroed(len);
    buffer.span(0, len as u64).unwrap().write(&bytes).unwrap();
    (buffer, bytes)
}

fn pieces(of: &Buffer, cuts: &[u64]) -> Vec<Span<'static>> {
    // SAFETY: the tests keep their buffers until the pieces are used no more.
    let span = |at: u64, len: u64| unsafe {
        let all = of.span(at, len).unwrap();
        *WritableSpan::from_raw(all.as_ptr(), all.len())
    };
    let mut at = 0;
    cuts.iter()
        .map(|&len| {
            at += len;
            span(at - len, len)
        })
        .collect()
}

#[test]
fn a_payload_of_several_pieces_is_read_where_it_is() {
    in_namespace("", || {
        let [mut from, mut to] = ends(OneCopy::Always, OneCopy::Auto);
        let (buffer, bytes) = filled(64 << 10);
        let [one, other] = [Validity::new(), Validity::new()];
        let tokens = [one.token(), other.token()];
        // That of the queue pair, and those of the regions of as many pieces.
        let many = [&tokens[..1], &[tokens[1]; 8]].concat();
        let whole = 64 << 10;
        for (cuts, tokens) in [
            (&[whole][..], &tokens[..1]),
            (&[whole], &tokens),
            (&[1, 32_767, whole - 32_770, 2], &tokens),
            (&[whole / 8; 8], &tokens),
            (&[whole / 8; 8], &many),
        ] {
            send(&mut from, &Source::Kept(&pieces(&buffer, cuts), tokens), 16);
            // It is read when the receiver wants it.
            buffer.span(9, 1).unwrap().write(&[0xee]).unwrap();
            let mut expected = bytes.clone();
            expected[9] = 0xee;
            assert_eq!(receive(&mut to), Got::Lent(expected), "{cuts:?}");
            buffer.span(9, 1).unwrap().write(&[9]).unwrap();
        }
        // More pieces than a description has: as bytes, if a record has room for them.
        let many = pieces(&buffer, &[whole / 16; 16]);
        let direct = Backend::direct(&mut from).unwrap();
        let placed = direct.send(&net(), &MIDDLE, &Source::Kept(&many, &tokens), 16);
        assert_eq!(placed, Ok(Placed::Elsewhere));
        let many = pieces(&buffer, &[whole / 32; 16]);
        send(&mut from, &Source::Kept(&many, &tokens), 8);
        assert_eq!(receive(&mut to), Got::Bytes(bytes[..32 << 10].to_vec()));
        let (sent, got) = (from.counters(), to.counters());
        assert_eq!((sent.tx_packets, sent.tx_bytes), (got.rx_packets, got.rx_bytes));
    });
}

#[test]
fn what_is_taken_back_is_nothing_and_the_next_is_read_again() {
    in_namespace("", || {
        let [mut from, mut to] = ends(OneCopy::Always, OneCopy::Auto);
        let (buffer, bytes) = filled(16 << 10);
        let all = pieces(&buffer, &[16 << 10]);
        for which in 0..2 {
            let words = [Validity::new(), Validity::new()];
            let tokens = [words[0].token(), words[1].token()];
            send(&mut from, &Source::Kept(&all, &tokens), 4);
            words[which].end();
            assert_eq!(receive(&mut to), Got::Nothing);
            let tokens = [words[0].token(), words[1].token()];
            send(&mut from, &Source::Kept(&all, &tokens), 4);
            assert_eq!(receive(&mut to), Got::Lent(bytes.clone()));
        }
    });
}

#[test]
fn only_what_may_be_lent_is_lent() {
    in_namespace("", || {
        let (buffer, bytes) = filled(16 << 10);
        let all = pieces(&buffer, &[16 << 10]);
        let valid = Validity::new();
        let tokens = [valid.token()];
        for from in OneCopy::ALL {
            for to in OneCopy::ALL {
                let lends = from == OneCopy::Always && to != OneCopy::Never;
                let [mut from, mut to] = ends(from, to);
                send(&mut from, &Source::Spans(&all), 4);
                assert_eq!(receive(&mut to), Got::Bytes(bytes.clone()));
                send(&mut from, &Source::Kept(&all, &tokens), 4);
                let got = if lends { Got::Lent } else { Got::Bytes };
                assert_eq!(receive(&mut to), got(bytes.clone()));
                // The call would take longer than the copy.
                let short = pieces(&buffer, &[8 << 10]);
                send(&mut from, &Source::Kept(&short, &tokens), 2);
                assert_eq!(receive(&mut to), Got::Bytes(bytes[..8 << 10].to_vec()));
            }
        }
    });
}

#[test]
fn after_something_that_cannot_be_read_bytes_are_sent() {
    in_namespace("", || {
        let [mut from, mut to] = ends(OneCopy::Always, OneCopy::Auto);
        let len = 16 << 10;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(none, len, access, MapFlags::PRIVATE) }.unwrap();
        let start = std::ptr::NonNull::new(map.cast()).unwrap();
        // SAFETY: the bytes are mapped.
        let all = unsafe { WritableSpan::from_raw(start, len) };
        let valid = Validity::new();
        let tokens = [valid.token()];
        send(&mut from, &Source::Kept(&[*all], &tokens), 4);
        assert_eq!(receive(&mut to), Got::Lent(vec![0; len]));
        send(&mut from, &Source::Kept(&[*all], &tokens), 4);
        // SAFETY: nobody in this process uses the mapping afterwards.
        unsafe { munmap(map, len) }.unwrap();
        assert_eq!(receive(&mut to), Got::Nothing);
        let (buffer, bytes) = filled(len);
        let payload = pieces(&buffer, &[len as u64]);
        for _ in 0..3 {
            send(&mut from, &Source::Kept(&payload, &tokens), 4);
            assert_eq!(receive(&mut to), Got::Bytes(bytes.clone()));
        }
    });
}

/// As when a queue pair is destroyed, and its memory freed: that says nothing about what others send.
#[test]
fn what_is_taken_back_and_then_unmapped_is_no_reason_to_lend_no_more() {
    in_namespace("", || {
        let [mut from, mut to] = ends(OneCopy::Always, OneCopy::Auto);
        let len = 16 << 10;
        let (access, none) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(none, len, access, MapFlags::PRIVATE) }.unwrap();
        let start = std::ptr::NonNull::new(map.cast()).unwrap();
        // SAFETY: the bytes are mapped.
        let all = unsafe { WritableSpan::from_raw(start, len) };
        let words = [Validity::new(), Validity::new()];
        let tokens = [words[0].token(), words[1].token()];
        send(&mut from, &Source::Kept(&[*all], &tokens), 4);
        words[1].end();
        // SAFETY: nobody in this process uses the mapping afterwards.
        unsafe { munmap(map, len) }.unwrap();
        assert_eq!(receive(&mut to), Got::Nothing);
        let (buffer, bytes) = filled(len);
        send(&mut from, &Source::Kept(&pieces(&buffer, &[len as u64]), &[words[1].token()]), 4);
        assert!(receive(&mut to) == Got::Lent(bytes));
    });
}

/// What another process may write in the place of a description: the ring is given up.
#[test]
fn descriptions_that_lie_are_refused() {
    in_namespace("", || {
        let mut to = open_with("127.0.0.2", OneCopy::Auto);
        let valid = Validity::new();
        let Token { addr, value } = valid.token();
        let header = message::emit_header(&net(), 1);
        let piece = |len: u64| [addr, len];
        let token = [addr, value];
        let lent = |count: u32| 2 | (1 | 4) << 8 | 12 << 16 | (count - 1) << 24;
        let right = [[1, 1], piece(8), token];
        let lies: [(u32, &[[u64; 2]]); 13] = [
            (lent(2), &[]),
            (lent(2), &[[0, 1], token]),
            (lent(2), &[[1, 0], piece(8)]),
            (lent(2), &right[..2]),
            (lent(2), &[[2, 1], piece(8), token]),
            (lent(2), &[[1, 1], piece(8), token, token]),
            (lent(2), &[[1, 1], piece(0), token]),
            (lent(2), &[[1, 1], piece((256 << 10) + 1), token]),
            (lent(2), &[[2, 1], piece(u64::MAX), piece(9), token]),
            (lent(2), &[[9, 1], piece(8), piece(8), piece(8), piece(8), piece(8), piece(8)]),
            (lent(2), &[&[[1, 10], piece(8)][..], &[token; 10]].concat()),
            (lent(2), &[[u64::MAX, u64::MAX], piece(8), token]),
            (lent(2) | 2 << 8, &right),
        ];
        let offer = |proof: Token| {
            let wake = WakeUp::new().unwrap();
            offer_with(&memory("127.0.0.2"), &link::offer(proof), wake).unwrap()
        };
        let mut play = |proof: Token, tag: u32, words: &[[u64; 2]]| {
            let mut offered = offer(proof);
            to.look_around();
            assert_eq!(to.incoming.len(), 1);
            let words: Vec<u8> = words.iter().flatten().flat_map(|w| w.to_ne_bytes()).collect();
            let record = [&header[..], &MIDDLE, &words].concat();
            offered.ring.push(tag, [&record, &[]]).unwrap();
            let mut frames = 0;
            to.receive(64, &mut |_| frames += 1).unwrap();
            let outcome = (frames, to.incoming.len());
            drop(offered);
            while !to.incoming.is_empty() {
                to.look_around();
            }
            outcome
        };
        for (tag, words) in lies {
            assert_eq!(play(valid.token(), tag, words), (0, 0), "{tag:#x} {words:?}");
        }
        assert_eq!(play(valid.token(), lent(2), &right), (1, 1));
        // Whose memory is not read may not lend any.
        assert_eq!(play(Token { addr, value: value ^ 1 }, lent(2), &right), (0, 0));
    });
}

/// Numbers that fit somewhere, and those next to them, in any order: nothing panics, and nothing is handed over
/// with another length than is read.
#[test]
fn whatever_a_description_says_is_read_or_refused() {
    in_namespace("", || {
        let mut to = open_with("127.0.0.2", OneCopy::Auto);
        let (valid, memory_of_peer) = (Validity::new(), vec![7u8; 256 << 10]);
        let Token { addr, value } = valid.token();
        let start = memory_of_peer.as_ptr() as u64;
        let numbers =
            [0, 1, 2, 8, 9, 1024, 8192, 256 << 10, start, addr, value, u64::MAX, u64::MAX - 4096];
        let header = message::emit_header(&net(), 1);
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut read = 0;
        for _ in 0..3000 {
            let pick = |at: u64| numbers[usize::try_from(at).unwrap()];
            let mut words = Vec::new();
            if random(2) == 0 {
                // Right but for some numbers.
                words.extend([1, 1, start, 512 << random(10), addr, value]);
                (0..random(3)).for_each(|_| {
                    let at = usize::try_from(random(6)).unwrap();
                    words[at] = pick(random(13));
                });
            } else {
                (0..random(40)).for_each(|_| words.push(pick(random(13))));
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let record = [&header[..], &MIDDLE, &bytes].concat();
            let count = u32::try_from(random(256)).unwrap();
            let head_len = [12, 12, 12, 0, 28][usize::try_from(random(5)).unwrap()];
            let flags = [1 | 4, 1 | 4, 4, 1 | 2 | 4][usize::try_from(random(4)).unwrap()];
            let wake = WakeUp::new().unwrap();
            let offer = link::offer(Token { addr, value });
            let mut offered = offer_with(&memory("127.0.0.2"), &offer, wake).unwrap();
            to.look_around();
            let tag = 2 | flags << 8 | head_len << 16 | count << 24;
            offered.ring.push(tag, [&record, &[]]).unwrap();
            to.receive(64, &mut |frame| {
                let len = frame.apart[0].payload.len();
                assert!((1..=256 << 10).contains(&len));
                let _ = frame.apart[0].with_payload_here(|train| {
                    assert_eq!(train.payload.len(), len);
                    read += 1;
                });
            })
            .unwrap();
            drop(offered);
            while !to.incoming.is_empty() {
                to.look_around();
            }
        }
        assert!(read > 100, "{read}");
    });
}
