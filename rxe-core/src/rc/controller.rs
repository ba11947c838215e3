//! The contract between a requester and the part of it that decides how fast to send and when to send
//! again. The requester reports what happens, and obeys; it never sees which algorithm answers.
//!
//! There is one implementation, [`Recovery`](super::recovery::Recovery). A requester is generic over
//! the trait, so calls are static, and a different algorithm is a different type.
//!
//! Two more parties limit a queue pair, and neither belongs to a requester: the pace that congestion
//! notifications set holds for requests and READ responses together (`qp::congestion`), and queue
//! pairs that send to one address divide a window (`engine::peers`). The pace arrives here as the
//! budget of a call, and the divided window as `peer_window`, in packets.

use std::fmt::Debug;

use crate::event::RetryCause;
use crate::queue::Status;
use crate::service::QpView;
use crate::types::{Psn, QpAttr, RnrTimer, Time};

/// Decides how much a requester may send, when it sends again, and when it gives up.
pub(crate) trait Controller: Debug + Default {
    /// Returns the controller of a requester that enters RTS.
    fn new(view: &QpView<'_>) -> Self;

    /// Takes over the timeout and the retry counts, which a program may change in SQD.
    fn set_limits(&mut self, attr: &QpAttr);

    /// Returns how many packets may be unacknowledged.
    fn window(&self, peer_window: u32) -> u32;

    /// Returns how many packets may be sent now if `used` are unacknowledged.
    fn room(&self, used: u32, peer_window: u32) -> u32;

    /// Returns how many packets may be sent now as one coalesced segment if `used` are
    /// unacknowledged. Only the last packet of a segment can ask for an acknowledgement.
    fn segment_room(&self, used: u32, peer_window: u32) -> u32;

    /// Returns how many response packets one READ request may ask for.
    fn read_chunk(&self, peer_window: u32, max_rd_atomic: u8) -> u32;

    /// Returns whether the last of the next `count` packets must ask for an acknowledgement, so that
    /// the window keeps moving. `used`: packets that are unacknowledged once these are sent.
    fn asks(&self, used: u32, count: u32, peer_window: u32) -> bool;

    /// Returns whether the `used` unacknowledged packets must be sent again, because the last of them
    /// did not ask for an acknowledgement: the packet that was to ask could not be sent.
    fn must_ask_again(&mut self, used: u32) -> bool;

    /// Returns whether an attempt to send may find something to send.
    fn is_open(&self) -> bool;

    /// Returns whether nothing may be sent until a timer expires.
    fn is_paused(&self) -> bool;

    /// An attempt to send, not in a pause, found nothing that may be sent. [`Controller::is_open`] is
    /// false until something happens that may change this.
    fn note_idle(&mut self);

    /// There may be something to send again. Only its timer ends a pause.
    fn reopen(&mut self);

    /// Returns whether [`Sent::timed`] is needed. Most connections never lose a packet, and time none.
    fn is_timing(&self) -> bool;

    /// Something was sent that needs a response.
    fn on_sent(&mut self, now: Time, sent: Sent);

    /// Packets that were not acknowledged before are acknowledged now. Returns whether the last loss
    /// was none: what was sent before it then need not be sent again.
    fn on_acknowledged(&mut self, now: Time, acknowledged: Acknowledged) -> bool;

    /// Packets or a response were lost.
    fn on_loss(&mut self, now: Time, loss: Loss) -> Verdict;

    /// The peer has no receive for the oldest request (RNR NAK), and asks for a pause. `outstanding`:
    /// packets are unacknowledged.
    fn on_not_ready(&mut self, now: Time, timer: RnrTimer, outstanding: bool) -> Verdict;

    /// The network has marked packets of this queue pair, and the peer says so (CNP).
    fn on_marked(&mut self, now: Time);

    /// The time until `now` says nothing about the peer, because this host did not run. A try is
    /// extended once.
    fn excuse(&mut self, now: Time);

    /// The time until `now` says nothing about the peer, because this side held back the packets.
    fn restart(&mut self, now: Time);

    /// Stops all timers: the requester has failed.
    fn stop(&mut self);

    /// Returns when [`Controller::take_due`] is to be called.
    fn deadline(&self) -> Option<Time>;

    /// Takes the timer that has expired at `now`. [`RetryCause::ReceiverNotReady`]: the pause that the
    /// peer asked for is over. Any other cause is a loss, to be reported to [`Controller::on_loss`].
    /// `awaits_data`: the oldest request is a READ or atomic.
    fn take_due(&mut self, now: Time, awaits_data: bool) -> Option<RetryCause>;
}

/// Packets that were sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// How many PSNs they take.
    pub(super) psns: u32,
    /// The last of them asks for a response.
    pub(super) asks: bool,
    /// The PSN of the last of them, if that asks for a response and was never sent before. `None`
    /// where [`Controller::is_timing`] is false.
    pub(super) timed: Option<Psn>,
}

/// Progress by one response, or by several that arrived together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// The oldest PSN that is still unacknowledged.
    pub(super) una: Psn,
    /// How many packets each response acknowledges.
    pub(super) packets: u32,
    /// How many responses there are.
    pub(super) responses: u32,
    /// Packets are still unacknowledged.
    pub(super) outstanding: bool,
}

/// A loss, and what was on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// How the loss shows.
    pub(super) cause: RetryCause,
    /// One past the highest PSN ever sent.
    pub(super) high: Psn,
    /// Packets are unacknowledged since the requester last went back.
    pub(super) outstanding: bool,
    /// The oldest request is a READ or atomic.
    pub(super) awaits_data: bool,
}

/// What a requester does about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: the loss is known.
    Ignore,
    /// Send everything again from the oldest unacknowledged PSN on (go-back-N).
    GoBack,
    /// Fail the oldest request with this status.
    GiveUp(Status),
}
