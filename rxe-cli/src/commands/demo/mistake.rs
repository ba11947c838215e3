//! The deliberate mistake: a WRITE beyond the end of the peer's memory region.
//! The peer refuses the WRITE with a NAK, and both ends report the reason.

use rxe_core::queue::{Completion, Remote, Status};

use super::end::{End, TIMEOUT};
use super::messages::Seen;
use super::steps::{REGION, START, background};
use crate::common::Error;

/// The length of the WRITE in bytes, and how many of them lie outside the region.
pub(super) const BYTES: usize = 64;
pub(super) const OUTSIDE: usize = 48;

/// The work request IDs of the two requests.
const WRITE: u64 = 0xbad;
const RECEIVE: u64 = 0xcafe;

/// Prepares the peer: fills its memory and posts a receive. The flushed receive shows the effect on
/// the peer's queue pair.
pub(super) fn prepare(end: &End) -> Result<(), Error> {
    end.device.explain();
    end.set(&background())?;
    Ok(end.qp.recv(RECEIVE, &[end.mr.slice(START..START + BYTES)])?)
}

/// Posts the WRITE at the leading end and waits for its completion.
pub(super) fn make(end: &End, region: Remote) -> Result<Seen, Error> {
    end.device.explain();
    let before = end.mr.to_vec(..)?;
    let beyond = (REGION + OUTSIDE - BYTES) as u64;
    let to = Remote { addr: region.addr + beyond, rkey: region.rkey };
    end.qp.write(WRITE, &[end.mr.slice(START..START + BYTES)], to).post()?;
    let done = end.cq.wait_one(TIMEOUT)?;
    seen(end, "its WRITE", &done, &before)
}

/// Waits for the peer's flushed receive, and reports the effects at the peer.
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

/// Returns whether both ends saw the expected effects. `here` is the end that made the mistake.
pub(super) fn is_as_it_should_be(here: &Seen, peer: &Seen) -> bool {
    here.code == Status::RemoteAccess.code()
        && peer.code == Status::WorkRequestFlushed.code()
        && here.memory_unchanged
        && peer.memory_unchanged
}
