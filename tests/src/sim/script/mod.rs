//! What happens in a run of the second kind: every service and every object that verbs have. A
//! script is a list of steps, each of which a program takes if it can when its time has come; a plain
//! value, so that it can be made smaller ([`shrink`](super::shrink)) and run again.
//!
//! Every message, and every range of memory that something is written to, is used once, so that what
//! it holds tells what has happened to it.

mod draw;
mod steps;

use std::net::IpAddr;
use std::time::Duration;

use rxe_core::mem::{Access, WindowType};
use rxe_core::qp::{QpAttr, QpCap, QpType};
use rxe_core::queue::SendFlags;
use rxe_core::types::Qkey;

use super::memory::{Layout, Place};
use super::network::Network;

/// The Q_Key of datagrams to groups.
pub const GROUP_KEY: Qkey = Qkey::new(0x1111);

/// One run.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its number.
    pub run: u64,
    /// Programs do worse than to send and to receive.
    pub disturbed: bool,
    /// The network, and what is wrong with it.
    pub network: Network,
    /// The devices.
    pub sides: Vec<Side>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Memory windows.
    pub windows: Vec<Window>,
    /// Multicast groups.
    pub groups: Vec<IpAddr>,
    /// No message is longer.
    pub longest: u32,
    /// What is done. A step is named by its place in this list, which is not in order of time.
    pub steps: Vec<Step>,
    /// When the last step is over: the network gets better, and all that can still end has to.
    pub closing: Duration,
}

/// A device.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its address.
    pub ip: IpAddr,
    /// Its memory.
    pub layout: Layout,
    /// Packets that a queue pair may leave unacknowledged.
    pub window_packets: u32,
    /// Bytes that a queue pair may leave unacknowledged.
    pub window_bytes: u32,
    /// Completion queues, by depth.
    pub cqs: Vec<u32>,
    /// Its engines: queue pairs are spread over them, and all else is of all of them.
    pub shards: usize,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    /// On which side.
    pub side: usize,
    /// Receives that it holds.
    pub depth: u32,
    /// Where receives complete, if it is one for XRC.
    pub cq: Option<usize>,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    /// Its service.
    pub service: QpType,
    /// On which side.
    pub side: usize,
    /// Which of the side's engines it belongs to.
    pub shard: usize,
    /// The queue pair that it is connected to.
    pub peer: Option<usize>,
    /// Attributes; those that name the peer are filled in when it is connected.
    pub attr: QpAttr,
    /// Sizes.
    pub cap: QpCap,
    /// Whether every request makes a completion.
    pub sig_all: bool,
    /// Completion queues for sends and receives.
    pub cqs: [usize; 2],
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<usize>,
    /// The word of the peer's that its atomics work on.
    pub word: Option<Place>,
    /// Whether it does not hear what it sends to groups itself.
    pub deaf: bool,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// On which side.
    pub side: usize,
    /// Its kind.
    pub kind: WindowType,
}

/// Something to be done.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, at the earliest.
    pub at: Duration,
    /// What.
    pub deed: Deed,
}

/// What a [`Step`] does. Objects are named by their places in the script's lists.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Left out.
    Nothing,
    /// Posts a send request to a queue pair.
    Send(usize, Op),
    /// Posts a receive.
    Receive(Queue, Vec<Place>),
    /// Asks for an event when a shared receive queue holds less.
    Limit(usize, u32),
    /// Lets a queue pair hear a group.
    Attach(usize, usize),
    /// No longer.
    Detach(usize, usize),
    /// Puts a queue pair into the error state.
    Error(usize),
    /// Into RESET.
    Reset(usize),
    /// Destroys it.
    Destroy(usize),
    /// Connects it again, with its peer, if either is not in service.
    Revive(usize),
    /// Into SQD.
    Drain(usize),
    /// From SQD or SQE back to RTS.
    Resume(usize),
    /// Deregisters the victim of a side.
    Deregister(usize),
    /// Stops looking at a completion queue for a while.
    Pause(usize, usize, Duration),
    /// Takes a shared receive queue out of its XRC domain.
    Withdraw(usize),
    /// Makes a completion queue hold so many.
    Resize(usize, usize, u32),
    /// Registers the region that windows are bound to again, as it is.
    Register(usize),
}

/// Where receives are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// To a queue pair.
    Own(usize),
    /// To a shared receive queue.
    Shared(usize),
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it does.
    pub verb: Verb,
    /// Where its bytes are, or where the result goes: in the sender's memory.
    pub local: Vec<Place>,
    /// Whether the bytes are copied at posting.
    pub inline: bool,
    /// How.
    pub flags: SendFlags,
    /// Where in the peer's memory, and by which key.
    pub remote: Option<(Place, By)>,
    /// To whom, for datagrams.
    pub to: Option<To>,
    /// Into which shared receive queue, for XRC.
    pub srq: Option<usize>,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND, with immediate data if any.
    Send(Option<u32>),
    /// SEND with invalidate, of what the step bound.
    SendInvalidate(usize),
    /// RDMA WRITE, with immediate data if any.
    Write(Option<u32>),
    /// RDMA READ.
    Read,
    /// COMPARE AND SWAP.
    CompareSwap(u64, u64),
    /// FETCH AND ADD.
    FetchAdd(u64),
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH: of the range or of the whole region.
    Flush(bool),
    /// Binds a memory window.
    Bind(Bind),
    /// Takes back what the step bound.
    Invalidate(usize),
}

/// What a memory window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Which window.
    pub window: usize,
    /// The range; none takes a type 1 window's binding away.
    pub place: Place,
    /// For what.
    pub access: Access,
    /// The low 8 bits of its key from then on.
    pub key: u8,
}

/// By which key a request names the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The region's.
    Region,
    /// The one that a window got from this step.
    Window(usize),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To a queue pair.
    Qp(usize),
    /// To a group.
    Group(usize),
    /// To the sender of what the queue pair last received.
    Reply,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Nothing has the rkey.
    WrongKey,
    /// It begins a byte before what the window opens.
    Below,
    /// It ends a byte behind the region or what the window opens.
    Beyond,
    /// The region does not allow it, or belongs to another domain.
    NoRight,
    /// No region has the lkey.
    LocalKey,
    /// There is no such shared receive queue.
    WrongSrq,
    /// The receiver has another Q_Key.
    WrongQkey,
    /// The Q_Key is one that stands for the sender's own: not wrong at all.
    OwnQkey,
}

impl Op {
    /// Bytes of the message.
    pub fn len(&self) -> u32 {
        self.local.iter().map(|place| place.len).sum()
    }

    /// Whether it carries no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it takes a receive of the peer.
    pub fn consumes(&self) -> bool {
        matches!(self.verb, Verb::Send(_) | Verb::SendInvalidate(_) | Verb::Write(Some(_)))
    }

    /// Whether it cannot succeed.
    pub fn is_flawed(&self) -> bool {
        self.flaw.is_some_and(|flaw| flaw != Flaw::OwnQkey)
    }
}

impl Verb {
    /// COMPARE AND SWAP, FETCH AND ADD or ATOMIC WRITE: what works on a word.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap(..) | Self::FetchAdd(_) | Self::AtomicWrite)
    }

    /// A SEND of any kind.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send(_) | Self::SendInvalidate(_))
    }
}

impl Script {
    /// The request of a step.
    ///
    /// # Panics
    /// If it posts none.
    pub fn op(&self, step: usize) -> &Op {
        match &self.steps[step].deed {
            Deed::Send(_, op) => op,
            other => panic!("step {step} posts nothing: {other:?}"),
        }
    }

    /// What a step bound.
    ///
    /// # Panics
    /// If it bound nothing.
    pub fn bind(&self, step: usize) -> Bind {
        match self.op(step).verb {
            Verb::Bind(bind) => bind,
            other => panic!("step {step} binds nothing: {other:?}"),
        }
    }

    /// All engines, each by its side and its place there.
    pub fn shards(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let counts: Vec<_> = self.sides.iter().map(|side| side.shards).collect();
        let of = |(side, count)| (0..count).map(move |shard| (side, shard));
        counts.into_iter().enumerate().flat_map(of)
    }

    /// The bytes that a queue pair's packets carry at most.
    pub fn mtu(&self, qp: usize) -> u32 {
        u32::try_from(self.qps[qp].attr.path_mtu.bytes()).unwrap_or(u32::MAX)
    }

    /// The shared receive queues for XRC of a side, or the others.
    pub fn srqs_of(&self, side: usize, xrc: bool) -> Vec<usize> {
        let of = |i: &usize| self.srqs[*i].side == side && self.srqs[*i].cq.is_some() == xrc;
        (0..self.srqs.len()).filter(of).collect()
    }

    /// Where the receives for a request's message are posted, if it takes one.
    pub fn queue_of(&self, qp: usize, op: &Op) -> Option<Queue> {
        let target = match (op.to, self.qps[qp].peer) {
            (Some(To::Qp(target)), _) | (None, Some(target)) if op.consumes() => target,
            _ => return None,
        };
        if let Some(srq) = op.srq {
            return Some(Queue::Shared(srq));
        }
        Some(self.queue(target))
    }

    /// Where a queue pair's receives come from.
    pub fn queue(&self, qp: usize) -> Queue {
        self.qps[qp].srq.map_or(Queue::Own(qp), Queue::Shared)
    }

    /// On which side receives of a queue lie.
    pub fn side_of(&self, queue: Queue) -> usize {
        match queue {
            Queue::Own(qp) => self.qps[qp].side,
            Queue::Shared(srq) => self.srqs[srq].side,
        }
    }

    /// The queue pairs that may take a receive from a queue.
    pub fn takers(&self, queue: Queue) -> impl Iterator<Item = usize> + '_ {
        (0..self.qps.len()).filter(move |&qp| match queue {
            Queue::Own(own) => own == qp,
            Queue::Shared(srq) => {
                let is_target = self.qps[qp].service == QpType::XrcRecv
                    && self.qps[qp].side == self.srqs[srq].side
                    && self.srqs[srq].cq.is_some();
                self.qps[qp].srq == Some(srq) || is_target
            }
        })
    }
}
