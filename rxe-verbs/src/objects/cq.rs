//! Completion queues: reports of finished requests. IBTA 11.2.6.

mod notify;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rxe_core::VerbsError;
use rxe_core::engine::Affiliation;
use rxe_core::queue::{self, Arm, Completion, Notify, Status};
use rxe_core::types::Qpn;

pub(crate) use self::notify::ChannelEvents;
use self::notify::Notifier;
use crate::device::{Device, ShardSet};
use crate::error::{Error, Result};
use crate::faults::DelayedCq;
use crate::observe::{Counted, Permit, UseCounters, UseCounts, Used, closed};
use crate::os::now;
use crate::progress::{POLLS_BEFORE_YIELD, Shard, WakeAll, Waker};

/// A completion queue, to which finished requests report.
///
/// There are three ways to wait: [`CompletionQueue::spin_one`] (lowest latency, keeps a CPU busy),
/// [`CompletionQueue::wait_one`] (sleeps), and a [`crate::CompletionChannel`] in an event loop. Any
/// number of threads may wait simultaneously.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    device: Device,
    /// The shards of the queue's queue pairs.
    shards: ShardSet,
    /// The completion vector, a hint for the shard of the first queue pair.
    vector: AtomicU32,
    queue: Arc<queue::CompletionQueue>,
    notifier: Arc<Notifier>,
    /// Delays completions. `None` without this injected fault; then it costs a poll one branch.
    delayed: Option<Arc<DelayedCq>>,
    uses: Arc<UseCounters>,
    _permit: Permit,
}

impl Counted for CompletionQueue {
    fn use_counters(&self) -> &UseCounters {
        &self.inner.uses
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // In a forked child, threads that exist only in the parent may hold the locks.
        if !self.device.shard().is_own() {
            return;
        }
        self.device.shards().for_each(|shard| shard.forget(self.queue.id()));
        self.device.resources().cq_list.remove(self.queue.id());
        if let Some(channel) = &self.notifier.channel {
            channel.forget_gone();
        }
        self.device.asyncs().forget(Affiliation::Cq(self.queue.id()));
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        device: Device,
        depth: u32,
        channel: Option<Used<Arc<ChannelEvents>>>,
    ) -> Result<Self> {
        device.shard().check()?;
        check_depth(&device, depth)?;
        let permit = device.resources().cqs.take()?;
        let delayed = device.faults().and_then(|faults| DelayedCq::new(&faults.verbs));
        let (delayed, wakes) = delayed.map(|(delayed, wakes)| (Arc::new(delayed), wakes)).unzip();
        let inner = Arc::new_cyclic(|owner| {
            let notifier = Arc::new(Notifier::new(owner, channel));
            let notify: Arc<dyn Notify> = match &delayed {
                Some(delayed) => Arc::clone(delayed) as Arc<dyn Notify>,
                None => notifier.clone(),
            };
            let queue = Arc::new(queue::CompletionQueue::new(depth, Some(notify)));
            CqInner {
                device,
                shards: ShardSet::default(),
                vector: AtomicU32::new(0),
                queue,
                notifier,
                delayed,
                uses: Arc::default(),
                _permit: permit,
            }
        });
        if let Some(wakes) = wakes {
            DelayedCq::start(wakes, Arc::downgrade(&inner.notifier))?;
        }
        let notifier: Arc<dyn WakeAll> = inner.notifier.clone();
        inner.device.shard().enroll(inner.queue.id(), &notifier);
        let listed = (Arc::downgrade(&inner.queue), Arc::downgrade(&inner.uses));
        inner.device.resources().cq_list.add(inner.queue.id(), listed);
        Ok(Self { inner })
    }

    /// Returns the shards of the queue pairs, one bit for each shard number.
    pub(crate) fn shard_bits(&self) -> u32 {
        self.inner.shards.bits()
    }

    /// Drops the delayed completions of a queue pair that was reset or destroyed. The engine has
    /// already removed those in the queue.
    pub(crate) fn discard(&self, qpn: Qpn) {
        if let Some(delayed) = &self.inner.delayed {
            delayed.discard(qpn);
        }
    }

    /// Records that a queue pair of this shard completes in the queue.
    pub(crate) fn add_shard(&self, number: usize) {
        let inner = &*self.inner;
        if !inner.shards.add(number) {
            return;
        }
        let notifier: Arc<dyn WakeAll> = inner.notifier.clone();
        inner.device.shard_at(number).enroll(inner.queue.id(), &notifier);
        if let Some(channel) = &inner.notifier.channel {
            channel.shards().add(number);
        }
    }

    /// Returns the first shard of the queue pairs, or the device's first shard if there are none.
    #[inline]
    fn shard(&self) -> &Shard {
        self.inner.device.first_of(&self.inner.shards)
    }

    /// Returns the other shards of the queue pairs.
    fn other_shards(&self) -> impl Iterator<Item = &Shard> {
        let bits = self.inner.shards.bits();
        self.inner.device.shards_among(bits & bits.wrapping_sub(1))
    }

    /// Drives the queue's shards, one after another, until a completion arrives.
    #[inline]
    fn turn(&self) -> Result<()> {
        self.shard().turn_if_free(|_| ())?;
        for other in self.other_shards() {
            if !self.is_empty() {
                break;
            }
            other.turn_if_free(|_| ())?;
        }
        Ok(())
    }

    /// Drives the queue's shards, then checks for failures and overflow. Requests flushed by a
    /// failure have completed before this returns, so the caller polls the queue once more.
    #[inline]
    fn turn_and_check(&self) -> Result<()> {
        let works = self.turn().and_then(|()| self.check());
        if works.is_err() {
            self.inner.device.shards_among(self.inner.shards.bits()).for_each(Shard::end_failure);
        }
        works
    }

    /// Sends the acknowledgements of polled messages that must leave before the program goes on.
    #[inline]
    fn send_owed_acks(&self) {
        self.shard().send_owed_acks();
        self.other_shards().for_each(Shard::send_owed_acks);
    }

    /// Returns the engine's part of the queue.
    pub(crate) fn queue(&self) -> &Arc<queue::CompletionQueue> {
        &self.inner.queue
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns how many completions the queue can hold.
    pub fn depth(&self) -> usize {
        self.inner.queue.depth()
    }

    /// Returns a number that identifies the queue within this process.
    pub fn id(&self) -> u64 {
        self.inner.queue.id()
    }

    /// Returns the completion vector: 0 unless [`CompletionQueue::set_comp_vector`] was called.
    pub fn comp_vector(&self) -> u32 {
        self.inner.vector.load(Ordering::Relaxed)
    }

    /// Sets the completion vector (`comp_vector` of `ibv_create_cq`).
    ///
    /// Queue pairs whose completion queues have different vectors run in parallel, in different
    /// shards, if there are enough CPUs ([`crate::OpenOptions::shards`]). The vector is a hint for
    /// the first queue pair of the queue; later queue pairs use the same shard.
    ///
    /// Numbers are taken modulo the device's
    /// [`num_comp_vectors`](crate::device::DeviceAttr::num_comp_vectors).
    pub fn set_comp_vector(&self, vector: u32) {
        self.inner.vector.store(vector, Ordering::Relaxed);
    }

    /// Changes the queue's capacity to `depth` completions.
    ///
    /// Completions in the queue stay in order, and none that arrives meanwhile is lost.
    ///
    /// # Errors
    /// Fails, without a change, if `depth` is 0, above the device's limit, or too small for the
    /// completions in the queue.
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.inner.device.shard().check()?;
        check_depth(&self.inner.device, depth)?;
        Ok(self.inner.queue.resize(depth)?)
    }

    /// Returns the number of completions in the queue.
    pub fn len(&self) -> usize {
        self.inner.queue.len()
    }

    /// Returns whether the queue holds no completions.
    pub fn is_empty(&self) -> bool {
        self.inner.queue.is_empty()
    }

    /// Takes the oldest completion, if there is one. Drives the engine if the queue is empty, and
    /// does not wait for completions.
    ///
    /// # Errors
    /// Fails with [`Error::CqOverflow`] or [`Error::DeviceFailed`] after all available completions
    /// have been taken.
    pub fn poll_one(&self) -> Result<Option<Completion>> {
        let mut one = None;
        self.poll(1, |completion| one = Some(completion))?;
        Ok(one)
    }

    /// Passes up to `max` completions to `each` and returns their number. (`ibv_poll_cq`.)
    ///
    /// # Errors
    /// Fails like [`CompletionQueue::poll_one`].
    pub fn poll(&self, max: usize, mut each: impl FnMut(Completion)) -> Result<usize> {
        self.shard().check_own()?;
        let mut take = || std::iter::from_fn(|| self.next()).take(max).map(&mut each).count();
        let mut taken = take();
        if taken == 0 && max > 0 {
            let works = self.turn_and_check();
            taken = take();
            if taken == 0 {
                works?;
            }
        }
        if taken > 0 {
            self.send_owed_acks();
        }
        Ok(taken)
    }

    /// Returns whether completions were lost because the queue was full.
    pub fn is_overflowed(&self) -> bool {
        self.inner.queue.is_overflowed()
    }

    /// Waits for one completion; the thread sleeps.
    ///
    /// # Errors
    /// Fails with [`Error::TimedOut`], and like [`CompletionQueue::poll_one`].
    pub fn wait_one(&self, timeout: Duration) -> Result<Completion> {
        self.shard().check_own()?;
        if let Some(completion) = self.take() {
            return Ok(completion);
        }
        let deadline = self.device().now() + timeout;
        let waker = Waker::current()?;
        let _waiting = self.inner.notifier.wait_with(Arc::clone(&waker));
        let result = self.shard().sleep(waker.event(), deadline, || {
            if let Some(completion) = self.take() {
                return Ok(Some(completion));
            }
            self.check()?;
            waker.clear();
            self.arm_queue(Arm::Any);
            // A completion that arrived before the arming does not wake the thread.
            Ok(self.take())
        });
        match result {
            Ok(Some(completion)) => Ok(completion),
            Ok(None) => Err(Error::TimedOut { what: "completion", after: timeout }),
            // A failure flushes requests before it is reported, so a completion may be there.
            Err(error) => self.take().ok_or(error),
        }
    }

    /// Waits for one completion by polling continuously, which has the lowest latency.
    ///
    /// On a simulated host, like [`CompletionQueue::wait_one`].
    ///
    /// # Errors
    /// Fails with [`Error::TimedOut`], and like [`CompletionQueue::poll_one`].
    pub fn spin_one(&self, timeout: Duration) -> Result<Completion> {
        if self.shard().environment().is_simulated() {
            return self.wait_one(timeout);
        }
        let deadline = now() + timeout;
        for polls in 0u32.. {
            if let Some(completion) = self.poll_one()? {
                return Ok(completion);
            }
            if now() >= deadline {
                break;
            }
            // The peer, or the thread that will post, may need this CPU.
            if polls > POLLS_BEFORE_YIELD {
                std::thread::yield_now();
            }
        }
        Err(Error::TimedOut { what: "completion", after: timeout })
    }

    /// Requests one event on the queue's channel at the next completion. (`ibv_req_notify_cq`.)
    ///
    /// With `solicited_only`, only a completion whose sender requested it, or an error, causes the
    /// event. Poll once more after arming, because completions that are already in the queue cause
    /// no event. If other threads call [`CompletionQueue::wait_one`] on the queue, an event may
    /// come too early.
    ///
    /// # Errors
    /// Fails with [`Error::DeviceFailed`].
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        self.shard().check_own()?;
        self.inner.notifier.arming.arm();
        self.arm_queue(if solicited_only { Arm::Solicited } else { Arm::Any });
        self.shard().serve_sleeper()?;
        self.other_shards().try_for_each(Shard::serve_sleeper)
    }

    /// Returns whether the next completion, or the next solicited one, will cause an event on the
    /// channel.
    pub fn is_armed(&self) -> bool {
        self.inner.notifier.arming.is_armed()
    }

    /// Makes the queue discard completions when it is full (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    ///
    /// Without this, an overflow puts the queue pairs into the error state.
    pub fn ignore_overrun(&self) {
        self.inner.queue.ignore_overrun();
    }

    /// Returns the number of other references: handles and queue pairs.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns the number of queue pairs and XRC shared receive queues that complete in the queue.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Closes the queue and reports remaining users.
    ///
    /// # Errors
    /// Fails if the queue is in use. It is then destroyed with its last user.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the completion queue")
    }

    /// Takes the oldest completion, unless a fault delays it.
    #[inline]
    fn next(&self) -> Option<Completion> {
        let next = match &self.inner.delayed {
            None => self.inner.queue.poll(),
            Some(delayed) => delayed.poll(&self.inner.queue),
        };
        if next.as_ref().is_some_and(|completion| completion.status != Status::Success) {
            self.inner
                .device
                .shards_among(self.inner.shards.bits())
                .for_each(Shard::tell_observers);
        }
        next
    }

    fn arm_queue(&self, arm: Arm) {
        self.inner.queue.arm(arm);
        if let Some(delayed) = &self.inner.delayed {
            delayed.armed(&self.inner.queue);
        }
    }

    /// Takes the oldest completion, and sends the acknowledgement of its message if that must leave.
    fn take(&self) -> Option<Completion> {
        self.next().inspect(|_| self.send_owed_acks())
    }

    fn check(&self) -> Result<()> {
        if self.inner.queue.is_overflowed() {
            return Err(Error::CqOverflow { depth: self.depth() });
        }
        self.shard().check()?;
        self.other_shards().try_for_each(Shard::check)
    }
}

impl Device {
    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// Fails if `depth` is 0 or above the device's limit, or if the device allows no more queues.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(self.clone(), depth, None)
    }
}

fn check_depth(device: &Device, depth: u32) -> Result<()> {
    let limit = device.limits().max_cqe;
    if depth == 0 || depth > limit {
        let what = "completions in a queue (at least 1)";
        let (asked, limit) = (depth.into(), limit.into());
        return Err(VerbsError::LimitExceeded { what, asked, limit }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::event::AsyncKind;

    /// A search through all queues for those that are gone would take longer with each queue.
    #[test]
    fn a_queue_that_is_gone_leaves_nothing_to_look_through() {
        let device = Device::options("lo").address([127, 77, 1, 1].into()).open().unwrap();
        let queues: Vec<_> = (0..100).map(|_| device.create_cq(1).unwrap()).collect();
        assert_eq!(device.shard().enrolled(), 100);
        drop(queues);
        assert_eq!(device.shard().enrolled(), 0);
    }

    /// The parent's threads sometimes hold locks at the moment of the fork.
    #[test]
    fn what_a_forked_child_drops_waits_for_no_lock_of_its_parent() {
        let device = Device::options("lo").address([127, 77, 1, 2].into()).open().unwrap();
        let (pd, channel) = (device.create_pd().unwrap(), device.create_channel().unwrap());
        let busy = device.create_cq_on(1, &channel).unwrap();
        let end = AtomicBool::new(false);
        let until_the_end = |f: &dyn Fn()| {
            while !end.load(Ordering::Relaxed) {
                f();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| until_the_end(&|| busy.inner.notifier.wake_all()));
            scope.spawn(|| until_the_end(&|| drop(channel.get_event(Some(Duration::ZERO)))));
            scope.spawn(|| {
                until_the_end(&|| {
                    device.asyncs().of_device(AsyncKind::GidChange, String::new());
                    device.poll_async_event();
                });
            });
            scope.spawn(|| until_the_end(&|| drop(device.qpns(0).take(device.shard()))));
            for _ in 0..10 {
                let cq = device.create_cq_on(1, &channel).unwrap();
                let all = (pd.qp(&cq).build().unwrap(), pd.create_srq(1, 1).unwrap(), cq);
                // SAFETY: the child only drops what it has, and ends.
                #[expect(unsafe_code, reason = "a child without exec")]
                let status = unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::alarm(20);
                        drop(all);
                        libc::_exit(0);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status
                };
                if status != 0 {
                    end.store(true, Ordering::Relaxed);
                }
                assert_eq!(status, 0);
            }
            end.store(true, Ordering::Relaxed);
        });
    }
}
