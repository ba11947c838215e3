//! Runs a measurement while the two CPUs share a cache.
//!
//! The host of a virtual machine decides which of its cores run the machine's CPUs, and may move
//! them at any time. Two cores that share a cache exchange a cache line in about 30 ns, others in
//! 170 ns or more. While the CPUs are on such cores, exchanges between two programs can take two to
//! eight times as long. So a run is repeated if the two CPUs were far apart before or after it.

use std::cell::Cell;
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::link::two_cpus;

/// The longest exchange of a cache line between two CPUs that share a cache.
const SHARED: Duration = Duration::from_nanos(100);

/// How long all runs together wait for the CPUs to share a cache.
/// On a machine where they never do, nothing waits after that time has been used up.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(200);

/// The most times that one run is made.
const TRIES: u32 = 5;

/// Runs measurements while the two CPUs share a cache, and counts the exceptions.
pub(super) struct SharedCacheGate {
    distance: Box<dyn Fn() -> Option<Duration>>,
    patience: Cell<Duration>,
    runs: Cell<u32>,
    again: Cell<u32>,
    /// The number of runs that were kept although the CPUs were far apart.
    far: Cell<u32>,
}

impl SharedCacheGate {
    pub(super) fn new() -> Self {
        let cpus = two_cpus();
        Self::by(Box::new(move || Some(distance(cpus?))), PATIENCE)
    }

    fn by(distance: Box<dyn Fn() -> Option<Duration>>, patience: Duration) -> Self {
        let [runs, again, far] = [const { Cell::new(0) }; 3];
        Self { distance, patience: Cell::new(patience), runs, again, far }
    }

    /// Runs `measure`, and again if the CPUs did not share a cache before and after.
    /// There is a limit on the repetitions. Returns the result of the last run.
    pub(super) fn run<T>(&self, mut measure: impl FnMut() -> T) -> T {
        let mut tries = 1;
        loop {
            let before = self.wait();
            let result = measure();
            self.runs.set(self.runs.get() + 1);
            if before && self.share_cache() {
                return result;
            }
            if tries == TRIES || self.patience.get().is_zero() {
                self.far.set(self.far.get() + 1);
                return result;
            }
            tries += 1;
            self.again.set(self.again.get() + 1);
        }
    }

    /// Waits for the CPUs to share a cache, while patience is left. Returns whether they do.
    fn wait(&self) -> bool {
        loop {
            let start = Instant::now();
            if self.share_cache() {
                return true;
            }
            if self.patience.get().is_zero() {
                return false;
            }
            thread::sleep(PAUSE);
            self.patience.set(self.patience.get().saturating_sub(start.elapsed()));
        }
    }

    /// Returns whether the CPUs share a cache. On a machine without two CPUs, they do.
    fn share_cache(&self) -> bool {
        (self.distance)().is_none_or(|distance| distance <= SHARED)
    }

    /// Returns the summary as a line for a terminal, or an empty text.
    pub(super) fn note(&self) -> String {
        match self.to_string() {
            said if said.is_empty() => said,
            said => format!("xtask:{said}\n"),
        }
    }
}

/// Writes the summary as a sentence, or nothing if the CPUs shared a cache in every run.
impl fmt::Display for SharedCacheGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (again, runs, far) = (self.again.get(), self.runs.get(), self.far.get());
        if again + far == 0 {
            return Ok(());
        }
        write!(f, " Runs during which the two CPUs did not share a cache: {again} made again, ")?;
        write!(f, "{far} kept, of {runs} in all.")
    }
}

/// Measures the time that a cache line takes from one of these CPUs to the other.
fn distance((one, other): (usize, usize)) -> Duration {
    const EXCHANGES: u32 = 2000;
    const BATCHES: u32 = 10;
    let turn = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            bind(other);
            for exchange in 0..EXCHANGES * BATCHES {
                pass(&turn, 2 * exchange + 1);
            }
        });
        let measuring = scope.spawn(|| {
            bind(one);
            let batch = |number: u32| {
                let start = Instant::now();
                for exchange in number * EXCHANGES..(number + 1) * EXCHANGES {
                    pass(&turn, 2 * exchange);
                }
                start.elapsed() / (2 * EXCHANGES)
            };
            // The minimum counts, because something else may run during a batch.
            (0..BATCHES).map(batch).min().unwrap_or_default()
        });
        measuring.join().unwrap_or_default()
    })
}

/// Waits for this turn, and passes the turn on.
fn pass(turn: &AtomicU32, mine: u32) {
    while turn.load(Ordering::Acquire) != mine {
        hint::spin_loop();
    }
    turn.store(mine + 1, Ordering::Release);
}

/// Binds this thread to a CPU. If that fails, the distance is between CPUs that the kernel chooses.
fn bind(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Creates a `SharedCacheGate` that measures these distances in ns, and then repeats the last.
    fn cache_gate(distances: &'static [u64], patience: Duration) -> SharedCacheGate {
        let at = Rc::new(Cell::new(0));
        let next = move || {
            let distance = distances[at.get().min(distances.len() - 1)];
            at.set(at.get() + 1);
            Some(Duration::from_nanos(distance))
        };
        SharedCacheGate::by(Box::new(next), patience)
    }

    #[test]
    fn a_run_is_made_again_if_the_cpus_were_far_from_each_other_before_or_after() {
        let cache_gate = cache_gate(&[170, 30, 170, 30, 30], PATIENCE);
        let mut runs = 0;
        cache_gate.run(|| runs += 1);
        assert_eq!(runs, 2);
        let said = " did not share a cache: 1 made again, 0 kept, of 2 in all.";
        assert!(cache_gate.to_string().ends_with(said), "{cache_gate}");
    }

    #[test]
    fn where_the_cpus_are_always_far_nothing_waits_for_ever() {
        let cache_gate = cache_gate(&[170], Duration::from_millis(1));
        let mut runs = 0;
        cache_gate.run(|| runs += 1);
        cache_gate.run(|| runs += 1);
        assert_eq!((runs, cache_gate.far.get()), (2, 2));
    }

    #[test]
    fn where_the_cpus_change_all_the_time_the_last_run_counts() {
        let cache_gate = cache_gate(&[30, 170, 30, 170, 30, 170, 30, 170, 30, 170], PATIENCE);
        let mut runs = 0;
        assert_eq!(
            cache_gate.run(|| {
                runs += 1;
                runs
            }),
            TRIES
        );
        assert_eq!(cache_gate.far.get(), 1);
    }

    #[test]
    fn two_cpus_have_a_distance_and_one_cpu_is_near_itself() {
        if let Some(cpus) = two_cpus() {
            assert!(distance(cpus) > Duration::ZERO);
        }
        let alone = SharedCacheGate::by(Box::new(|| None), PATIENCE);
        assert_eq!(alone.run(|| 3), 3);
        assert_eq!(alone.to_string(), "");
    }
}
