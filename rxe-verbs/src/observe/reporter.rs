//! A device's replies to questions about its counters and objects ([`crate::observe`]). They are
//! written on the thread of the device's control socket.
//!
//! State under a shard's lock is first copied out, so that the lock is held briefly; the text is
//! written afterwards.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rxe_core::cm::service::PortSpace;
use rxe_core::engine::{Counters, QpInfo};
use rxe_core::mem::Memory;
use rxe_core::qp::{QpState, QpType};
use rxe_net::report::{MAX_REPORT, Question, Reporter};
use rxe_net::{CaptureStream, PortGroups};
use rxe_sys::fork_generation;

use super::{
    BUSY, DROPPED, LiveCaptureSlot, Record, Resources, Subject, TOTAL, UseCounters, records,
};
use crate::progress::{CmList, Core, Shard};

/// The most objects in a reply.
const MAX_OBJECTS: usize = 256;
/// How long a reply may wait for a shard's lock. On a busy machine its holder may get no CPU for
/// some tenths of a second.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// A position in the list of queue pairs is a shard number, followed by this number of bits for the
/// position in that shard.
const PLACE_BITS: u32 = 26;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

/// What a report needs from a device outside this module. An implementation must not keep the
/// device open.
pub(crate) trait Observed: Send {
    /// Returns the name of the device's network interface.
    fn netdev(&self) -> String;

    /// Returns how often the port went down.
    fn link_downed(&self) -> u64;

    /// Returns all shards; none if the device is closed.
    fn shards(&self) -> Vec<Arc<Shard>>;
}

/// The sources of a device's reports. Nothing here keeps the device open.
pub(crate) struct DeviceReporter {
    pub(crate) name: String,
    pub(crate) backend: &'static str,
    pub(crate) device: Box<dyn Observed>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) resources: Arc<Resources>,
    pub(crate) live_capture: Arc<LiveCaptureSlot>,
}

/// Keeps a device replying to questions until it is dropped.
pub(crate) struct Reporting {
    groups: Arc<PortGroups>,
    live_capture: Arc<LiveCaptureSlot>,
    /// The fork generation of the process that owns the device.
    generation: u64,
}

impl Reporting {
    pub(crate) fn start(groups: Arc<PortGroups>, reporter: DeviceReporter) -> Self {
        let live_capture = Arc::clone(&reporter.live_capture);
        groups.set_reporter(Some(Box::new(reporter)));
        Self { groups, live_capture, generation: fork_generation() }
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        // In a forked child its lock may be held forever.
        if self.generation == fork_generation() {
            self.groups.set_reporter(None);
            self.live_capture.end();
        }
    }
}

impl Reporter for DeviceReporter {
    fn report(&self, question: Question) -> Vec<u8> {
        let mut all = vec![self.device()];
        let Some(subject) = Subject::from_number(question.subject) else { return records(&all) };
        let of_subject = match subject {
            Subject::Counters => self.counters(),
            Subject::Summary => self.summary(),
            Subject::Qp => self.qps(question.from),
            Subject::Cq => Some(self.cqs()),
            Subject::Mr => Some(self.mrs()),
            Subject::Srq => Some(self.srqs()),
            Subject::CmId => self.cm_ids(),
            Subject::Pd => Some(self.pds()),
        };
        match of_subject {
            Some(records) => all.extend(records),
            None => all.push(Record::new(BUSY)),
        }
        let mut text = records(&all);
        text.truncate(MAX_REPORT);
        text
    }

    fn capture(&self, to: CaptureStream) -> bool {
        let last = |dropped| records(&[Record::new(DROPPED).with("packets", dropped)]);
        self.live_capture.start(to, &records(&[self.device()]), last, || self.device.shards())
    }

    fn end_capture(&self) {
        self.live_capture.end();
    }
}

impl DeviceReporter {
    /// Calls `look` under each shard's lock; `None` if a lock is not free in time.
    fn look<R>(&self, look: impl Fn(&mut Core) -> R) -> Option<Vec<R>> {
        self.device
            .shards()
            .iter()
            .map(|shard| shard.with_lock_within(LOCK_TIMEOUT, &look))
            .collect()
    }

    fn device(&self) -> Record {
        Record::new("device")
            .with("name", &self.name)
            .with("netdev", self.device.netdev())
            .with("backend", self.backend)
    }

    fn counters(&self) -> Option<Vec<Record>> {
        let look = |core: &mut Core| (core.engine.counters().clone(), core.net_counters());
        let (mut engine, mut net) = (Counters::default(), rxe_net::Counters::default());
        for (of_engine, of_net) in self.look(look)? {
            engine += &of_engine;
            net += of_net;
        }
        let errors = net.tx_no_buffer + net.tx_unreachable + net.tx_denied + net.tx_down;
        let errors = errors + net.tx_too_big + net.tx_bad_address + net.tx_other;
        let hw = Record::new("hw_counters")
            .with_all(engine.hw_counters())
            .with("send_err", errors)
            .with("link_downed", self.device.link_downed());
        let dropped = engine.drops().map(|(reason, count)| (reason.name(), count));
        Some(vec![
            hw,
            Record::new("counters").with_all(engine.own_counters()),
            Record::new("dropped").with_all(dropped),
            Record::new("net").with_all(net.named()),
        ])
    }

    fn summary(&self) -> Option<Vec<Record>> {
        let cm_ids: usize = self.look(|core| core.list_cm(0).total)?.into_iter().sum();
        let Resources { pds, cqs, mrs, mws, srqs, ahs, qps, .. } = &*self.resources;
        let record = Record::new("resource")
            .with("pd", pds.used())
            .with("cq", cqs.used())
            .with("qp", qps.used())
            .with("cm_id", cm_ids)
            .with("mr", mrs.used())
            .with("ctx", 1)
            .with("srq", srqs.used())
            .with("mw", mws.used())
            .with("ah", ahs.used());
        Some(vec![record])
    }

    fn qps(&self, from: u32) -> Option<Vec<Record>> {
        let shards = self.device.shards();
        let number = (from >> PLACE_BITS) as usize;
        let place = (from & PLACE_MASK) as usize;
        let total = self.resources.qps.used();
        let mut records = Vec::new();
        let mut next = None;
        if let Some(shard) = shards.get(number) {
            let page = shard
                .with_lock_within(LOCK_TIMEOUT, |core| core.engine.list_qps(place, MAX_OBJECTS))?;
            records.extend(page.qps.iter().map(qp));
            next = page.next.and_then(|place| u32::try_from(place).ok());
            next = next.filter(|place| *place <= PLACE_MASK);
            next = next.map(|place| from & !PLACE_MASK | place);
            if page.next.is_none() && number + 1 < shards.len() {
                next = Some((from & !PLACE_MASK) + PLACE_MASK + 1);
            }
        }
        records.push(Record::new(TOTAL).with("objects", total).with("next", next.unwrap_or(0)));
        Some(records)
    }

    fn cqs(&self) -> Vec<Record> {
        let all = self.resources.cq_list.some(MAX_OBJECTS).into_iter();
        let records = all.filter_map(|(number, (queue, uses))| {
            let queue = queue.upgrade()?;
            let record = Record::new("cq").with("cqn", number).with("cqe", queue.depth());
            let record = record.with("users", users(&uses)).with("completions", queue.len());
            Some(record.with("overflow", u8::from(queue.is_overflowed())))
        });
        with_total(records, self.resources.cqs.used())
    }

    fn mrs(&self) -> Vec<Record> {
        let regions = self.memory.list_regions(MAX_OBJECTS);
        let records = regions.iter().map(|region| {
            Record::new("mr")
                .with("mrlen", region.len)
                .with("pdn", region.pd.0)
                .with("access", format!("{:#x}", region.access.bits()))
                .with("windows", region.windows)
        });
        with_total(records, self.resources.mrs.used())
    }

    fn srqs(&self) -> Vec<Record> {
        let all = self.resources.srq_list.some(MAX_OBJECTS).into_iter();
        let records = all.filter_map(|(_, queue)| queue.upgrade()).map(|queue| {
            Record::new("srq")
                .with("srqn", queue.number())
                .with("type", if queue.cq().is_some() { "XRC" } else { "BASIC" })
                .with("pdn", queue.pd().0)
                .with("depth", queue.depth())
                .with("receives", queue.len())
                .with("limit", queue.limit())
        });
        with_total(records, self.resources.srqs.used())
    }

    fn pds(&self) -> Vec<Record> {
        let all = self.resources.pd_list.some(MAX_OBJECTS).into_iter();
        let records = all.map(|(number, uses)| {
            Record::new("pd").with("pdn", number).with("users", users(&uses))
        });
        with_total(records, self.resources.pds.used())
    }

    fn cm_ids(&self) -> Option<Vec<Record>> {
        // The communication manager belongs to the first shard.
        let first = self.device.shards().into_iter().next()?;
        let CmList { services, connections, total } =
            first.with_lock_within(LOCK_TIMEOUT, |core| core.list_cm(MAX_OBJECTS / 2))?;
        let listeners = services.iter().map(|service| {
            let record = Record::new("cm_id").with("state", "LISTEN");
            match PortSpace::of_service(*service) {
                Some((space, port)) => {
                    let space = if space == PortSpace::Udp { "UDP" } else { "TCP" };
                    record.with("ps", space).with("port", port)
                }
                None => record.with("service", format!("{service:#018x}")),
            }
        });
        let connections = connections.iter().map(|connection| {
            Record::new("cm_id")
                .with("state", connection.state)
                .with("id", format!("{:#010x}", connection.id.0))
                .with("lqpn", connection.local_qpn)
                .with("rqpn", connection.remote_qpn)
                .with("src", connection.route.local.to_ip())
                .with("dst", connection.route.remote.to_ip())
        });
        Some(with_total(listeners.chain(connections), total))
    }
}

fn with_total(records: impl Iterator<Item = Record>, total: impl Display) -> Vec<Record> {
    records.chain([Record::new(TOTAL).with("objects", total).with("next", 0)]).collect()
}

/// Returns how many objects these counters count.
fn users(uses: &Weak<UseCounters>) -> u32 {
    uses.upgrade().map_or(0, |uses| uses.read().total())
}

/// Returns the state's name in rdma(8).
fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

fn qp(qp: &QpInfo) -> Record {
    let service = match qp.service {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC_INI",
        QpType::XrcRecv => "XRC_TGT",
    };
    let mut record = Record::new("qp").with("lqpn", qp.qpn);
    if let Some((address, number)) = qp.peer {
        record = record.with("rqpn", number).with("peer", address);
    }
    record = record
        .with("type", service)
        .with("state", state(qp.state))
        .with("pdn", qp.pd.0)
        .with("path-mtu", qp.path_mtu.bytes())
        .with("sq-psn", qp.sent.psn);
    if let Some(psn) = qp.rq_psn {
        record = record.with("rq-psn", psn);
    }
    if let Some(rate) = qp.rate {
        record = record.with("rate", rate);
    }
    let counters = &qp.counters;
    record
        .with("sends", qp.sends)
        .with("receives", qp.receives)
        .with("unacked", qp.sent.unacknowledged)
        .with("window", qp.sent.window)
        .with("dropped", counters.dropped)
        .with("retries", counters.retries())
        .with("ack_timeout", counters.ack_timeout)
        .with("round_trip_timeout", counters.round_trip_timeout)
        .with("retry_sequence_nak", counters.retry_sequence_nak)
        .with("retry_implied_nak", counters.retry_implied_nak)
        .with("retry_rnr", counters.retry_rnr)
        .with("send_rnr_err", counters.send_rnr_err)
        .with("rcvd_rnr_err", counters.rcvd_rnr_err)
        .with("naks_sent", counters.naks_sent)
        .with("naks_received", counters.naks_received)
        .with("cnp_sent", counters.cnp_sent)
        .with("cnp_received", counters.cnp_received)
}
