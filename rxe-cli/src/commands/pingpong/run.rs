//! The exchange of RDMA messages. As in ibv_rc_pingpong, one buffer serves both directions, and
//! each queue pair has at most one outstanding message.

use std::cell::OnceCell;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::mem::Access;
use rxe_core::qp::QpCap;
use rxe_core::queue::Completion;
use rxe_core::types::Mtu;
use rxe_verbs::{
    AddressHandle, ConnectOptions, Device, Endpoint, MemoryRegion, Qpn, QueuePair,
    SharedReceiveQueue,
};

use super::Args;
use super::exchange::Address;
use super::peer::{PeerConnection, PeerState};
use super::stamps::Stamps;
use super::transport::Transport;
use super::wait::{self, Waiter};
use crate::common::{Error, Opened, ack_timeout};

/// IDs of work requests, which are also the bits of the completions to wait for.
const RECV: u64 = 1;
const SEND: u64 = 2;

/// The byte that fills the buffer, as in ibv_rc_pingpong.
/// `-c` writes `MARK` at the start of each page.
const FILL: u8 = 0x7b;
const MARK: u8 = 0;
const PAGE: usize = 4096;

/// The most bytes of a message that is posted inline.
const INLINE: u32 = 256;

/// The time to keep answering after the last message.
/// A peer that lost the last acknowledgement needs it. The timeout of ibv_rc_pingpong is 67 ms.
const LINGER: Duration = Duration::from_millis(200);

/// The longest time to keep answering a peer that reports when it has finished.
const MAX_LINGER: Duration = Duration::from_secs(5);

/// One side of a pingpong.
pub(super) struct Pingpong<'a> {
    args: &'a Args,
    qps: Vec<QueuePair>,
    srq: Option<SharedReceiveQueue>,
    waiter: Waiter,
    /// The buffer: room for the GRH, then the message.
    mr: MemoryRegion,
    size: u32,
    mtu: Mtu,
    /// The destination of datagrams, known once connected.
    to: OnceCell<(AddressHandle, Qpn)>,
}

/// The result of a pingpong.
pub(super) struct Outcome {
    pub(super) time: Duration,
    /// The length of a message in bytes.
    pub(super) size: u32,
    pub(super) checked: bool,
    /// Statistics of the times between messages, if `-t` was given.
    pub(super) stamps: Option<Stamps>,
}

impl<'a> Pingpong<'a> {
    /// Creates the queue pairs in INIT, and posts their receives.
    pub(super) fn new(opened: &Opened, mtu: Mtu, args: &'a Args) -> Result<Self, Error> {
        let device = &opened.device;
        let size = args.transport.size(args.size, device.active_mtu())?;
        let count = args.queue_pairs();
        if args.rx_depth() < count {
            let what = format!("-r {} is too small for {count} queue pairs", args.rx_depth());
            return Err(Error::new(what, "each needs a receive: raise -r or lower -q"));
        }
        let waiter = Waiter::new(device, args.rx_depth() + count, args.events)?;
        let pd = device.create_pd()?;
        let len = args.transport.front() + size as usize;
        let mr = pd.register(len, Access::LOCAL_WRITE)?;
        mr.write_at(0, &vec![FILL; len])?;
        let srq = (args.transport == Transport::Srq)
            .then(|| pd.create_srq(args.rx_depth(), 1))
            .transpose()?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: args.rx_depth(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let build = || {
            let qp = pd.qp(&waiter.cq).service(args.transport.service()).cap(cap);
            let qp = qp.gid_index(opened.gid_index);
            let qp = if let Some(srq) = &srq { qp.srq(srq) } else { qp }.build()?;
            qp.to_init(Access::empty())?;
            Ok(qp)
        };
        let qps = (0..count).map(|_| build()).collect::<Result<_, Error>>()?;
        let to = OnceCell::new();
        let this = Self { args, qps, srq, waiter, mr, size, mtu, to };
        this.post_receives(args.rx_depth())?;
        Ok(this)
    }

    /// Returns the addresses to send to the peer.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let address = |qp: &QueuePair| {
            let Endpoint { qpn, psn, gid, .. } = qp.endpoint();
            Address { lid: 0, qpn, psn, gid, told: Some(self.args.transport) }
        };
        self.qps.iter().map(address).collect()
    }

    /// Brings the queue pairs to RTS with ibv_rc_pingpong's attributes, except the timeout.
    pub(super) fn connect(&self, peers: &[Address]) -> Result<(), Error> {
        let options = ConnectOptions {
            mtu: Some(self.mtu),
            timeout: ack_timeout(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            access: Access::empty(),
            ..ConnectOptions::default()
        };
        for (qp, &Address { qpn, psn, gid, .. }) in self.qps.iter().zip(peers) {
            if self.args.transport == Transport::Ud {
                qp.activate()?;
                // Setting cannot fail, because a side is connected only once.
                let _ = self.to.set((qp.pd().create_ah_to(gid)?, qpn));
            } else {
                qp.connect(&Endpoint { qpn, psn, gid, mtu: self.mtu }, &options)?;
            }
        }
        Ok(())
    }

    /// Exchanges all messages. If `starts`, this side sends the first.
    pub(super) fn run(
        &self,
        starts: bool,
        device: &Device,
        peers: &mut [PeerConnection],
    ) -> Result<Outcome, Error> {
        if starts && self.args.chk {
            for page in self.pages() {
                self.mr.write_at(page, &[MARK])?;
            }
        }
        let awaits = vec![RECV; self.qps.len()];
        let mut state = State {
            iters: self.args.iters(),
            posted: self.args.rx_depth(),
            awaits,
            reliable: !matches!(self.args.transport, Transport::Uc | Transport::Ud),
            sent: 0,
            received: 0,
            stamps: Stamps::default(),
        };
        let start = Instant::now();
        if starts {
            for (qp, awaits) in self.qps.iter().zip(&mut state.awaits) {
                self.post_send(qp)?;
                *awaits |= SEND;
            }
        }
        while state.sent < state.iters || state.received < state.iters {
            let done = self.waiter.next(peers, &state)?;
            wait::check(&done, device)?;
            self.completed(&done, &mut state)?;
        }
        let time = start.elapsed();
        if self.args.chk {
            self.check()?;
        }
        let stamps = self.args.ts.then_some(state.stamps);
        Ok(Outcome { time, size: self.size, checked: self.args.chk, stamps })
    }

    /// Keeps answering for a short time, or until every peer reports that it has finished.
    pub(super) fn linger(&self, peers: &mut [PeerConnection]) {
        if peers.is_empty() {
            return thread::sleep(LINGER);
        }
        peers.iter_mut().for_each(PeerConnection::finished);
        let begin = Instant::now();
        while begin.elapsed() < MAX_LINGER
            && peers.iter_mut().any(|peer| *peer.look() == PeerState::Running)
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn completed(&self, done: &Completion, state: &mut State) -> Result<(), Error> {
        if done.id == SEND {
            state.sent += 1;
        } else {
            state.received += 1;
            state.stamps.received(done.timestamp);
            state.posted -= 1;
            if state.posted as usize <= self.qps.len() {
                self.post_receives(self.args.rx_depth() - state.posted)?;
                state.posted = self.args.rx_depth();
            }
        }
        let of_qp = self.qps.iter().zip(&mut state.awaits).find(|(qp, _)| qp.qpn() == done.qpn);
        if let Some((qp, awaits)) = of_qp {
            *awaits &= !done.id;
            if *awaits == 0 && state.sent < state.iters {
                self.post_send(qp)?;
                *awaits = RECV | SEND;
            }
        }
        Ok(())
    }

    fn post_receives(&self, n: u32) -> Result<(), Error> {
        for _ in 0..n {
            let into = &[self.mr.slice(..)];
            match &self.srq {
                Some(srq) => srq.recv(RECV, into)?,
                None => self.qps[0].recv(RECV, into)?,
            }
        }
        Ok(())
    }

    fn post_send(&self, qp: &QueuePair) -> Result<(), Error> {
        let mut request = qp.send(SEND, &[self.mr.slice(self.args.transport.front()..)]);
        if let Some((ah, qpn)) = self.to.get() {
            request = request.to(ah, *qpn, qp.qkey());
        }
        if self.size <= INLINE {
            request = request.inline();
        }
        Ok(request.post()?)
    }

    /// Returns the offset of the first byte of each page of a message.
    fn pages(&self) -> impl Iterator<Item = usize> {
        (self.args.transport.front()..self.mr.len()).step_by(PAGE)
    }

    /// Checks the first byte of each page, for `-c`.
    fn check(&self) -> Result<(), Error> {
        for (number, page) in self.pages().enumerate() {
            let mut byte = [0];
            self.mr.read_at(page, &mut byte)?;
            if byte != [MARK] {
                let what = format!("invalid data in page {number}");
                return Err(Error::new(what, "give -c on the other end too, and the same -s"));
            }
        }
        Ok(())
    }
}

struct State {
    /// The number of messages to send, and to receive.
    iters: u32,
    sent: u32,
    received: u32,
    /// The number of posted receives.
    posted: u32,
    /// The completions that each queue pair waits for before it sends the next message.
    awaits: Vec<u64>,
    /// Whether the peer acknowledges messages.
    reliable: bool,
    stamps: Stamps,
}

/// Formats the progress for error messages.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, iters, reliable, .. } = self;
        let posted = self.awaits.iter().any(|awaits| awaits & SEND != 0);
        // A completed SEND of a reliable service has been acknowledged.
        let acknowledged =
            if *reliable && *sent > 0 && !posted { ", all acknowledged," } else { "" };
        write!(f, "after {sent} messages sent{acknowledged} and {received} of {iters} received")
    }
}
