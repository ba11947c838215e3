//! A lock in remote memory, tested with a thousand seeds in virtual time.
//! The protocol has a bug. The test finds it; then the test runs with the repaired protocol.
//!
//! Three clients add 1 to a counter on a server, ten times each. For each addition a client takes a
//! lock with COMPARE AND SWAP, READs the counter, WRITEs it back and releases the lock. Because a
//! client may crash, the others break a lock that one client has held for longer than a lease. The
//! bug: a client that was only cut off from the network is still running. Its queue pair sends the
//! WRITE again, and the WRITE arrives after another client has held the lock.
//!
//! Run it: `cargo run --release -p rxe-verbs --example cluster_lock`

use std::time::Duration;

use rxe_verbs::cluster::{Cluster, Host, Step};
use rxe_verbs::{
    Access, CompletionQueue, ConnectOptions, MemoryRegion, QueuePair, Remote, Result, Status,
};

/// The time after which a lock may be broken.
const LEASE: Duration = Duration::from_millis(1);
/// The time after which a client tries again to take the lock.
const PAUSE: Duration = Duration::from_micros(20);
/// The number of times that each client counts.
const ROUNDS: u64 = 10;

/// How a client writes the counter back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Update {
    /// The bug: a client that has held the lock WRITEs unconditionally.
    Write,
    /// The repair: COMPARE AND SWAP, which fails if the counter is no longer the value that was read.
    CompareAndSwap,
}

fn main() -> Result<()> {
    const SEEDS: u64 = 1000;
    let finds = |update| (0..SEEDS).find_map(|seed| run(seed, update, None).unwrap().err());
    if let Some(Failure { seed, counted, counter }) = finds(Update::Write) {
        println!("seed {seed}: the clients counted {counted} times, and the counter is {counter}");
        run(seed, Update::Write, Some("cluster_lock.pcapng"))?.unwrap_err();
        println!("its packets are in cluster_lock.pcapng: rxe ladder cluster_lock.pcapng");
    }
    assert_eq!(finds(Update::CompareAndSwap), None);
    println!("with COMPARE AND SWAP, all {SEEDS} seeds count right");
    Ok(())
}

/// A run in which counts were lost.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    counted: u64,
    counter: u64,
}

/// Runs the cluster once: all clients count, and one of them is cut off for a while.
pub(crate) fn run(seed: u64, update: Update, capture: Option<&str>) -> Result<Result<(), Failure>> {
    let mut cluster = Cluster::new(seed);
    capture.map_or(Ok(()), |path| cluster.capture(path))?;
    let server = cluster.add_host()?;
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let pd = server.create_pd()?;
    // The lock at 0, the counter at 8.
    let words = pd.register(16, access)?;
    let their_cq = server.create_cq(1)?;
    let mut clients = Vec::new();
    let mut their_qps = Vec::new();
    for number in 1..=3 {
        let host = cluster.add_host()?;
        let their_qp = pd.qp(&their_cq).build()?;
        clients.push(Client::new(&host, number, &their_qp, &words, update)?);
        their_qps.push(their_qp);
    }

    // At a time that depends on the seed, one client is cut off for longer than a lease.
    let (server, victim) = (server.id(), cluster.hosts()[1 + (seed % 3) as usize]);
    let at = Duration::from_micros(seed * 7 % 400);
    cluster.after(at, move |network| network.partition(&[server], &[victim]));
    cluster.after(at + 3 * LEASE, |network| network.heal());

    let finished = cluster.run_until(Duration::from_secs(10), |step| {
        if let Some(client) = step.host().index().checked_sub(1) {
            clients[client].step(step).expect("the connection holds");
        }
        clients.iter().all(Client::is_done)
    });
    assert!(finished, "seed {seed}: {clients:?}");
    let counted = clients.iter().map(|client| client.counted).sum();
    let counter = words.load_u64(8)?;
    Ok(if counted == counter { Ok(()) } else { Err(Failure { seed, counted, counter }) })
}

/// The event that a client waits for.
#[derive(Debug, PartialEq)]
enum State {
    /// The time of the next try.
    Pause,
    /// The result of trying to take the lock from this holder; 0 means that the lock is free.
    Lock(u64),
    /// The READ of the counter.
    Read,
    /// The write of the counter, whose old value is given.
    Update(u64),
    /// The release of the lock.
    Unlock,
}

#[derive(Debug)]
struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    /// The buffer for the results of READs and atomics.
    answer: MemoryRegion,
    lock: Remote,
    counter: Remote,
    update: Update,
    state: State,
    /// The value that this client writes into the lock, a different one each time.
    token: u64,
    /// The holder of the lock, and since when this client has seen this holder.
    holder: (u64, Duration),
    counted: u64,
}

impl Client {
    fn new(
        host: &Host,
        number: u64,
        their_qp: &QueuePair,
        words: &MemoryRegion,
        update: Update,
    ) -> Result<Self> {
        let (pd, cq) = (host.create_pd()?, host.create_cq(16)?);
        let qp = pd.qp(&cq).build()?;
        qp.connect(&their_qp.endpoint(), &ConnectOptions::default())?;
        their_qp.connect(&qp.endpoint(), &ConnectOptions::default())?;
        Ok(Self {
            answer: pd.register(8, Access::LOCAL_WRITE)?,
            lock: words.remote(0),
            counter: words.remote(8),
            state: State::Pause,
            token: number << 32,
            holder: (0, Duration::ZERO),
            counted: 0,
            qp,
            cq,
            update,
        })
    }

    fn is_done(&self) -> bool {
        self.counted == ROUNDS && self.state == State::Pause
    }

    fn step(&mut self, step: &Step<'_>) -> Result<()> {
        while let Some(done) = self.cq.poll_one()? {
            assert_eq!(done.status, Status::Success);
            self.completed(step)?;
        }
        if self.state == State::Pause && self.counted < ROUNDS {
            self.token += 1;
            self.take_lock(0)?;
        }
        Ok(())
    }

    fn completed(&mut self, step: &Step<'_>) -> Result<()> {
        let answer = self.answer.load_u64(0)?;
        match self.state {
            State::Pause => {}
            State::Lock(expected) if answer == expected => {
                self.state = State::Read;
                self.qp.read(1, &[self.answer.slice(..)], self.counter).post()?;
            }
            State::Lock(_) => {
                if self.holder.0 != answer {
                    self.holder = (answer, step.now());
                }
                if answer != 0 && step.now() - self.holder.1 > LEASE {
                    return self.take_lock(answer);
                }
                self.pause(step);
            }
            State::Read => {
                self.state = State::Update(answer);
                match self.update {
                    Update::Write => {
                        let bytes = (answer + 1).to_ne_bytes();
                        self.qp.write_bytes(1, &bytes, self.counter).post()?;
                    }
                    Update::CompareAndSwap => self.swap(self.counter, answer, answer + 1)?,
                }
            }
            State::Update(before) => {
                // COMPARE AND SWAP returns the old value.
                self.counted += u64::from(self.update == Update::Write || answer == before);
                self.state = State::Unlock;
                self.swap(self.lock, self.token, 0)?;
            }
            State::Unlock => self.pause(step),
        }
        Ok(())
    }

    fn take_lock(&mut self, from: u64) -> Result<()> {
        self.state = State::Lock(from);
        self.swap(self.lock, from, self.token)
    }

    fn swap(&self, word: Remote, expected: u64, new: u64) -> Result<()> {
        self.qp.compare_swap(1, self.answer.slice(..), word, expected, new).post()
    }

    fn pause(&mut self, step: &Step<'_>) {
        self.state = State::Pause;
        step.again_after(PAUSE);
    }
}
