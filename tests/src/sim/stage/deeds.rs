//! Executes the steps of a script.

use std::time::Duration;

use rxe_core::VerbsError;
use rxe_core::mem::RegionChange;
use rxe_core::qp::{AttrMask, QpAttr, QpState};
use rxe_core::queue::RecvRequest;
use rxe_core::types::{Gid, Psn, Qpn, Time};

use super::device::shard_of;
use super::{Address, Stage};
use crate::sim::judge::{Look, RECEIVE};
use crate::sim::ladder::name;
use crate::sim::memory::Area;
use crate::sim::script::{By, Deed, Queue, To, Verb};

type Done = Result<(), String>;

impl Stage<'_> {
    /// Takes the steps whose time has come. Returns whether there were any.
    pub(super) fn take_steps(&mut self) -> Result<bool, String> {
        let mut any = false;
        let due: Vec<_> = self.connects.extract_if(.., |(at, _)| *at <= self.now).collect();
        for (_, qp) in due {
            any = true;
            self.epoch += 1;
            let pair: Vec<_> = [Some(qp), self.script.qps[qp].peer].into_iter().flatten().collect();
            // A queue pair may have been destroyed in the meantime.
            if pair.iter().all(|&qp| self.objects.qps[qp].is_some()) {
                pair.into_iter().try_for_each(|qp| self.connect(qp))?;
            }
        }
        while let Some(&step) = self.steps.last() {
            if Time::ZERO + self.script.steps[step].at > self.now {
                break;
            }
            any = true;
            self.steps.pop();
            match &self.script.steps[step].deed {
                Deed::Nothing => {}
                Deed::Send(qp, _) => self.sends[*qp].push_back(step),
                Deed::Receive(queue, _) => {
                    self.receives.entry(*queue).or_default().push_back(step);
                }
                deed => {
                    self.wire.ladder.note(self.now, format!("* {step}: {deed:?}"));
                    self.deed(deed)?;
                }
            }
        }
        Ok(any)
    }

    /// Posts waiting requests until the queues are full. Returns whether any request was posted.
    pub(super) fn post_waiting(&mut self) -> Result<bool, String> {
        let mut any = false;
        for qp in 0..self.script.qps.len() {
            self.post_receives(Queue::Own(qp), &mut any)?;
            while let Some(&step) = self.sends[qp].front() {
                if !self.post_send(qp, step)? {
                    break;
                }
                self.sends[qp].pop_front();
                any = true;
            }
        }
        for srq in 0..self.script.srqs.len() {
            self.post_receives(Queue::Shared(srq), &mut any)?;
        }
        Ok(any)
    }

    fn post_receives(&mut self, queue: Queue, any: &mut bool) -> Done {
        loop {
            let waiting = self.receives.get_mut(&queue).and_then(|list| list.pop_front());
            let Some(step) = waiting else { return Ok(()) };
            let Deed::Receive(_, places) = &self.script.steps[step].deed else { continue };
            let sges = self.objects.scatter(queue, places);
            let request = RecvRequest { id: RECEIVE | step as u64, sges };
            let result = match queue {
                Queue::Own(qp) => match &self.objects.qps[qp] {
                    Some(handle) => handle.post_recv(request),
                    None => continue,
                },
                Queue::Shared(srq) => self.objects.srqs[srq].post_recv(request),
            };
            match result {
                Ok(()) => {
                    let side = name(self.script.side_of(queue));
                    let text = format!("{side} {queue:?}: receive {step} posted: {places:?}");
                    self.wire.ladder.note(self.now, text);
                    self.judge.on_receive_posted(queue, step);
                    *any = true;
                }
                Err(VerbsError::QueueFull { .. }) => {
                    self.receives.entry(queue).or_default().push_front(step);
                    return Ok(());
                }
                // Between RESET and INIT there is no receive queue.
                Err(VerbsError::WrongState { .. }) => {}
                Err(why) => return Err(format!("receive {step} is refused: {why}")),
            }
        }
    }

    /// Posts a send request. Returns `false` if the send queue is full.
    fn post_send(&mut self, qp: usize, step: usize) -> Result<bool, String> {
        let op = self.script.op(step);
        let Some(handle) = self.objects.qps[qp].clone() else { return Ok(true) };
        if handle.sends_outstanding() == handle.init().cap.max_send_wr {
            return Ok(false);
        }
        // A program cannot know the key of a window that was never bound.
        let needs = match (op.verb, op.remote) {
            (Verb::SendInvalidate(bind) | Verb::Invalidate(bind), _) => Some(bind),
            (_, Some((_, By::Window(bind)))) => Some(bind),
            _ => None,
        };
        if needs.is_some_and(|bind| !self.judge.is_posted(bind)) {
            return Ok(true);
        }
        let to = match op.to {
            None => None,
            Some(To::Group(group)) => {
                let ip = self.script.groups[group];
                Some(Address { target: qp, ip, qpn: Qpn::MULTICAST })
            }
            Some(To::Qp(target)) => match &self.objects.qps[target] {
                Some(handle) => {
                    let ip = self.script.sides[self.script.qps[target].side].ip;
                    Some(Address { target, ip, qpn: handle.qpn() })
                }
                None => return Ok(true),
            },
            Some(To::Reply) => match self.last_from[qp] {
                Some(from) => Some(from),
                None => return Ok(true),
            },
        };
        let request = self.objects.request(qp, step, to);
        match handle.post_send(request) {
            Ok(()) => {}
            Err(VerbsError::WrongState { .. })
                if matches!(handle.state(), QpState::Reset | QpState::Init | QpState::Rtr) =>
            {
                return Ok(true);
            }
            Err(why) => return Err(format!("request {step} is refused: {why} ({op:?})")),
        }
        if self.wire.ladder.is_on() {
            let (side, qpn) = (name(self.script.qps[qp].side), handle.qpn());
            let text = format!("{side} QP {qpn}: posts {step}: {op:?}");
            self.wire.ladder.note(self.now, text);
        }
        self.judge.on_posted(step, to.map(|to| to.target));
        Ok(true)
    }

    pub(super) fn create(&mut self, qp: usize) {
        let spec = &self.script.qps[qp];
        let qpn = loop {
            let qpn = Qpn::from_wire(self.numbers.word());
            let is_ours = shard_of(qpn, self.script.sides[spec.side].shards) == spec.shard;
            if is_ours && qpn.value() > 1 && qpn != Qpn::MULTICAST && self.judge.who(qpn).is_none()
            {
                break qpn;
            }
        };
        self.judge.on_created(qp, qpn);
        self.objects.create(qp, qpn);
    }

    /// Brings a queue pair to RTS.
    fn connect(&mut self, qp: usize) -> Done {
        self.judge
            .on_connected(qp, &self.objects)
            .map_err(|why| format!("before it is connected again: {why}"))?;
        let spec = &self.script.qps[qp];
        let mut attr = spec.attr;
        // The first PSN of one end is the expected PSN of the other.
        let epoch = self.epoch;
        let first = |qp: usize| {
            let scattered = u32::try_from(qp).unwrap_or(0) + epoch.wrapping_mul(0x9e_3779);
            // In every other epoch, the first PSN is close to the wraparound.
            Psn::new(if epoch.is_multiple_of(2) { scattered } else { 0xff_fff0 + scattered % 16 })
        };
        attr.sq_psn = first(qp);
        if let Some(peer) = spec.peer {
            attr.rq_psn = first(peer);
            attr.ah_attr.dgid = Gid::from(self.script.sides[self.script.qps[peer].side].ip);
            attr.dest_qp_num = self.objects.qps[peer].as_ref().map_or(Qpn::GSI, |qp| qp.qpn());
        }
        self.drained[qp] = false;
        self.wire.ladder.note(self.now, format!("* QP {qp} is connected"));
        self.objects.connect(self.now, qp, attr).map_err(|why| format!("to RTS: {why}"))
    }

    pub(super) fn deed(&mut self, deed: &Deed) -> Done {
        match *deed {
            Deed::Nothing | Deed::Send(..) | Deed::Receive(..) => {}
            Deed::Limit(srq, limit) => {
                self.objects.srqs[srq].set_limit(limit).map_err(|why| why.to_string())?;
                self.judge.on_limit(srq, limit, &self.objects);
            }
            Deed::Attach(qp, group) | Deed::Detach(qp, group) => {
                self.join_or_leave(qp, group, matches!(deed, Deed::Attach(..)))?;
            }
            Deed::Error(qp) => {
                if self.objects.state(qp) != QpState::Reset {
                    self.judge.on_stopped(qp);
                    self.modify(qp, QpState::Err, &QpAttr::default(), AttrMask::empty())?;
                }
            }
            Deed::Reset(qp) => self.reset(qp)?,
            Deed::Destroy(qp) => self.destroy(qp)?,
            Deed::Revive(qp) => self.revive(qp)?,
            Deed::Drain(qp) => {
                if self.objects.state(qp) == QpState::Rts {
                    let attr = QpAttr { en_sqd_async_notify: true, ..QpAttr::default() };
                    let mask = AttrMask::EN_SQD_ASYNC_NOTIFY;
                    self.modify(qp, QpState::Sqd, &attr, mask)?;
                }
            }
            Deed::Resume(qp) => {
                if matches!(self.objects.state(qp), QpState::Sqd | QpState::Sqe) {
                    // Requests posted in SQE are flushed first.
                    self.settle_engines()?;
                    self.drained[qp] = false;
                    self.judge.on_resumed(qp);
                    self.modify(qp, QpState::Rts, &QpAttr::default(), AttrMask::empty())?;
                }
            }
            Deed::Deregister(side) => {
                let key = self.script.sides[side].layout.key(Area::Victim);
                if self.objects.devices[side].memory.deregister(key) {
                    self.judge.on_deregistered(side, &self.objects);
                }
            }
            Deed::Resize(side, cq, depth) => {
                let queue = &self.objects.devices[side].cqs[cq];
                let fits = queue.len() <= depth as usize;
                if queue.resize(depth).is_ok() != fits {
                    return Err(format!("a queue of {} is resized to {depth}", queue.len()));
                }
            }
            Deed::Register(side) => {
                let key = self.script.sides[side].layout.key(Area::Windowed);
                let memory = &self.objects.devices[side].memory;
                let done = memory.reregister(key, RegionChange::default());
                self.judge.on_registered(side, memory.windows_of(key), done.is_ok())?;
            }
            Deed::Pause(side, cq, time) => {
                self.paused.insert((side, cq), self.now + time);
            }
            Deed::Withdraw(srq) => {
                let number = self.objects.srqs[srq].number();
                self.objects.devices[self.script.srqs[srq].side].xrcd.remove(number);
                self.judge.on_withdrawn(srq);
            }
        }
        Ok(())
    }

    fn join_or_leave(&mut self, qp: usize, group: usize, join: bool) -> Done {
        let Some(handle) = &self.objects.qps[qp] else { return Ok(()) };
        let (qpn, gid) = (handle.qpn(), Gid::from(self.script.groups[group]));
        let engine = self.objects.engine(qp);
        if join {
            engine.attach_multicast(qpn, gid).map_err(|why| why.to_string())?;
        } else if engine.detach_multicast(qpn, gid).is_err() {
            return Ok(());
        }
        self.judge.on_group(qp, group, join);
        Ok(())
    }

    fn modify(&mut self, qp: usize, state: QpState, attr: &QpAttr, mask: AttrMask) -> Done {
        let Some(handle) = &self.objects.qps[qp] else { return Ok(()) };
        let qpn = handle.qpn();
        let attr = QpAttr { qp_state: state, ..*attr };
        let engine = self.objects.engine(qp);
        engine
            .modify_qp(self.now, qpn, &attr, mask | AttrMask::STATE)
            .map_err(|why| format!("modify to {}: {why}", state.name()))
    }

    /// Sends packets, and takes all events and completions of this moment.
    fn settle_engines(&mut self) -> Done {
        self.transmit()?;
        self.events()?;
        self.completions(true)?;
        Ok(())
    }

    /// Informs the judge before a queue pair loses its posted requests.
    fn before_reset(&mut self, qp: usize) -> Done {
        self.events()?;
        self.completions(true)?;
        let Some(handle) = &self.objects.qps[qp] else { return Ok(()) };
        let outstanding = handle.sends_outstanding() as usize;
        self.judge.before_reset(qp, outstanding, &self.objects)?;
        self.drained[qp] = false;
        self.last_from[qp] = None;
        Ok(())
    }

    fn reset(&mut self, qp: usize) -> Done {
        if self.objects.state(qp) == QpState::Reset {
            return Ok(());
        }
        self.before_reset(qp)?;
        self.modify(qp, QpState::Reset, &QpAttr::default(), AttrMask::empty())?;
        let left = self.objects.qps[qp]
            .as_ref()
            .map_or(0, |handle| handle.sends_outstanding() + handle.receives_outstanding());
        if left > 0 {
            return Err("RESET left requests outstanding".into());
        }
        self.leave_groups(qp);
        Ok(())
    }

    fn leave_groups(&mut self, qp: usize) {
        let Some(handle) = &self.objects.qps[qp] else { return };
        let qpn = handle.qpn();
        let engine = self.objects.engine(qp);
        for group in &self.script.groups {
            // An error means that the queue pair was not attached to this group.
            let _ = engine.detach_multicast(qpn, Gid::from(*group));
        }
    }

    fn destroy(&mut self, qp: usize) -> Done {
        self.before_reset(qp)?;
        if let Some(handle) = self.objects.qps[qp].take() {
            let engine = self.objects.engine(qp);
            engine.destroy_qp(handle.qpn()).map_err(|why| why.to_string())?;
        }
        Ok(())
    }

    /// Connects a queue pair and its peer again if either is out of service.
    /// The connection is made only after all old packets have left the network.
    fn revive(&mut self, qp: usize) -> Done {
        let pair: Vec<_> = [Some(qp), self.script.qps[qp].peer].into_iter().flatten().collect();
        let well = |qp: &usize| {
            let state = self.objects.state(*qp);
            matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe)
        };
        let pending = self.connects.iter().any(|(_, other)| pair.contains(other));
        if pair.iter().all(well) || pending {
            return Ok(());
        }
        for &qp in &pair {
            self.reset(qp)?;
            if self.objects.qps[qp].is_none() {
                self.create(qp);
            }
        }
        let quiet = self.script.network.longest() * 3 + Duration::from_micros(5);
        self.connects.push((self.now + quiet, pair[0]));
        Ok(())
    }
}
