//! The report of a run.

use std::fmt::Write;
use std::net::IpAddr;

use rxe_core::wire::Service;
use rxe_lab::replay::{Difference, Plan};
use serde::Serialize;

use crate::common::peer::Peer;
use crate::common::{lines, paragraph};

/// The report of a run, in the form of its JSON.
#[derive(Serialize)]
pub(super) struct Report {
    peer: IpAddr,
    device: String,
    active_mtu: u32,
    own: IpAddr,
    conversation: String,
    service: &'static str,
    path_mtu: usize,
    /// The number of packets to send, and of packets sent.
    packets: u64,
    pub(super) sent: u64,
    /// The number of recorded answers, and of those that arrived as recorded.
    answers: u64,
    pub(super) same: u64,
    /// The number of READ and atomic responses that the recording does not have.
    pub(super) unrecorded: u64,
    /// The number of messages that the peer's program should receive, and that it received.
    messages: u64,
    pub(super) received: u64,
    notes: Vec<String>,
    #[serde(serialize_with = "differences")]
    pub(super) differences: Vec<Difference>,
    /// The reason why not everything was sent.
    pub(super) stopped: Option<String>,
}

/// A difference, in the form of its JSON.
#[derive(Serialize)]
struct Different<'a> {
    frame: Option<u64>,
    request: Option<&'a str>,
    recorded: Option<&'a str>,
    recorded_frame: Option<u64>,
    came: Option<&'a str>,
}

fn differences<S: serde::Serializer>(all: &[Difference], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|it| Different {
        frame: it.request.as_ref().map(|(frame, _)| *frame).filter(|frame| *frame > 0),
        request: it.request.as_ref().map(|(_, words)| &**words),
        recorded: it.recorded.as_ref().map(|(_, words)| &**words),
        recorded_frame: it.recorded.as_ref().map(|(frame, _)| *frame).filter(|frame| *frame > 0),
        came: it.came.as_deref(),
    }))
}

impl Report {
    pub(super) fn new(peer: &Peer, own: IpAddr, plan: &Plan, service: Service) -> Self {
        Self {
            peer: peer.address,
            device: peer.device.clone(),
            active_mtu: peer.active_mtu,
            own,
            conversation: plan.ends.to_string(),
            service: match service {
                Service::Uc => "UC",
                Service::Ud => "UD",
                _ => "RC",
            },
            path_mtu: plan.path_mtu,
            packets: plan.packets,
            sent: 0,
            answers: plan.answers,
            same: 0,
            unrecorded: 0,
            messages: plan.received,
            received: 0,
            notes: plan.notes.clone(),
            differences: Vec::new(),
            stopped: None,
        }
    }

    pub(super) fn is_same(&self) -> bool {
        self.differences.is_empty() && self.stopped.is_none()
    }

    /// Formats the lines before anything is sent.
    pub(super) fn head(&self) -> String {
        let Self { peer, device, active_mtu, own, conversation, service, path_mtu, .. } = self;
        let Self { packets, answers, .. } = self;
        let mut page = String::new();
        let text =
            format!("peer {peer}: device {device}, active MTU {active_mtu}; own address {own}");
        paragraph(&mut page, &text, lines("", "  "));
        let text = format!(
            "{conversation}: {service}, path MTU {path_mtu}; packets {packets}, answers {answers}"
        );
        paragraph(&mut page, &text, lines("", "  "));
        for note in &self.notes {
            paragraph(&mut page, note, lines("note: ", "  "));
        }
        page
    }

    /// Formats the differences and the summary.
    pub(super) fn text(&self) -> String {
        let mut page = String::new();
        for Difference { request, recorded, came, .. } in &self.differences {
            let title = match request {
                Some((0, words)) => words.clone(),
                Some((frame, words)) => format!("frame {frame}, {words}"),
                None => "the peer".into(),
            };
            page.push('\n');
            paragraph(&mut page, &title, lines("differs: ", "  "));
            let recorded = match recorded {
                Some((0, words)) => words.clone(),
                Some((frame, words)) => format!("{words} (frame {frame})"),
                None => "nothing".into(),
            };
            paragraph(&mut page, &recorded, lines("  recorded: ", "    "));
            let came = came.as_deref().unwrap_or("nothing");
            paragraph(&mut page, came, lines("  came: ", "    "));
        }
        page.push('\n');
        if let Some(why) = &self.stopped {
            paragraph(&mut page, why, lines("stopped: ", "  "));
        }
        let Self { sent, packets, same, answers, .. } = self;
        let mut sum = format!("sent {sent} of {packets}; answers as recorded {same} of {answers}");
        if self.unrecorded > 0 {
            let _ = write!(sum, ", not recorded {}", self.unrecorded);
        }
        if self.messages > 0 && self.stopped.is_none() {
            let _ = write!(sum, "; messages {} of {}", self.received, self.messages);
        }
        let _ = write!(sum, "; differences {}", self.differences.len());
        paragraph(&mut page, &sum, lines("", "  "));
        page
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
