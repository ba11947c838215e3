//! Many threads on one device: no request is lost, stranded or doubled.

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use rxe_verbs::*;

#[test]
fn no_posted_request_is_stranded() {
    // Threads post one request after another to queue pairs of one device, and so contend for the
    // shard's lock. A request whose doorbell were missed would never complete.
    let (a, b) = (open(address()), open(address()));
    let passive = Side::new(b);
    let counter = passive.region(8);
    const THREADS: u64 = 6;
    const EACH: u64 = 3_000;
    let qps: Vec<_> = (0..THREADS)
        .map(|_| {
            let side = Side::new(a.clone());
            let other = passive.pd.qp(&passive.cq).build().unwrap();
            connect(&side.qp, &other);
            (side, other)
        })
        .collect();
    thread::scope(|scope| {
        for (side, _) in &qps {
            let word = counter.remote(0);
            scope.spawn(move || {
                let result = side.region(8);
                for i in 0..EACH {
                    side.qp.fetch_add(i, result.slice(..), word, 1).post().unwrap();
                    assert_eq!(side.ok().id, i);
                }
            });
        }
    });
    assert_eq!(counter.load_u64(0).unwrap(), THREADS * EACH);
}

#[test]
fn threads_share_a_queue_pair_and_its_completions() {
    let (a, b) = pair();
    let word = b.region(8);
    const THREADS: u64 = 4;
    const EACH: u64 = 2_000;
    let seen = AtomicU64::new(0);
    // This region outlives the threads: one may end while another waits for a completion of its
    // request.
    let result = a.region(8);
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (a, word, seen, result) = (&a, &word, &seen, &result);
            scope.spawn(move || {
                for i in 0..EACH {
                    let id = t * EACH + i;
                    a.qp.fetch_add(id, result.slice(..), word.remote(0), 1).post().unwrap();
                    // The completion may belong to any thread.
                    let done = a.ok();
                    seen.fetch_add(done.id, Ordering::Relaxed);
                }
            });
        }
    });
    let n = THREADS * EACH;
    assert_eq!(word.load_u64(0).unwrap(), n);
    assert_eq!(seen.into_inner(), n * (n - 1) / 2, "each completion exactly once");
}

#[test]
fn streams_in_both_directions_at_once() {
    let (a, b) = pair();
    let (x, y) = (a.region(2 << 20), b.region(2 << 20));
    const N: u64 = 40;
    let work = |me: &Side, mine: &MemoryRegion, theirs: Remote| {
        for i in 0..N {
            me.qp.write(i, &[mine.slice(..1 << 20)], theirs).post().unwrap();
            if i >= 8 {
                me.ok();
            }
        }
        (0..8).for_each(|_| {
            me.ok();
        });
    };
    x.write_at(0, &pattern(1 << 20, 1)).unwrap();
    y.write_at(0, &pattern(1 << 20, 2)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| work(&a, &x, y.remote(1 << 20)));
        scope.spawn(|| work(&b, &y, x.remote(1 << 20)));
    });
    assert_eq!(y.to_vec(1 << 20..).unwrap(), pattern(1 << 20, 1));
    assert_eq!(x.to_vec(1 << 20..).unwrap(), pattern(1 << 20, 2));
}

/// A function that runs when a thread's thread-local data is destroyed.
struct AtEnd(RefCell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().expect("it was set")();
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd(RefCell::new(None)) };
}

#[test]
fn verbs_work_in_destructors_of_thread_local_data() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    connect(&a.qp, &b.qp);
    let (done, is_done) = std::sync::mpsc::channel();
    let sleeps = |cq: &CompletionQueue| {
        let nothing = cq.wait_one(Duration::from_millis(1));
        assert!(matches!(nothing, Err(Error::TimedOut { .. })), "{nothing:?}");
    };
    let thread = thread::spawn(move || {
        let other = b.device.create_cq(4).unwrap();
        // This data is created before the library's data of this thread, and so destroyed later.
        let at_end = move || {
            sleeps(&a.cq);
            let (from, to) = (a.region(8), b.region(8));
            a.qp.write(7, &[from.slice(..)], to.remote(0)).post().unwrap();
            done.send(a.cq.wait_one(TIMEOUT).unwrap().id).unwrap();
        };
        AT_END.with(|end| end.0.replace(Some(Box::new(at_end))));
        sleeps(&other);
    });
    thread.join().unwrap();
    assert_eq!(is_done.recv(), Ok(7));
}
