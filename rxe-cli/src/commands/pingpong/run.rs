//! The exchange of messages itself: as ibv_rc_pingpong has it, one buffer for both directions, at
//! most one message on its way.

use std::thread;
use std::time::{Duration, Instant};

use rxe_core::mem::Access;
use rxe_core::qp::QpCap;
use rxe_core::queue::{Completion, Status};
use rxe_core::types::Mtu;
use rxe_verbs::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, Endpoint, MemoryRegion, QueuePair,
};

use super::Args;
use super::exchange::Address;
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
    qp: QueuePair,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    mr: MemoryRegion,
    mtu: Mtu,
}

/// How it went.
pub(super) struct Outcome {
    pub(super) time: Duration,
    pub(super) checked: bool,
}

impl<'a> Pingpong<'a> {
    /// A QP in INIT with its receives posted.
    pub(super) fn new(opened: &Opened, mtu: Mtu, args: &'a Args) -> Result<Self, Error> {
        let device = &opened.device;
        let channel = args.events.then(|| device.create_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => device.create_cq_on(args.rx_depth + 1, channel)?,
            None => device.create_cq(args.rx_depth + 1)?,
        };
        let pd = device.create_pd()?;
        let mr = pd.register(args.size as usize, Access::LOCAL_WRITE)?;
        mr.write_at(0, &vec![FILL; args.size as usize])?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: args.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let qp = pd.qp(&cq).cap(cap).gid_index(opened.gid_index).build()?;
        qp.to_init(Access::empty())?;
        let this = Self { args, qp, cq, channel, mr, mtu };
        this.post_receives(args.rx_depth)?;
        Ok(this)
    }

    /// What to tell the peer.
    pub(super) fn address(&self) -> Address {
        let Endpoint { qpn, psn, gid, .. } = self.qp.endpoint();
        Address { lid: 0, qpn, psn, gid }
    }

    /// Brings the QP to RTS, with the attributes of ibv_rc_pingpong.
    pub(super) fn connect(&self, peer: &Address) -> Result<(), Error> {
        let Address { qpn, psn, gid, .. } = *peer;
        let options = ConnectOptions {
            mtu: Some(self.mtu),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            access: Access::empty(),
            ..ConnectOptions::default()
        };
        self.qp.connect(&Endpoint { qpn, psn, gid, mtu: self.mtu }, &options)?;
        Ok(())
    }

    /// Exchanges all messages; `starts` says who sends the first.
    pub(super) fn run(&self, starts: bool, device: &Device) -> Result<Outcome, Error> {
        if starts && self.args.chk {
            for page in (0..self.mr.len()).step_by(PAGE) {
                self.mr.write_at(page, &[MARK])?;
            }
        }
        let mut state = State { posted: self.args.rx_depth, awaits: RECV, ..State::default() };
        if self.channel.is_some() {
            self.cq.arm(false)?;
        }
        let start = Instant::now();
        if starts {
            self.post_send()?;
            state.awaits |= SEND;
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
        Ok(Outcome { time, checked: self.args.chk })
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
            if state.posted <= 1 {
                self.post_receives(self.args.rx_depth - state.posted)?;
                state.posted = self.args.rx_depth;
            }
        }
        state.awaits &= !done.id;
        if state.awaits == 0 && state.sent < self.args.iters {
            self.post_send()?;
            state.awaits = RECV | SEND;
        }
        Ok(())
    }

    fn post_receives(&self, n: u32) -> Result<(), Error> {
        for _ in 0..n {
            self.qp.recv(RECV, &[self.mr.slice(..)])?;
        }
        Ok(())
    }

    fn post_send(&self) -> Result<(), Error> {
        let request = self.qp.send(SEND, &[self.mr.slice(..)]);
        if self.args.size <= INLINE {
            request.inline().post()?
        } else {
            request.post()?
        }
        Ok(())
    }

    /// What `-c` checks: the first byte of each page.
    fn check(&self) -> Result<(), Error> {
        for page in (0..self.mr.len()).step_by(PAGE) {
            let mut byte = [0];
            self.mr.read_at(page, &mut byte)?;
            if byte != [MARK] {
                let what = format!("invalid data in page {}", page / PAGE);
                return Err(Error::new(what, "give -c on the other end too, and the same -s"));
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct State {
    sent: u32,
    received: u32,
    /// Receives posted.
    posted: u32,
    /// Completions to come before the next message is sent.
    awaits: u64,
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
