//! A plan describes one run.
//! It is drawn from the run's number before the run begins. It is plain data, so it can be made
//! smaller ([`shrink`](super::shrink)) and run again.

mod connect;
mod workload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rxe_core::qp::{QpAttr, QpCap};
use rxe_core::queue::SendFlags;
use rxe_core::types::{Mtu, Psn, Qpn};

use super::memory::{Layout, Place};
use super::network::Network;
use super::rng::Rng;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run's number.
    pub run: u64,
    /// The kind of run.
    pub family: Family,
    /// The simulated devices.
    pub sides: Vec<Side>,
    /// The connections.
    pub links: Vec<Link>,
    /// 8-byte words that the atomics of all links use.
    pub words: Vec<Word>,
    /// The network.
    pub network: Network,
    /// Times in which two sides cannot reach each other.
    pub cuts: Vec<Cut>,
    /// Whether the network becomes better for a while before a requester gives up. Then everything
    /// must succeed in the end, however bad the network is.
    pub mercy: bool,
    /// How long the network then stays better.
    pub calm: Duration,
    /// The actions of programs other than sending and receiving.
    pub actions: Vec<Action>,
}

/// The kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// A perfect network: no retry and no drop is allowed.
    Clean,
    /// A bad network; everything must still succeed.
    Lossy,
    /// A bad network and few retries: requesters may give up.
    GiveUp,
    /// One request must fail; the network may be good or bad.
    Flawed,
    /// Queue pairs are stopped, drained or reset, and a region may be deregistered.
    Disturbed,
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
    /// The number of completion queues that the queue pairs share.
    pub cqs: usize,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Link {
    /// The two queue pairs.
    pub ends: [End; 2],
}

/// A queue pair and what its program does with it.
#[derive(Clone, Debug)]
pub struct End {
    /// The side that the queue pair belongs to.
    pub side: usize,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The PSN of the first request.
    pub psn: Psn,
    /// The attributes. The world fills in those that name the peer.
    pub attr: QpAttr,
    /// The sizes of the queues.
    pub cap: QpCap,
    /// Whether every request produces a completion.
    pub sig_all: bool,
    /// The completion queues for sends and receives.
    pub cqs: [usize; 2],
    /// When the queue pair is connected.
    pub connected: Duration,
    /// The send requests.
    pub ops: Vec<Op>,
    /// The receives: one for each message of the peer, in order.
    pub receives: Vec<Receive>,
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Op {
    /// The earliest time of posting.
    pub at: Duration,
    /// The operation.
    pub verb: Verb,
    /// The local buffers: the source of the data, or the target of the result.
    pub local: Vec<Place>,
    /// Whether the data is copied at posting (inline).
    pub inline: bool,
    /// The range in the peer's memory.
    pub remote: Option<Place>,
    /// The flags of the request.
    pub flags: SendFlags,
    /// The flaw of the request, if there is one.
    pub flaw: Option<Flaw>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA WRITE.
    Write {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read,
    /// COMPARE AND SWAP.
    CompareSwap {
        /// The value that the word must have.
        compare: u64,
        /// The new value of the word.
        swap: u64,
    },
    /// FETCH AND ADD.
    FetchAdd {
        /// The number that is added.
        add: u64,
    },
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Receive {
    /// The earliest time of posting.
    pub at: Duration,
    /// The buffers.
    pub places: Vec<Place>,
    /// Whether the lkey is wrong.
    pub bad_key: bool,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// No region has the rkey.
    WrongKey,
    /// The range begins one byte before the region.
    Below,
    /// The range ends one byte after the region.
    Beyond,
    /// The region does not permit the operation.
    NoRight,
    /// The region belongs to another protection domain.
    OtherDomain,
    /// The peer's queue pair does not permit the operation.
    NotEnabled,
    /// No region has the lkey.
    LocalKey,
    /// The local list reaches one byte beyond the region.
    LocalBeyond,
    /// The receive for the message is one byte too short.
    TooLong,
    /// The receive for the message has a wrong lkey.
    BadReceive,
}

/// A word for atomics.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The side whose memory holds the word.
    pub side: usize,
    /// The place of the word.
    pub place: Place,
}

/// A time in which two sides cannot reach each other.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// When the time begins.
    pub at: Duration,
    /// How long the time lasts; until the end of the run if `None`.
    pub lasts: Option<Duration>,
    /// The two sides.
    pub between: [usize; 2],
}

/// An action of a program.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// When the action happens.
    pub at: Duration,
    /// The action.
    pub what: Deed,
}

/// What an [`Action`] does. Queue pairs are named by link and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Moves a queue pair to the error state.
    Error(usize, usize),
    /// Resets a queue pair.
    Reset(usize, usize),
    /// Drains a queue pair (SQD) and resumes it after this time.
    Drain(usize, usize, Duration),
    /// Deregisters the victim area of a side.
    Deregister(usize),
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
        matches!(self.verb, Verb::Send { .. } | Verb::Write { imm: Some(_) })
    }
}

impl Verb {
    /// Returns whether this is COMPARE AND SWAP or FETCH AND ADD.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns whether the peer answers with data.
    pub fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

impl Plan {
    /// Draws the plan of run number `run`.
    pub fn draw(run: u64) -> Self {
        let mut rng = Rng::new(run ^ 0x5eed_0000_0000_0000);
        let family = match rng.below(100) {
            0..25 => Family::Clean,
            25..60 => Family::Lossy,
            60..70 => Family::GiveUp,
            70..85 => Family::Flawed,
            _ => Family::Disturbed,
        };
        let is_v6 = rng.chance(1, 3);
        let count = if rng.chance(1, 6) { 3 } else { 2 };
        let sides = (0..count).map(|i| Side::draw(&mut rng, i, is_v6)).collect();
        let mut network = Network::draw(&mut rng);
        let bad = match family {
            Family::Clean => false,
            Family::Lossy | Family::GiveUp => true,
            Family::Flawed | Family::Disturbed => rng.chance(1, 3),
        };
        if bad {
            network.spoil(&mut rng);
        }
        let mut plan = Self {
            run,
            family,
            sides,
            links: Vec::new(),
            words: Vec::new(),
            network,
            cuts: Vec::new(),
            mercy: bad && family != Family::GiveUp,
            calm: Duration::ZERO,
            actions: Vec::new(),
        };
        plan.draw_words(&mut rng);
        plan.draw_links(&mut rng, bad);
        plan.draw_workload(&mut rng);
        plan.draw_cuts(&mut rng, bad);
        match family {
            Family::Flawed => plan.draw_flaw(&mut rng),
            Family::Disturbed => plan.draw_actions(&mut rng),
            _ => {}
        }
        plan
    }

    /// Returns whether no request may fail.
    pub fn must_succeed(&self) -> bool {
        matches!(self.family, Family::Clean | Family::Lossy)
    }

    /// Returns whether a requester may run out of retries although its peer works.
    pub fn may_give_up(&self) -> bool {
        self.family == Family::GiveUp
    }

    /// Returns the path MTU of a link.
    pub fn mtu(&self, link: usize) -> Mtu {
        self.links[link].ends[0].attr.path_mtu
    }

    fn draw_words(&mut self, rng: &mut Rng) {
        for side in 0..self.sides.len() {
            for _ in 0..2 {
                let layout = &mut self.sides[side].layout;
                let place = layout.allocate_word(rng);
                self.words.push(Word { side, place });
            }
        }
    }

    /// Sometimes cuts the network between two sides, if the network is bad.
    fn draw_cuts(&mut self, rng: &mut Rng, bad: bool) {
        if !bad || self.family == Family::Disturbed || !rng.chance(1, 4) {
            return;
        }
        let link = rng.index(self.links.len());
        let between = [0, 1].map(|end| self.links[link].ends[end].side);
        let at = Duration::from_nanos(rng.below(300_000));
        let for_ever = self.family == Family::GiveUp && rng.chance(1, 2);
        let lasts = (!for_ever).then(|| Duration::from_nanos(rng.below(2_000_000)));
        self.cuts.push(Cut { at, lasts, between });
    }
}

impl Side {
    fn draw(rng: &mut Rng, index: u16, is_v6: bool) -> Self {
        let [_, last] = (index + 1).to_be_bytes();
        let ip: IpAddr = if is_v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        };
        Self {
            ip,
            layout: Layout::new(rng),
            window_packets: rng.pick(&[1, 2, 3, 5, 16, 64, 256, 256]),
            window_bytes: rng.pick(&[256, 4096, 65_536, 262_144, 262_144]),
            cqs: rng.index(2) + 1,
        }
    }
}
