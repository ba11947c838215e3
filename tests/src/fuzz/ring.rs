//! The ring of records that two processes share, and a stranger that writes anything anywhere in it.
//! Neither end panics, reads past a record, or loops for ever. As long as the stranger has written
//! nothing, all records come out unchanged.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rxe_net::untrusted::ring::{CAPACITY, Consumer, LAYOUT, MAX_RECORD, Producer};

use super::input::Input;

const LEN: usize = 4;
const ALIGN: usize = 64;

/// Both ends of a ring, and its memory as a file.
struct World {
    producer: Option<Producer>,
    consumer: Option<Consumer>,
    file: File,
    /// The records in the ring; `None` after the stranger has written.
    model: Option<VecDeque<Vec<u8>>>,
    /// How many bytes were taken out in all.
    tail: u64,
}

/// The bytes decide what both ends and the stranger do.
///
/// # Panics
/// If the ring does something wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (producer, file) = Producer::create().expect("a ring");
    let consumer = Consumer::open(&file).expect("what was just made");
    let mut world = World {
        producer: Some(producer),
        consumer: Some(consumer),
        file: file.into(),
        model: Some(VecDeque::new()),
        tail: 0,
    };
    let mut out = Box::new([0; MAX_RECORD]);
    for step in 0..64u8 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0..3 => world.push(&mut input, step),
            3..5 => world.pop(&mut out),
            5 => world.sleep(&mut input),
            6 => world.write_word(&mut input),
            _ => world.write_record(&mut input),
        }
    }
    // Each record takes at least this much, and none is added any more.
    for _ in 0..=CAPACITY / ALIGN {
        if world.consumer.as_ref().is_none_or(Consumer::is_empty) {
            return;
        }
        world.pop(&mut out);
    }
    panic!("records without end");
}

impl World {
    fn push(&mut self, input: &mut Input<'_>, fill: u8) {
        if self.producer.is_none() {
            return;
        }
        // Often the longest record, so that the ring becomes full.
        let len = if input.chance(100) { MAX_RECORD } else { input.index(MAX_RECORD + 1) };
        let (head, body) = ([fill; 60], vec![fill; len.saturating_sub(60)]);
        let head = &head[..len.min(60)];
        let [_, tail, ..] = LAYOUT;
        let before = self.word(tail);
        let pushed = self.producer.as_mut().map(|producer| producer.push([head, &body]));
        assert_eq!(self.word(tail), before, "the tail is the other end's");
        match pushed {
            Some(Ok(true)) => {
                if let Some(model) = &mut self.model {
                    model.push_back(vec![fill; len]);
                }
            }
            Some(Ok(false)) => {
                if let Some(model) = &self.model {
                    let used = model.iter().map(|record| size(record.len())).sum::<usize>();
                    assert!(used + size(len) > CAPACITY, "there is room");
                }
            }
            _ => {
                assert!(self.model.is_none(), "broken by nobody");
                self.producer = None;
            }
        }
    }

    fn pop(&mut self, out: &mut [u8; MAX_RECORD]) {
        let [head, ..] = LAYOUT;
        let before = self.word(head);
        let Some(consumer) = &mut self.consumer else { return };
        match consumer.pop(out) {
            Ok(Some(len)) => {
                // The record wraps around the end.
                assert_eq!(out[..len], self.bytes(self.tail + LEN as u64, len));
                self.tail += size(len) as u64;
                let left = before.wrapping_sub(self.tail);
                assert!(left <= CAPACITY as u64, "taken beyond what was put in");
                if let Some(model) = &mut self.model {
                    assert_eq!(model.pop_front().as_deref(), Some(&out[..len]));
                }
            }
            Ok(None) => assert!(self.model.as_ref().is_none_or(VecDeque::is_empty)),
            Err(_) => {
                assert!(self.model.is_none(), "broken by nobody");
                self.consumer = None;
            }
        }
        assert_eq!(self.word(head), before, "the head is the other end's");
    }

    fn sleep(&mut self, input: &mut Input<'_>) {
        let (Some(producer), Some(consumer)) = (&self.producer, &self.consumer) else { return };
        let asleep = input.chance(128);
        consumer.sleeps(asleep);
        assert_eq!(consumer.is_asleep(), asleep);
        assert_eq!(producer.must_wake(), asleep);
        assert!(!producer.must_wake(), "woken once");
    }

    /// The stranger writes one of the counters: a value near the present one, or any value.
    fn write_word(&mut self, input: &mut Input<'_>) {
        let at = LAYOUT[input.index(3)];
        let now = self.word(at);
        let value = match input.byte() % 4 {
            0 => now.wrapping_add(u64::from(input.byte()) * ALIGN as u64),
            1 => now.wrapping_sub(u64::from(input.byte())),
            2 => self.tail.wrapping_add(u64::from(input.word()) % (2 * CAPACITY as u64)),
            _ => input.bits(),
        };
        self.write(at, &value.to_ne_bytes());
    }

    /// The stranger writes among the records: the length of the next one, or anything.
    fn write_record(&mut self, input: &mut Input<'_>) {
        let [.., records] = LAYOUT;
        let next = usize::try_from(self.tail % CAPACITY as u64).expect("less than the capacity");
        let at = if input.chance(200) { next } else { input.index(CAPACITY / ALIGN) * ALIGN };
        let len = if input.chance(128) { input.index(MAX_RECORD + 2) as u32 } else { input.word() };
        self.write(records + at, &len.to_ne_bytes());
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, at as u64).expect("inside the memory");
        self.model = None;
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at as u64).expect("inside the memory");
        u64::from_ne_bytes(bytes)
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let [.., records] = LAYOUT;
        let start = usize::try_from(at % CAPACITY as u64).expect("less than the capacity");
        let first = len.min(CAPACITY - start);
        let mut bytes = vec![0; len];
        let (a, b) = bytes.split_at_mut(first);
        for (part, at) in [(a, records + start), (b, records)] {
            self.file.read_exact_at(part, at as u64).expect("inside the memory");
        }
        bytes
    }
}

fn size(len: usize) -> usize {
    (LEN + len).next_multiple_of(ALIGN)
}
