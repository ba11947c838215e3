//! A plan describes one run. It is drawn from the run's number before the run begins. It is a plain
//! value, so that it can be made smaller ([`shrink`](super::shrink)) and run again.

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
    /// Its number.
    pub run: u64,
    /// The kind of run.
    pub family: Family,
    /// The devices.
    pub sides: Vec<Side>,
    /// The connections.
    pub links: Vec<Link>,
    /// 8-byte words that atomics of all links work on.
    pub words: Vec<Word>,
    /// The network.
    pub network: Network,
    /// Times when two sides cannot reach each other.
    pub cuts: Vec<Cut>,
    /// Whether the network becomes better for a while before a requester gives up. Then everything must
    /// succeed at the end, however bad the network is.
    pub mercy: bool,
    /// How long the network is then better.
    pub calm: Duration,
    /// What the programs do besides sending and receiving.
    pub actions: Vec<Action>,
}

/// The kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// A perfect network: there may be no retry and no drop.
    Clean,
    /// A bad network; everything must still succeed.
    Lossy,
    /// A bad network and few retries: requesters may give up.
    GiveUp,
    /// A request that must fail, on a good or a bad network.
    Flawed,
    /// Queue pairs are stopped, drained or reset, a region is deregistered.
    Disturbed,
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
    /// How many completion queues its queue pairs share.
    pub cqs: usize,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its two queue pairs.
    pub ends: [End; 2],
}

/// A queue pair and what its program does with it.
#[derive(Clone, Debug)]
pub struct End {
    /// The side.
    pub side: usize,
    /// Its number.
    pub qpn: Qpn,
    /// The PSN of its first request.
    pub psn: Psn,
    /// Attributes; the world fills in those that name the peer.
    pub attr: QpAttr,
    /// The sizes of its queues.
    pub cap: QpCap,
    /// Whether every request makes a completion.
    pub sig_all: bool,
    /// Completion queues for sends and receives.
    pub cqs: [usize; 2],
    /// When it is connected.
    pub connected: Duration,
    /// Its send requests.
    pub ops: Vec<Op>,
    /// Its receives: one for each of the peer's messages, in order.
    pub receives: Vec<Receive>,
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Op {
    /// When it is posted, at the earliest.
    pub at: Duration,
    /// What it does.
    pub verb: Verb,
    /// Where its bytes are, or where the result goes: in the sender's memory.
    pub local: Vec<Place>,
    /// Whether the bytes are copied at posting.
    pub inline: bool,
    /// Where in the peer's memory.
    pub remote: Option<Place>,
    /// How.
    pub flags: SendFlags,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
}

/// What a request does.
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
        /// Only if it is this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// FETCH AND ADD.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Receive {
    /// When it is posted, at the earliest.
    pub at: Duration,
    /// The buffers.
    pub places: Vec<Place>,
    /// Whether its key is wrong.
    pub bad_key: bool,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// No region has the rkey.
    WrongKey,
    /// It begins a byte before the region.
    Below,
    /// It ends a byte behind the region.
    Beyond,
    /// The region does not allow it.
    NoRight,
    /// The region belongs to another protection domain.
    OtherDomain,
    /// The peer's QP does not allow it.
    NotEnabled,
    /// No region has the lkey.
    LocalKey,
    /// The local list reaches a byte behind the region.
    LocalBeyond,
    /// The receive for it is a byte too short.
    TooLong,
    /// The receive for it has a wrong key.
    BadReceive,
}

/// A word for atomics.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The side.
    pub side: usize,
    /// Its place.
    pub place: Place,
}

/// Two sides that cannot reach each other for a while.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// From when.
    pub at: Duration,
    /// For how long; for ever if `None`.
    pub lasts: Option<Duration>,
    /// One side and the other.
    pub between: [usize; 2],
}

/// An action of a program.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The time.
    pub at: Duration,
    /// The action.
    pub what: Deed,
}

/// What an [`Action`] does. Queue pairs are named by link and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Into the error state.
    Error(usize, usize),
    /// Into RESET.
    Reset(usize, usize),
    /// Into SQD, for this long.
    Drain(usize, usize, Duration),
    /// Deregisters the victim of a side.
    Deregister(usize),
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
        matches!(self.verb, Verb::Send { .. } | Verb::Write { imm: Some(_) })
    }
}

impl Verb {
    /// COMPARE AND SWAP or FETCH AND ADD.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the peer answers with data.
    pub fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

impl Plan {
    /// The plan of run number `run`.
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

    /// Whether nothing may fail.
    pub fn must_succeed(&self) -> bool {
        matches!(self.family, Family::Clean | Family::Lossy)
    }

    /// Whether a requester may run out of retries although its peer is well.
    pub fn may_give_up(&self) -> bool {
        self.family == Family::GiveUp
    }

    /// The path MTU of a link.
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

    /// If the network is bad, sometimes also cuts it.
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
