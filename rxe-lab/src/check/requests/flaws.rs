//! Flaws of requests that their headers show, and that a responder may refuse them for.

use std::collections::VecDeque;

use rxe_core::types::Psn;

use crate::frame::Transport;

/// The most requests whose flaws are remembered.
const MAX: usize = 8;

/// The longest message, in bytes. IBTA 9.7.7.
const LONGEST: u32 = 1 << 31;

/// The flaws of the latest requests, and the latest damaged ones.
#[derive(Debug, Default)]
pub(in super::super) struct Flaws {
    all: VecDeque<(Psn, String)>,
    damaged: VecDeque<Psn>,
}

impl Flaws {
    /// Looks for a flaw in the headers of a request.
    pub(super) fn look(&mut self, packet: &Transport<'_>) {
        let psn = packet.bth.psn;
        if let Some(atomic) = packet.ext.atomic.filter(|atomic| !atomic.va.is_multiple_of(8)) {
            self.add(psn, &format!("the address 0x{:x} is no multiple of 8", atomic.va));
        }
        if let Some(reth) = packet.ext.reth.filter(|reth| reth.dma_len > LONGEST) {
            let text =
                format!("it is of {} bytes, and a message has at most {LONGEST}", reth.dma_len);
            self.add(psn, &text);
        }
    }

    /// Notes why the request with this PSN may be refused. The first reason counts.
    pub(super) fn add(&mut self, psn: Psn, why: &str) {
        if self.of(psn).is_none() {
            push(&mut self.all, (psn, why.to_owned()));
        }
    }

    /// Returns why the request with this PSN may be refused.
    pub(in super::super) fn of(&self, psn: Psn) -> Option<&str> {
        self.all.iter().find(|(other, _)| *other == psn).map(|(_, why)| &why[..])
    }

    /// Notes that a request with this PSN was captured with a wrong ICRC.
    pub(in super::super) fn add_damaged(&mut self, psn: Psn) {
        push(&mut self.damaged, psn);
    }

    /// Returns whether a request with this PSN was captured with a wrong ICRC.
    pub(super) fn is_damaged(&self, psn: Psn) -> bool {
        self.damaged.contains(&psn)
    }
}

/// Appends to a bounded list.
fn push<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == MAX {
        list.pop_front();
    }
    list.push_back(new);
}
