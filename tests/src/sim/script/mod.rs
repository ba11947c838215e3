//! A script describes one run of the second kind, with every service and every object of verbs.
//! It is a list of steps. When the time of a step has come, a program takes the step if it can. A
//! script is plain data, so it can be made smaller ([`shrink`](super::shrink)) and run again.
//!
//! Every message, and every range of memory that is written, is used only once. So the contents of
//! a range tell which message was written there.

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
    /// The run's number.
    pub run: u64,
    /// Whether programs do more than send and receive: they stop, reset and destroy queue pairs,
    /// for example.
    pub disturbed: bool,
    /// The network and its faults.
    pub network: Network,
    /// The simulated devices.
    pub sides: Vec<Side>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Memory windows.
    pub windows: Vec<Window>,
    /// Multicast groups.
    pub groups: Vec<IpAddr>,
    /// The length of the longest message in bytes.
    pub longest: u32,
    /// The steps. A step is named by its index in this list, which is not ordered by time.
    pub steps: Vec<Step>,
    /// When the last step is over. Then the network becomes good, and everything that can still end
    /// must end.
    pub closing: Duration,
}

/// A simulated device.
#[derive(Clone, Debug)]
pub struct Side {
    /// The address.
    pub ip: IpAddr,
    /// The memory.
    pub layout: Layout,
    /// The most packets that a queue pair may leave unacknowledged.
    pub window_packets: u32,
    /// The most bytes that a queue pair may leave unacknowledged.
    pub window_bytes: u32,
    /// The depths of the completion queues.
    pub cqs: Vec<u32>,
    /// The number of engines. Each queue pair belongs to one engine; all other objects are shared.
    pub shards: usize,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    /// The side that the queue belongs to.
    pub side: usize,
    /// The number of receives that the queue holds.
    pub depth: u32,
    /// The completion queue of an XRC shared receive queue.
    pub cq: Option<usize>,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    /// The service type.
    pub service: QpType,
    /// The side that the queue pair belongs to.
    pub side: usize,
    /// The engine of the side that the queue pair belongs to.
    pub shard: usize,
    /// The queue pair that it is connected to.
    pub peer: Option<usize>,
    /// The attributes. Those that name the peer are filled in when the queue pair is connected.
    pub attr: QpAttr,
    /// The sizes of the queues.
    pub cap: QpCap,
    /// Whether every request produces a completion.
    pub sig_all: bool,
    /// The completion queues for sends and receives.
    pub cqs: [usize; 2],
    /// The shared receive queue, if the queue pair has no receive queue of its own.
    pub srq: Option<usize>,
    /// The word in the peer's memory that the queue pair's atomics use.
    pub word: Option<Place>,
    /// Whether the queue pair does not receive the datagrams that it sends to groups itself.
    pub deaf: bool,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The side that the window belongs to.
    pub side: usize,
    /// The type of the window.
    pub kind: WindowType,
}

/// An action at a time.
#[derive(Clone, Debug)]
pub struct Step {
    /// The earliest time of the action.
    pub at: Duration,
    /// The action.
    pub deed: Deed,
}

/// The action of a [`Step`]. Objects are named by their indices in the script's lists.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Nothing: the step was left out by [`shrink`](super::shrink).
    Nothing,
    /// Posts a send request to a queue pair.
    Send(usize, Op),
    /// Posts a receive.
    Receive(Queue, Vec<Place>),
    /// Arms the limit event of a shared receive queue.
    Limit(usize, u32),
    /// Attaches a queue pair to a multicast group.
    Attach(usize, usize),
    /// Detaches a queue pair from a multicast group.
    Detach(usize, usize),
    /// Moves a queue pair to the error state.
    Error(usize),
    /// Resets a queue pair.
    Reset(usize),
    /// Destroys a queue pair.
    Destroy(usize),
    /// Connects a queue pair and its peer again, if either is out of service.
    Revive(usize),
    /// Moves a queue pair to SQD.
    Drain(usize),
    /// Moves a queue pair from SQD or SQE back to RTS.
    Resume(usize),
    /// Deregisters the victim area of a side.
    Deregister(usize),
    /// Stops polling a completion queue for a while.
    Pause(usize, usize, Duration),
    /// Removes a shared receive queue from its XRC domain.
    Withdraw(usize),
    /// Resizes a completion queue.
    Resize(usize, usize, u32),
    /// Reregisters the region that windows are bound to, without a change.
    Register(usize),
}

/// The queue that receives are posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The receive queue of a queue pair.
    Own(usize),
    /// A shared receive queue.
    Shared(usize),
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Op {
    /// The operation.
    pub verb: Verb,
    /// The local buffers: the source of the data, or the target of the result.
    pub local: Vec<Place>,
    /// Whether the data is copied at posting (inline).
    pub inline: bool,
    /// The flags of the request.
    pub flags: SendFlags,
    /// The range in the peer's memory, and the key that names it.
    pub remote: Option<(Place, By)>,
    /// The destination of a datagram.
    pub to: Option<To>,
    /// The shared receive queue that an XRC request names.
    pub srq: Option<usize>,
    /// The flaw of the request, if there is one.
    pub flaw: Option<Flaw>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND, with immediate data if any.
    Send(Option<u32>),
    /// SEND with invalidate, of the window key that the step bound.
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
    /// FLUSH of the whole region if true, otherwise of the range.
    Flush(bool),
    /// Binds a memory window.
    Bind(Bind),
    /// Invalidates the window key that the step bound (local invalidate).
    Invalidate(usize),
}

/// The parameters of a bind request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The index of the window.
    pub window: usize,
    /// The range. An empty range unbinds a type 1 window.
    pub place: Place,
    /// The rights that the window gives to peers.
    pub access: Access,
    /// The low 8 bits of the new key.
    pub key: u8,
}

/// The key by which a request names the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The key of the region.
    Region,
    /// The key that a window got from the bind request of this step.
    Window(usize),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A queue pair.
    Qp(usize),
    /// A multicast group.
    Group(usize),
    /// The sender of the last datagram that the queue pair received.
    Reply,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// No region or window has the rkey.
    WrongKey,
    /// The range begins one byte before the window.
    Below,
    /// The range ends one byte after the region or the window.
    Beyond,
    /// The region does not permit the operation, or belongs to another protection domain.
    NoRight,
    /// No region has the lkey.
    LocalKey,
    /// The named shared receive queue does not exist.
    WrongSrq,
    /// The receiver's Q_Key is a different one.
    WrongQkey,
    /// The Q_Key is the value that stands for the sender's own Q_Key, so the request is correct.
    OwnQkey,
}

impl Op {
    /// Returns the length of the message in bytes.
    pub fn len(&self) -> u32 {
        self.local.iter().map(|place| place.len).sum()
    }

    /// Returns whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the message takes a receive of the peer.
    pub fn consumes(&self) -> bool {
        matches!(self.verb, Verb::Send(_) | Verb::SendInvalidate(_) | Verb::Write(Some(_)))
    }

    /// Returns whether the request cannot succeed.
    pub fn is_flawed(&self) -> bool {
        self.flaw.is_some_and(|flaw| flaw != Flaw::OwnQkey)
    }
}

impl Verb {
    /// Returns whether the operation works on a word: COMPARE AND SWAP, FETCH AND ADD or ATOMIC WRITE.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap(..) | Self::FetchAdd(_) | Self::AtomicWrite)
    }

    /// Returns whether this is a SEND of any kind.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send(_) | Self::SendInvalidate(_))
    }
}

impl Script {
    /// Returns the request of a step.
    ///
    /// # Panics
    /// If the step does not post a send request.
    pub fn op(&self, step: usize) -> &Op {
        match &self.steps[step].deed {
            Deed::Send(_, op) => op,
            other => panic!("step {step} posts nothing: {other:?}"),
        }
    }

    /// Returns the bind request of a step.
    ///
    /// # Panics
    /// If the step does not post a bind request.
    pub fn bind(&self, step: usize) -> Bind {
        match self.op(step).verb {
            Verb::Bind(bind) => bind,
            other => panic!("step {step} binds nothing: {other:?}"),
        }
    }

    /// Returns all engines, each as its side and its index there.
    pub fn shards(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let counts: Vec<_> = self.sides.iter().map(|side| side.shards).collect();
        let of = |(side, count)| (0..count).map(move |shard| (side, shard));
        counts.into_iter().enumerate().flat_map(of)
    }

    /// Returns the path MTU of a queue pair in bytes.
    pub fn mtu(&self, qp: usize) -> u32 {
        u32::try_from(self.qps[qp].attr.path_mtu.bytes()).unwrap_or(u32::MAX)
    }

    /// Returns the shared receive queues of a side: those for XRC if `xrc` is true, otherwise the others.
    pub fn srqs_of(&self, side: usize, xrc: bool) -> Vec<usize> {
        let of = |i: &usize| self.srqs[*i].side == side && self.srqs[*i].cq.is_some() == xrc;
        (0..self.srqs.len()).filter(of).collect()
    }

    /// Returns the queue from which a request's message takes a receive, if it takes one.
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

    /// Returns the queue from which a queue pair takes receives.
    pub fn queue(&self, qp: usize) -> Queue {
        self.qps[qp].srq.map_or(Queue::Own(qp), Queue::Shared)
    }

    /// Returns the side that a receive queue belongs to.
    pub fn side_of(&self, queue: Queue) -> usize {
        match queue {
            Queue::Own(qp) => self.qps[qp].side,
            Queue::Shared(srq) => self.srqs[srq].side,
        }
    }

    /// Returns the queue pairs that may take a receive from a queue.
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
