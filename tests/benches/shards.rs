//! The gain of a second thread, with one shard and with two.
//! Queue pairs of two threads work in parallel only if they belong to different shards. Each thread
//! has two queue pairs that write to each other, and does the work of both ends. `one` is the rate
//! of one thread in WRITEs per second. `two` is the rate of two threads together as a multiple of
//! `one`: the median of five rounds, the minimum and the maximum.
//!
//! ```console
//! $ cargo bench -p rxe-tests --bench shards
//! $ cargo bench -p rxe-tests --bench shards -- "8 B WRITE, a shard each"     # the rows with these words
//! ```

use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{env, thread};

use rxe_verbs::{Access, ConnectOptions, Device, MemoryRegion, QpCap, QueuePair, Status};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(400);
const OUTSTANDING: u32 = 64;

fn main() {
    // Cargo adds the argument `--bench`.
    let wanted = env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    println!("{:<44}{:>9}{:>8}{:>8}{:>8}", "", "one", "two", "least", "most");
    for (way, shared_memory) in [("shared memory", true), ("udp", false)] {
        for bytes in [8, 64 << 10] {
            for (name, shards) in [("one shard", Some(1)), ("a shard each", None)] {
                let label = format!("{way}, {bytes} B WRITE, {name}");
                if !label.contains(&wanted) {
                    continue;
                }
                let (mut ones, mut ratios) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    let one = rate(1, bytes, shared_memory, shards);
                    ratios.push(rate(2, bytes, shared_memory, shards) / one);
                    ones.push(one);
                }
                ones.sort_by(f64::total_cmp);
                ratios.sort_by(f64::total_cmp);
                let (one, two) = (ones[ROUNDS / 2], ratios[ROUNDS / 2]);
                let (least, most) = (ratios[0], ratios[ROUNDS - 1]);
                println!("{label:<44}{one:>9.0}{two:>8.2}{least:>8.2}{most:>8.2}");
            }
        }
    }
}

/// Returns the WRITEs per second of all threads together.
fn rate(threads: usize, bytes: usize, shared_memory: bool, shards: Option<u32>) -> f64 {
    let options =
        Device::options("lo").address([127, 98, 1, 1].into()).shared_memory(shared_memory);
    let options = match shards {
        Some(count) => options.shards(count),
        None => options,
    };
    let device = options.open().expect("a device on lo");
    let ready = Barrier::new(threads);
    let rates: Vec<f64> = thread::scope(|scope| {
        let work = || {
            let ends = Ends::new(&device, bytes);
            ends.run(TIME / 8);
            ready.wait();
            ends.run(TIME)
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().map(|thread| thread.join().expect("a thread that works")).collect()
    });
    rates.iter().sum()
}

/// Two queue pairs that are connected to each other, and memory to write to.
struct Ends {
    qps: [QueuePair; 2],
    region: MemoryRegion,
    bytes: usize,
}

impl Ends {
    fn new(device: &Device, bytes: usize) -> Self {
        let pd = device.create_pd().expect("a domain");
        let cq = device.create_cq(2 * OUTSTANDING).expect("a completion queue");
        let cap = QpCap { max_send_wr: OUTSTANDING, ..QpCap::default() };
        let qps = [(); 2].map(|()| pd.qp(&cq).cap(cap).build().expect("a queue pair"));
        for (qp, peer) in [(&qps[0], &qps[1]), (&qps[1], &qps[0])] {
            qp.connect(&peer.endpoint(), &ConnectOptions::default()).expect("a connection");
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(2 * bytes, access).expect("memory");
        Self { qps, region, bytes }
    }

    /// Returns the WRITEs per second.
    fn run(&self, time: Duration) -> f64 {
        let from = self.region.slice(..self.bytes);
        let (cq, began) = (self.qps[0].send_cq(), Instant::now());
        let (mut done, mut outstanding, mut ended) = (0u32, 0, false);
        while !ended || outstanding > 0 {
            ended = began.elapsed() >= time;
            while !ended && outstanding < OUTSTANDING {
                let remote = self.region.remote(self.bytes);
                self.qps[0].write(0, &[from], remote).post().expect("room for a request");
                outstanding += 1;
            }
            let polled = cq.poll(32, |completion| {
                assert!(completion.status == Status::Success, "{completion:?}");
            });
            let polled = u32::try_from(polled.expect("a device that works")).unwrap_or(0);
            (done, outstanding) = (done + polled, outstanding - polled);
        }
        f64::from(done) / began.elapsed().as_secs_f64()
    }
}
