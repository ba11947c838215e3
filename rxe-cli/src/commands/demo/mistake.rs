//! The deliberate mistake: a WRITE beyond the end of the peer's memory region. The peer refuses it with
//! a NAK, and both ends learn why.

use rxe_core::queue::{Completion, Remote, Status};

use super::end::{End, TIMEOUT};
use super::messages::Seen;
use super::steps::{REGION, START, background};
use crate::common::Error;

/// Bytes of the WRITE, and how many of them lie outside the region.
pub(super) const BYTES: usize = 64;
pub(super) const OUTSIDE: usize = 48;

/// The IDs of the two requests.
const WRITE: u64 = 0xbad;
const RECEIVE: u64 = 0xcafe;

/// At the peer, before the mistake: fills memory and posts a receive. The completion of that receive
/// shows what happened to the QP.
pub(super) fn prepare(end: &End) -> Result<(), Error> {
    end.device.explain();
    end.set(&background())?;
    Ok(end.qp.recv(RECEIVE, &[end.mr.slice(START..START + BYTES)])?)
}

/// At the other end: posts the WRITE and waits for its completion.
pub(super) fn make(end: &End, region: Remote) -> Result<Seen, Error> {
    end.device.explain();
    let before = end.mr.to_vec(..)?;
    let beyond = (REGION + OUTSIDE - BYTES) as u64;
    let to = Remote { addr: region.addr + beyond, rkey: region.rkey };
    end.qp.write(WRITE, &[end.mr.slice(START..START + BYTES)], to).post()?;
    let done = end.cq.wait_one(TIMEOUT)?;
    seen(end, "its WRITE", &done, &before)
}

/// At the peer, after the mistake: reports what it saw.
pub(super) fn aftermath(end: &End) -> Result<Seen, Error> {
    let done = end.cq.wait_one(TIMEOUT)?;
    seen(end, "a receive it had posted", &done, &background())
}

fn seen(end: &End, request: &str, done: &Completion, before: &[u8]) -> Result<Seen, Error> {
    Ok(Seen {
        request: request.into(),
        status: done.status.to_string(),
        code: done.status.code(),
        meaning: done.status.meaning().to_owned(),
        events: end.device.explain(),
        qp_state: end.qp.state().name().into(),
        memory_unchanged: end.difference(before)?.is_none(),
    })
}

/// Whether both ends saw what they should: `here` made the mistake.
pub(super) fn is_as_it_should_be(here: &Seen, peer: &Seen) -> bool {
    here.code == Status::RemoteAccess.code()
        && peer.code == Status::WorkRequestFlushed.code()
        && here.memory_unchanged
        && peer.memory_unchanged
}
