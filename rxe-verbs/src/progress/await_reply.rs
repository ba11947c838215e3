//! Busy waiting in a post for the peer's reply. It is for programs that poll their memory and turn
//! no engine meanwhile. [`super::policy::ReplyPredictor`] decides when.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use rxe_core::types::Qpn;

use super::Shard;
use super::policy::{MAX_REPLY_WAIT, PostContext, ReplyPredictor, messages};
use super::turn::Core;

/// Polls before a thread yields its CPU: about as many as a message takes to a peer on this host
/// and back.
pub(crate) const POLLS_BEFORE_YIELD: u32 = 64;

thread_local! {
    /// The queue pair of this thread's last call of [`is_sole`].
    static LAST: Cell<Option<Qpn>> = const { Cell::new(None) };
}

/// Returns whether this thread called this for the same queue pair the last time.
fn is_sole(qpn: Qpn) -> bool {
    LAST.replace(Some(qpn)) == Some(qpn)
}

impl Shard {
    /// Turns the engine after a post until the reply arrives, if `predictor` expects one. Waits for
    /// at most [`MAX_REPLY_WAIT`], plus the time for which other threads have the CPU. Does nothing
    /// in a simulation, where no peer runs meanwhile.
    pub(crate) fn await_reply(&self, qpn: Qpn, predictor: &mut ReplyPredictor) {
        if self.environment().runs_to_completion() {
            return;
        }
        let sole = is_sole(qpn);
        let began = self.environment().now();
        let look = move |core: &mut Core| (core.engine.qp_msn(qpn), core.received);
        let seen = self
            .with_lock_within(Duration::ZERO, look)
            .or_else(|| self.with_lock_within(predictor.turn_wait()?, look));
        let Some((Some(msn), received)) = seen else { return };
        let single_cpu = self.single_cpu;
        let post = PostContext { msn, received, now: began, sole, single_cpu };
        let Some(awaited) = predictor.posted(&post) else { return };
        for polls in 0u32.. {
            let turned = self.turn_if_free(|core| {
                let present = core.engine.qp_msn(qpn)?;
                let come = messages(msn, present) >= awaited;
                if come {
                    core.ping_pong.came_in_a_post();
                    core.watchers.awaited_reply();
                }
                Some(come)
            });
            match turned {
                // The answer has arrived, or an error occurred that the next call reports.
                Ok(Some(Some(true) | None)) | Err(_) => return,
                // `None`: another thread has the lock.
                Ok(Some(Some(false)) | None) => {}
            }
            let yields = polls > POLLS_BEFORE_YIELD || self.single_cpu;
            if (yields || polls.is_multiple_of(16))
                && self.environment().now().since(began) >= MAX_REPLY_WAIT
            {
                predictor.missed();
                // The program polls its memory from here on. If the device has failed, the next
                // call reports it.
                let _ = self.serve_sleeper();
                return;
            }
            if yields {
                // The peer may need this CPU.
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_posts_alternate_between_queue_pairs_has_no_sole_one() {
        let [one, other] = [17, 18].map(|n| Qpn::new(n).unwrap());
        let sole = [one, one, other, one, other, other].map(is_sole);
        assert_eq!(sole, [false, true, false, false, false, true]);
        assert!(!thread::spawn(move || is_sole(other)).join().unwrap(), "each thread by itself");
    }
}
