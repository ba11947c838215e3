//! The plan of a measurement. The client creates it and sends it to the server.

use std::time::Duration;

use clap::ValueEnum;
use rxe_core::types::Mtu;
use rxe_verbs::QpType;
use serde::{Deserialize, Serialize};

use crate::common::Error;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// SEND into posted receives
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// FETCH-AND-ADD, or with -A COMPARE-AND-SWAP
    Atomic,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }

    /// Returns the operation's title in perftest.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Write => "RDMA_Write",
            Self::Read => "RDMA_Read",
            Self::Atomic => "Atomic",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Bandwidth: with as many outstanding messages as -t allows
    Bw,
    /// Latency: one message at a time, half the round trip (READ and atomics: all of it)
    Lat,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Lat => "lat",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bw => "BW",
            Self::Lat => "Latency",
        }
    }
}

/// The transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// Reliable connection: all operations
    #[default]
    Rc,
    /// Unreliable connection: send and write; lost messages are counted
    Uc,
    /// Unreliable datagram: send of at most one path MTU; lost messages are counted
    Ud,
}

impl Transport {
    /// Returns the service's name in perftest.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    pub(super) fn service(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Returns whether messages can be lost.
    pub(super) fn loses(self) -> bool {
        self != Self::Rc
    }

    /// Returns the number of bytes in front of a received message: the GRH.
    pub(super) fn front(self) -> usize {
        match self {
            Self::Ud => 40,
            _ => 0,
        }
    }

    fn carries(self, op: Op) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(op, Op::Send | Op::Write),
            Self::Ud => op == Op::Send,
        }
    }
}

/// The kind of atomic, with perftest's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Atomic {
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

/// The duration of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Amount {
    /// A number of messages per size, on each queue pair.
    Messages {
        n: u64,
        /// Whether at most [`BYTES_PER_SIZE`] bytes are sent per size.
        fewer_if_large: bool,
    },
    /// A number of seconds per size.
    Seconds(u32),
}

/// The number of bytes of one size that suffice for a measurement.
const BYTES_PER_SIZE: u64 = 1 << 30;

/// The plan of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) op: Op,
    pub(super) kind: Kind,
    pub(super) transport: Transport,
    pub(super) sizes: Vec<u32>,
    /// Whether the sizes are defaults. Those that do not fit are then left out.
    pub(super) any_size: bool,
    pub(super) amount: Amount,
    pub(super) qps: u32,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    pub(super) cq_mod: u32,
    pub(super) inline: u32,
    pub(super) outs: u8,
    pub(super) atomic: Atomic,
    pub(super) bidirectional: bool,
}

impl Plan {
    /// The largest message in bytes.
    /// It is the limit of verbs, and of the memory that a host should have.
    const LARGEST: u32 = 1 << 30;
    /// The most queue pairs. A power of two, because a bit field of request IDs holds the index.
    pub(super) const MOST_QPS: u32 = 1024;
    /// The most entries that a device's completion queue can have.
    const CQ_DEPTH: u32 = 1 << 20;

    /// Fails if the plan is inconsistent. The server calls this as well, because it got the plan
    /// over the network.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, todo: &str| Err(Error::new(what, todo));
        match self.sizes.iter().max() {
            None => return wrong("no size to measure", "give one with -s"),
            Some(&most) if most > Self::LARGEST => {
                return wrong("the message is too large", "-s can be 1G at most");
            }
            Some(_) => {}
        }
        if self.sizes.contains(&0) {
            return wrong("nothing can be measured with 0 bytes", "give -s 1 or more");
        }
        if !self.transport.carries(self.op) {
            let (service, op) = (self.transport.title(), self.op.name());
            let todo = match self.transport {
                Transport::Ud => "it has only send; measure that, or leave --transport out",
                _ => "it has send and write; measure these, or leave --transport out",
            };
            return wrong(&format!("{service} has no {op}"), todo);
        }
        if self.op == Op::Atomic && self.sizes.iter().any(|&size| size != 8) {
            return wrong("an atomic operation has 8 bytes", "leave -s and -a out");
        }
        if self.kind == Kind::Lat && self.qps != 1 {
            return wrong("latency is measured on one queue pair", "leave -q out");
        }
        if self.kind == Kind::Lat && self.bidirectional {
            return wrong("a latency test has one direction", "leave -b out");
        }
        let in_range = (1..=Self::MOST_QPS).contains(&self.qps)
            && (1..=15000).contains(&self.tx_depth)
            && (1..=16384).contains(&self.rx_depth)
            && (1..=self.tx_depth).contains(&self.cq_mod)
            && self.inline <= 512
            && (1..=128).contains(&self.outs)
            && !matches!(self.amount, Amount::Messages { n: 0, .. } | Amount::Seconds(0));
        if !in_range {
            return wrong("a number is out of range", "see `rxe perf --help`");
        }
        if self.cq_depth() > Self::CQ_DEPTH {
            let todo = "-q times (-t plus -r) can be 1048576 at most";
            return wrong("too many outstanding requests for one completion queue", todo);
        }
        Ok(())
    }

    /// Returns the plan without sizes that do not fit. A datagram holds at most one path MTU.
    pub(super) fn fitted(&self, mtu: Mtu) -> Result<Self, Error> {
        let most = u32::try_from(mtu.bytes()).unwrap_or(u32::MAX);
        let mut plan = self.clone();
        if self.transport != Transport::Ud {
            return Ok(plan);
        }
        plan.sizes.retain(|&size| size <= most);
        if plan.sizes.len() == self.sizes.len() {
            return Ok(plan);
        }
        if !self.any_size {
            let size = self.sizes.iter().max().copied().unwrap_or_default();
            let what = format!("{size} bytes do not fit a datagram, which holds one path MTU");
            return Err(Error::new(what, format!("use -s {most} or less, or --transport uc")));
        }
        if plan.sizes.is_empty() {
            plan.sizes.push(most);
        }
        Ok(plan)
    }

    /// Returns the most completions that can be in the queue.
    pub(super) fn cq_depth(&self) -> u32 {
        self.qps.saturating_mul(self.tx_depth.saturating_add(self.rx_depth))
    }

    /// Returns the length of the largest message in bytes.
    pub(super) fn largest(&self) -> usize {
        self.sizes.iter().max().map_or(0, |&size| size as usize)
    }

    /// Returns the time per size; `None` if the number of messages is the limit.
    pub(super) fn time(&self) -> Option<Duration> {
        match self.amount {
            Amount::Seconds(s) => Some(Duration::from_secs(s.into())),
            Amount::Messages { .. } => None,
        }
    }

    /// Returns the number of messages of a size on each queue pair; `None` if time limits.
    pub(super) fn messages(&self, size: u32) -> Option<u64> {
        match self.amount {
            Amount::Seconds(_) => None,
            Amount::Messages { n, fewer_if_large: false } => Some(n),
            Amount::Messages { n, fewer_if_large: true } => {
                Some(n.min((BYTES_PER_SIZE / u64::from(size.max(1))).max(5)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            op: Op::Write,
            kind: Kind::Bw,
            transport: Transport::Rc,
            sizes: vec![65536],
            any_size: true,
            amount: Amount::Messages { n: 5000, fewer_if_large: true },
            qps: 1,
            tx_depth: 128,
            rx_depth: 1,
            cq_mod: 100,
            inline: 0,
            outs: 16,
            atomic: Atomic::FetchAndAdd,
            bidirectional: false,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        plan().check().unwrap();
        for (bad, why) in [
            (Plan { sizes: vec![0], ..plan() }, "0 bytes"),
            (Plan { sizes: vec![], ..plan() }, "no size"),
            (Plan { sizes: vec![u32::MAX], ..plan() }, "too large"),
            (Plan { op: Op::Atomic, ..plan() }, "8 bytes"),
            (Plan { transport: Transport::Ud, ..plan() }, "UD has no write: it has only send"),
            (Plan { op: Op::Read, transport: Transport::Uc, ..plan() }, "UC has no read: it has"),
            (Plan { kind: Kind::Lat, qps: 2, ..plan() }, "one queue pair"),
            (Plan { kind: Kind::Lat, bidirectional: true, ..plan() }, "one direction"),
            (Plan { cq_mod: 129, ..plan() }, "out of range"),
            (Plan { qps: 0, ..plan() }, "out of range"),
            (Plan { amount: Amount::Seconds(0), ..plan() }, "out of range"),
            (Plan { qps: 256, tx_depth: 4096, ..plan() }, "completion queue"),
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn datagrams_are_cut_to_the_path_mtu_or_refused() {
        let ud = Plan { op: Op::Send, transport: Transport::Ud, ..plan() };
        assert_eq!(ud.fitted(Mtu::M1024).unwrap().sizes, [1024]);
        let again = ud.fitted(Mtu::M4096).unwrap().fitted(Mtu::M1024).unwrap();
        assert_eq!(again.sizes, [1024], "what one end cuts, the other may cut again");
        let all = Plan { sizes: (1..=23).map(|bit| 1 << bit).collect(), ..ud.clone() };
        assert_eq!(all.fitted(Mtu::M256).unwrap().sizes, [2, 4, 8, 16, 32, 64, 128, 256]);
        let asked = Plan { any_size: false, ..ud };
        let said = asked.fitted(Mtu::M1024).unwrap_err().to_string();
        assert!(said.contains("65536 bytes do not fit") && said.contains("-s 1024"), "{said}");
        assert_eq!(plan().fitted(Mtu::M256).unwrap(), plan(), "others are segmented");
    }

    #[test]
    fn large_messages_need_not_be_many() {
        assert_eq!(plan().messages(2), Some(5000));
        assert_eq!(plan().messages(8 << 20), Some(128));
        let amount = Amount::Messages { n: 5000, fewer_if_large: false };
        assert_eq!(Plan { amount, ..plan() }.messages(8 << 20), Some(5000));
        assert_eq!(Plan { amount: Amount::Seconds(1), ..plan() }.messages(2), None);
    }
}
