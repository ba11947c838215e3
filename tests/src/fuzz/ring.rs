//! Fuzzes the ring of records that two processes share. A stranger writes anything anywhere in it.
//! Neither end panics, reads past a record, or loops endlessly. As long as the stranger has written
//! nothing, all records come out unchanged.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rxe_net::untrusted::ring::{
    ALIGN, CAPACITY, Consumer, HEAD, LAYOUT, MAX_RECORD, Producer, size_of_record,
};

use super::input::Input;

/// Both ends of a ring, and the file of its memory.
struct World {
    producer: Option<Producer>,
    consumer: Option<Consumer>,
    file: File,
    /// The records in the ring; `None` after the stranger has written.
    model: Option<VecDeque<Vec<u8>>>,
}

const TAG: u32 = 7;

/// Executes the operations of both ends and of the stranger that the bytes choose.
///
/// # Panics
/// If an invariant is violated.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (producer, file) = Producer::create().expect("a ring");
    let consumer = Consumer::open(&file).expect("what was just made");
    let mut world = World {
        producer: Some(producer),
        consumer: Some(consumer),
        file: file.into(),
        model: Some(VecDeque::new()),
    };
    let mut out = Box::new([0; MAX_RECORD]);
    for step in 0..64u8 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0..3 => world.push(&mut input, step),
            3 => world.pop(&mut out),
            4 => world.look(&mut input),
            5 => world.sleep(&mut input),
            6 => world.write_word(&mut input),
            _ => world.write_record(&mut input),
        }
    }
    while world.model.as_ref().is_some_and(|model| !model.is_empty()) {
        world.pop(&mut out);
    }
}

impl World {
    fn push(&mut self, input: &mut Input<'_>, fill: u8) {
        let [tail, ..] = LAYOUT;
        let before = self.word(tail);
        let Some(producer) = &mut self.producer else { return };
        // Often a record of the maximum length, so that the ring becomes full.
        let len = if input.chance(100) { MAX_RECORD } else { 1 + input.index(MAX_RECORD) };
        let given_up = input.chance(30);
        let pushed = producer.reserve(len).and_then(|record| {
            let Some(record) = record else { return Ok(false) };
            record.write(0, &vec![fill; len])?;
            if !given_up {
                record.commit(TAG)?;
            }
            Ok(true)
        });
        match (pushed, &mut self.model) {
            (Ok(true), Some(model)) if !given_up => model.push_back(vec![fill; len]),
            (Ok(false), Some(model)) => assert!(!model.is_empty(), "there is room"),
            (Ok(_), _) => {}
            (Err(_), Some(_)) => panic!("broken by nobody"),
            (Err(_), None) => self.producer = None,
        }
        assert_eq!(self.word(tail), before, "the tail is the other end's");
    }

    fn pop(&mut self, out: &mut [u8; MAX_RECORD]) {
        let Some(consumer) = &mut self.consumer else { return };
        match (consumer.pop(out), &mut self.model) {
            (Ok(Some((tag, len))), Some(model)) => {
                assert_eq!((tag, model.pop_front().as_deref()), (TAG, Some(&out[..len])));
            }
            (Ok(None), Some(model)) => assert!(model.is_empty(), "a record is missing"),
            (Ok(_), None) => {}
            (Err(_), Some(_)) => panic!("broken by nobody"),
            (Err(_), None) => self.consumer = None,
        }
    }

    /// Reads some records in place, and then removes them or leaves them in the ring.
    fn look(&mut self, input: &mut Input<'_>) {
        let Some(consumer) = &mut self.consumer else { return };
        let mut cursor = consumer.cursor();
        let mut seen = 0;
        for _ in 0..input.index(20) {
            let Ok(Some(record)) = cursor.next() else { break };
            let mut bytes = vec![0; record.len()];
            record.read(0, &mut bytes).expect("memory that is there");
            if let Some(model) = &self.model {
                assert_eq!(model.get(seen), Some(&bytes));
            }
            seen += 1;
        }
        let place = cursor.place();
        if input.chance(128) {
            if let Some(model) = &mut self.model {
                model.drain(..seen);
            }
            consumer.release(place).expect("memory that is there");
        }
    }

    fn sleep(&mut self, input: &mut Input<'_>) {
        let (Some(producer), Some(consumer)) = (&self.producer, &self.consumer) else { return };
        let asleep = input.chance(128);
        consumer.set_asleep(asleep);
        assert_eq!(consumer.is_asleep(), asleep);
        assert_eq!(producer.must_wake(), asleep);
        assert!(!producer.must_wake(), "woken once");
    }

    /// Overwrites one of the control words with a value near the current one, or any value.
    fn write_word(&mut self, input: &mut Input<'_>) {
        let at = LAYOUT[input.index(3)];
        let now = self.word(at);
        let value = match input.byte() % 4 {
            0 => now.wrapping_add(u64::from(input.byte()) * ALIGN as u64),
            1 => now.wrapping_sub(u64::from(input.byte())),
            2 => now.wrapping_add(u64::from(input.word()) % (2 * CAPACITY as u64)),
            _ => input.bits(),
        };
        self.write(at, &value.to_ne_bytes());
    }

    /// Overwrites the head of the next record, or bytes anywhere among the records.
    fn write_record(&mut self, input: &mut Input<'_>) {
        let [.., records] = LAYOUT;
        let place = self.consumer.as_ref().map_or(0, Consumer::place);
        let next = usize::try_from(place % CAPACITY as u64).expect("less than the capacity");
        let at = if input.chance(200) { next } else { input.index(CAPACITY / ALIGN) * ALIGN };
        let len = if input.chance(128) { input.index(MAX_RECORD + 3) as u32 } else { input.word() };
        // The greatest tag means that the records continue at the start of the ring.
        let tag = if input.chance(128) { u32::MAX } else { input.word() % 4 };
        let head = u64::from(tag) << 32 | u64::from(len);
        assert!(at + HEAD <= CAPACITY && size_of_record(MAX_RECORD) < CAPACITY);
        self.write(records + at, &head.to_ne_bytes());
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
}
