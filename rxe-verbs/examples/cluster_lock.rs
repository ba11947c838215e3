//! A lock in remote memory, tested with a thousand seeds in virtual time. The protocol has a bug, which the
//! test finds; then it is repaired.
//!
//! Three clients add 1 to a counter on a server, ten times each: each takes a lock with COMPARE AND SWAP, READs
//! the counter, WRITEs it back and gives the lock back. A client may crash, so the others break a lock that
//! one of them has had for longer than a lease. What the protocol forgets: a client that was only cut off is
//! still there, and its WRITE, sent again by its queue pair, arrives after somebody else has had the lock.
//!
//! Run it: `cargo run --release -p rxe-verbs --example cluster_lock`

use std::time::Duration;

use rxe_verbs::cluster::{Cluster, Host, Step};
use rxe_verbs::{
    Access, CompletionQueue, ConnectOptions, MemoryRegion, QueuePair, Remote, Result, Status,
};

/// After so long a lock may be broken.
const LEASE: Duration = Duration::from_millis(1);
/// A client looks again after so long.
const PAUSE: Duration = Duration::from_micros(20);
/// How often each client counts.
const ROUNDS: u64 = 10;

/// How a client puts the counter back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Update {
    /// The bug: whoever has had the lock writes.
    Write,
    /// The repair: the counter changes only if it is still what was read.
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

/// One run: all clients count, and one of them is cut off for a while.
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

    // At some moment, one client is cut off for longer than a lease.
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

/// What a client waits for.
#[derive(Debug, PartialEq)]
enum State {
    /// Its next try.
    Pause,
    /// The answer to its try to take the lock from this holder; 0 is nobody.
    Lock(u64),
    /// The counter.
    Read,
    /// The counter being put back; it was this.
    Update(u64),
    /// The lock being given back.
    Unlock,
}

#[derive(Debug)]
struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    /// Where answers arrive.
    answer: MemoryRegion,
    lock: Remote,
    counter: Remote,
    update: Update,
    state: State,
    /// What it puts into the lock: another value for each turn.
    token: u64,
    /// Who has the lock, and since when as far as this client knows.
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
                // COMPARE AND SWAP answers with what was there.
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
