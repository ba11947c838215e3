//! The exchange of messages itself: as ibv_rc_pingpong has it, one buffer for both directions, at
//! most one message on its way.

use std::cell::OnceCell;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::mem::Access;
use rxe_core::qp::QpCap;
use rxe_core::queue::{Completion, Status};
use rxe_core::types::Mtu;
use rxe_verbs::{
    AddressHandle, CompletionChannel, CompletionQueue, ConnectOptions, Device, Endpoint,
    MemoryRegion, Qpn, QueuePair, SharedReceiveQueue,
};

use super::Args;
use super::exchange::Address;
use super::transport::Transport;
use crate::common::{Error, Opened};

/// Numbers of work requests, and bits of what is waited for.
const RECV: u64 = 1;
const SEND: u64 = 2;

/// What ibv_rc_pingpong fills its buffer with, and what `-c` writes at the start of each page.
const FILL: u8 = 0x7b;
const MARK: u8 = 0;
const PAGE: usize = 4096;

/// With this little data, the message is copied when it is posted.
const INLINE: u32 = 256;

/// How long to wait for a peer that says nothing.
const SILENCE: Duration = Duration::from_secs(30);

/// Polls between two looks at the clock, and at who else wants the CPU.
const POLLS: u32 = 16;

/// How long to stay after the last message, for a peer that has lost our last acknowledgement: its
/// timer is 67 ms.
const LINGER: Duration = Duration::from_millis(200);

/// One side, made ready.
pub(super) struct Pingpong<'a> {
    args: &'a Args,
    qps: Vec<QueuePair>,
    srq: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    /// Room for what stands in front of a message, then the message.
    mr: MemoryRegion,
    size: u32,
    mtu: Mtu,
    /// Where datagrams go.
    to: OnceCell<(AddressHandle, Qpn)>,
}

/// How it went.
pub(super) struct Outcome {
    pub(super) time: Duration,
    /// Bytes in a message.
    pub(super) size: u32,
    pub(super) checked: bool,
}

impl<'a> Pingpong<'a> {
    /// QPs in INIT with their receives posted.
    pub(super) fn new(opened: &Opened, mtu: Mtu, args: &'a Args) -> Result<Self, Error> {
        let device = &opened.device;
        let size = args.transport.size(args.size, device.active_mtu())?;
        let count = args.queue_pairs();
        if args.rx_depth < count {
            let what = format!("-r {} is too small for {count} queue pairs", args.rx_depth);
            return Err(Error::new(what, "each needs a receive: raise -r or lower -q"));
        }
        let channel = args.events.then(|| device.create_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => device.create_cq_on(args.rx_depth + count, channel)?,
            None => device.create_cq(args.rx_depth + count)?,
        };
        let pd = device.create_pd()?;
        let len = args.transport.front() + size as usize;
        let mr = pd.register(len, Access::LOCAL_WRITE)?;
        mr.write_at(0, &vec![FILL; len])?;
        let srq = (args.transport == Transport::Srq)
            .then(|| pd.create_srq(args.rx_depth, 1))
            .transpose()?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: args.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let build = || {
            let qp = pd.qp(&cq).service(args.transport.service()).cap(cap);
            let qp = qp.gid_index(opened.gid_index);
            let qp = if let Some(srq) = &srq { qp.srq(srq) } else { qp }.build()?;
            qp.to_init(Access::empty())?;
            Ok(qp)
        };
        let qps = (0..count).map(|_| build()).collect::<Result<_, Error>>()?;
        let to = OnceCell::new();
        let this = Self { args, qps, srq, cq, channel, mr, size, mtu, to };
        this.post_receives(args.rx_depth)?;
        Ok(this)
    }

    /// What to tell the peer.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let address = |qp: &QueuePair| {
            let Endpoint { qpn, psn, gid, .. } = qp.endpoint();
            Address { lid: 0, qpn, psn, gid }
        };
        self.qps.iter().map(address).collect()
    }

    /// Brings the QPs to RTS, with the attributes of ibv_rc_pingpong.
    pub(super) fn connect(&self, peers: &[Address]) -> Result<(), Error> {
        let options = ConnectOptions {
            mtu: Some(self.mtu),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            access: Access::empty(),
            ..ConnectOptions::default()
        };
        for (qp, &Address { qpn, psn, gid, .. }) in self.qps.iter().zip(peers) {
            if self.args.transport == Transport::Ud {
                qp.activate()?;
                // Nobody connects twice.
                let _ = self.to.set((qp.pd().create_ah_to(gid)?, qpn));
            } else {
                if qpn.value() == 0 {
                    let what = "the peer has fewer queue pairs";
                    return Err(Error::new(what, "give the same -q on both ends"));
                }
                qp.connect(&Endpoint { qpn, psn, gid, mtu: self.mtu }, &options)?;
            }
        }
        Ok(())
    }

    /// Exchanges all messages; `starts` says who sends the first.
    pub(super) fn run(&self, starts: bool, device: &Device) -> Result<Outcome, Error> {
        if starts && self.args.chk {
            for page in self.pages() {
                self.mr.write_at(page, &[MARK])?;
            }
        }
        let awaits = vec![RECV; self.qps.len()];
        let mut state = State { posted: self.args.rx_depth, awaits, sent: 0, received: 0 };
        if self.channel.is_some() {
            self.cq.arm(false)?;
        }
        let start = Instant::now();
        if starts {
            for (qp, awaits) in self.qps.iter().zip(&mut state.awaits) {
                self.post_send(qp)?;
                *awaits |= SEND;
            }
        }
        while state.sent < self.args.iters || state.received < self.args.iters {
            if let Some(done) = self.next(&state)? {
                self.completed(&done, &mut state).map_err(|e| explained(e, device))?;
            }
        }
        let time = start.elapsed();
        if self.args.chk {
            self.check()?;
        }
        Ok(Outcome { time, size: self.size, checked: self.args.chk })
    }

    /// Keeps answering for a moment.
    pub(super) fn linger(&self) {
        thread::sleep(LINGER);
    }

    /// The next completion: by polling, or asleep until there is an event.
    fn next(&self, state: &State) -> Result<Option<Completion>, Error> {
        if let Some(done) = self.cq.poll_one()? {
            return Ok(Some(done));
        }
        if let Some(channel) = &self.channel {
            if channel.get_event(Some(SILENCE))?.is_none() {
                return Err(silent(state, self.args.iters));
            }
            // What comes between this and the next poll is not missed: that poll sees it.
            self.cq.arm(false)?;
            return Ok(None);
        }
        let mut since = None;
        loop {
            // Looking at the clock each time would cost as much as polling.
            for _ in 0..POLLS {
                if let Some(done) = self.cq.poll_one()? {
                    return Ok(Some(done));
                }
            }
            // The peer may need this CPU to answer.
            thread::yield_now();
            if since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(silent(state, self.args.iters));
            }
        }
    }

    fn completed(&self, done: &Completion, state: &mut State) -> Result<(), Error> {
        if done.status != Status::Success {
            let Completion { id, status, .. } = done;
            let what = format!("Failed status {status} ({}) for wr_id {id}", status.code());
            return Err(Error::new(what, status.explain()));
        }
        if done.id == SEND {
            state.sent += 1;
        } else {
            state.received += 1;
            state.posted -= 1;
            if state.posted as usize <= self.qps.len() {
                self.post_receives(self.args.rx_depth - state.posted)?;
                state.posted = self.args.rx_depth;
            }
        }
        let of_qp = self.qps.iter().zip(&mut state.awaits).find(|(qp, _)| qp.qpn() == done.qpn);
        if let Some((qp, awaits)) = of_qp {
            *awaits &= !done.id;
            if *awaits == 0 && state.sent < self.args.iters {
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

    /// The first byte of each page of a message.
    fn pages(&self) -> impl Iterator<Item = usize> {
        (self.args.transport.front()..self.mr.len()).step_by(PAGE)
    }

    /// What `-c` checks: the first byte of each page.
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
    sent: u32,
    received: u32,
    /// Receives posted.
    posted: u32,
    /// Completions to come before the next message is sent, by queue pair.
    awaits: Vec<u64>,
}

fn silent(state: &State, iters: u32) -> Error {
    let State { sent, received, .. } = state;
    let what = format!(
        "nothing came from the peer for {} s, after {sent} messages sent and {received} of {iters} \
         received",
        SILENCE.as_secs()
    );
    Error::new(what, "was it started with the same -n and -s, and is it still running?")
}

/// Adds what the device saw last; packets that came too late are no news.
fn explained(error: Error, device: &Device) -> Error {
    match device.explain().into_iter().rfind(|line| !line.starts_with("dropped")) {
        Some(last) => Error::new(error, format!("last seen here: {last}")),
        None => error,
    }
}
