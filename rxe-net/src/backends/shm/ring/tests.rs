use std::sync::atomic::AtomicBool;

use super::*;

fn pair() -> (Producer, Consumer) {
    let (producer, fd) = Producer::create().unwrap();
    (producer, Consumer::open(&fd).unwrap())
}

fn pop(ring: &mut Consumer) -> Result<Option<Vec<u8>>, Broken> {
    let mut out = [0; MAX_RECORD];
    Ok(ring.pop(&mut out)?.map(|(_, len)| out[..len].to_vec()))
}

#[test]
fn records_come_out_as_they_went_in_around_and_around() {
    let (mut from, mut to) = pair();
    let mut taken = 0usize;
    for n in 0..500usize {
        let bytes = vec![n.to_le_bytes()[0]; (n * 977) % (64 << 10)];
        let head = n.to_le_bytes();
        while !from.push(7, [&head, &bytes]).unwrap() {
            let got = pop(&mut to).unwrap().unwrap();
            assert_eq!(got[..8], taken.to_le_bytes());
            taken += 1;
        }
    }
    while let Some(got) = pop(&mut to).unwrap() {
        assert_eq!(
            (&got[..8], got.len()),
            (&taken.to_le_bytes()[..], 8 + taken * 977 % (64 << 10))
        );
        assert!(got[8..].iter().all(|b| *b == taken.to_le_bytes()[0]));
        taken += 1;
    }
    assert_eq!(taken, 500);
    assert!(to.is_empty());
}

#[test]
fn a_record_is_there_when_it_is_committed() {
    let (mut from, mut to) = pair();
    let record = from.reserve(100).unwrap().unwrap();
    record.write(0, &[1; 100]).unwrap();
    assert!(to.is_empty());
    let _ = record;
    assert_eq!(pop(&mut to), Ok(None), "given up");
    let record = from.reserve(3).unwrap().unwrap();
    record.span(1, 2).write(b"bc").unwrap();
    record.write(0, b"a").unwrap();
    record.commit(9).unwrap();
    let mut out = [0; MAX_RECORD];
    assert_eq!(to.pop(&mut out), Ok(Some((9, 3))));
    assert_eq!(out[..3], *b"abc");
}

#[test]
fn what_is_read_by_a_cursor_stays_until_it_is_released() {
    let (mut from, mut to) = pair();
    while from.push(1, [&[5; 1000], &[]]).unwrap() {}
    let mut cursor = to.cursor();
    let first = cursor.next().unwrap().unwrap();
    let place = cursor.place();
    for _ in 0..200 {
        cursor.next().unwrap().unwrap();
    }
    assert!(!from.push(1, [&[6; 1000], &[]]).unwrap(), "nothing was released");
    let mut out = [0; 1000];
    first.read(0, &mut out).unwrap();
    assert_eq!(out, [5; 1000]);
    let behind = cursor.place();
    to.release(place).unwrap();
    to.release(behind).unwrap();
    to.publish_tail().unwrap();
    assert!(from.push(1, [&[6; 1000], &[]]).unwrap());
}

/// Bytes of an earlier lap are never taken for a record, whatever they are.
#[test]
fn bytes_of_an_earlier_lap_are_no_record() {
    let (mut from, mut to) = pair();
    let lie = head_word(8, 1).to_ne_bytes().repeat(MAX_RECORD / HEAD);
    for round in 0..300 {
        assert!(from.push(1, [&lie, &[]]).unwrap());
        assert!(pop(&mut to).unwrap().is_some());
        for len in [round + 1, 64, 9000] {
            assert!(from.push(1, [&vec![0xff; len], &[]]).unwrap());
            assert_eq!(pop(&mut to).unwrap().map(|record| record.len()), Some(len));
            assert_eq!(pop(&mut to), Ok(None));
        }
    }
}

#[test]
fn a_ring_with_little_in_it_uses_little_memory() {
    let (mut from, mut to) = pair();
    for _ in 0..100_000 {
        assert!(from.push(1, [b"eight b.", &[]]).unwrap());
        pop(&mut to).unwrap().unwrap();
        assert!(offset(from.head) <= REWIND + ALIGN);
    }
}

#[test]
fn long_records_use_the_whole_ring() {
    let (mut from, mut to) = pair();
    let mut farthest = 0;
    for _ in 0..10_000 {
        assert!(from.push(1, [&[0; LONG], &[]]).unwrap());
        pop(&mut to).unwrap().unwrap();
        farthest = farthest.max(offset(from.head));
    }
    assert!(farthest > CAPACITY - 2 * LONG, "{farthest}");
    // Short records stay near the start, after the second check for a restart.
    let mut short = |to: &mut Consumer, count: usize| {
        for _ in 0..count {
            assert!(from.push(1, [b"eight b.", &[]]).unwrap());
            pop(to).unwrap().unwrap();
        }
        offset(from.head)
    };
    short(&mut to, CAPACITY / ALIGN);
    for _ in 0..10 {
        assert!(short(&mut to, 1000) <= REWIND + ALIGN);
    }
}

#[test]
fn who_sleeps_is_woken_once() {
    let (mut from, to) = pair();
    from.push(1, [b"a", b""]).unwrap();
    assert!(!from.must_wake());
    to.set_asleep(true);
    assert!(!to.is_empty() && to.is_asleep());
    assert!(from.must_wake() && !from.must_wake() && !to.is_asleep());
    to.set_asleep(true);
    to.set_asleep(false);
    assert!(!from.must_wake());
}

#[test]
fn what_can_not_be_is_not_believed() {
    for word in [
        head_word(MAX_RECORD + 1, 1), // longer than any record
        u64::from(u32::MAX),
        head_word(0, 1), // without content
        1 << 32,
        head_word(0, SKIP), // from the start to the start
    ] {
        let (from, mut to) = pair();
        from.map.set_word(0, word).unwrap();
        assert_eq!(pop(&mut to), Err(Broken), "{word:#x}");
    }
    // A skip after a skip, and a record that would wrap around the end.
    let (mut from, mut to) = pair();
    assert!(from.push(1, [&[1; 60], &[]]).unwrap() && from.push(1, [&[1; 60], &[]]).unwrap());
    pop(&mut to).unwrap().unwrap();
    let skip = head_word(0, SKIP);
    let second = offset(to.tail);
    from.map.set_word(second, skip).unwrap();
    from.map.set_word(0, skip).unwrap();
    assert_eq!(pop(&mut to), Err(Broken));
    to.tail = CAPACITY as u64 - 64;
    from.map.set_word(CAPACITY - 64, head_word(57, 1)).unwrap();
    assert_eq!(pop(&mut to), Err(Broken));
    for tail in [u64::MAX, 1 << 40] {
        let (mut from, to) = pair();
        to.map.set_tail(tail).unwrap();
        let mut result = Ok(true);
        for _ in 0..200 {
            result = result.and_then(|_| from.push(1, [&[0; 60_000], &[]]));
        }
        assert_eq!(result, Err(Broken), "{tail}");
    }
}

/// The other end writes anything anywhere while this one works: it notices, or takes what it reads.
#[test]
fn a_ring_that_is_scribbled_on_breaks_and_nothing_else_does() {
    let stop = AtomicBool::new(false);
    let (from, fd) = Producer::create().unwrap();
    let honest = Consumer::open(&fd).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = crate::rng::Rng::new(1);
            while !stop.load(Ordering::Relaxed) {
                let at = match rng.next() % 8 {
                    0 | 1 => TAIL,
                    2 => ASLEEP,
                    3 | 4 => RECORDS + usize::try_from(rng.next() % 64).unwrap() * ALIGN,
                    _ => usize::try_from(rng.next()).unwrap() % (RECORDS + CAPACITY - 8),
                };
                let value = rng.next() >> (rng.next() % 64);
                rustix::io::pwrite(&fd, &value.to_ne_bytes(), at as u64).unwrap();
            }
        });
        let mut out = [0; MAX_RECORD];
        // Each side continues where it was after it has noticed.
        let (mut from, mut to) = (from, honest);
        let mut noticed = [false; 2];
        while noticed != [true; 2] {
            // Long records, so that the producer reads `tail` when the ring seems full.
            if from.push(1, [&[1; 8], &out[..60_000]]).is_err() {
                noticed[0] = true;
                from.tail = from.head;
            }
            from.must_wake();
            if to.pop(&mut out).is_err() {
                noticed[1] = true;
                to.tail = from.head;
            }
            to.set_asleep(true);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let fd = memfd_create("not-sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, (RECORDS + CAPACITY) as u64).unwrap();
    assert!(Consumer::open(&fd).is_err());
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    assert!(Consumer::open(&fd).is_ok());
    ftruncate(&fd, (RECORDS + CAPACITY) as u64 + 1).unwrap();
    assert!(Consumer::open(&fd).is_err());
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(Consumer::open(&null).is_err());
}
