//! The second process, which executes the requests of the first.

use std::io::{self, StdinLock};
use std::process;

use rxe_core::queue::{CompletionOp, Immediate, Status};
use rxe_verbs::Endpoint;

use super::end::{End, TIMEOUT};
use super::messages::{Answer, Ask, hear, say};
use super::mistake;
use super::steps::{Op, START, Step, background};
use crate::common::Error;

/// Answers requests until the input ends.
pub(super) fn run() -> Result<(), Error> {
    let mut stdin: StdinLock<'static> = io::stdin().lock();
    let mut end = None;
    let broken = |e: io::Error| Error::new("cannot talk to the first process", e);
    while let Some(ask) = hear(&mut stdin).map_err(broken)? {
        let answer = answer(&ask, &mut end);
        let answer = answer.unwrap_or_else(|why| Answer::Failed { why: why.to_string() });
        say(&mut io::stdout().lock(), &answer).map_err(broken)?;
    }
    Ok(())
}

fn answer(ask: &Ask, open: &mut Option<End>) -> Result<Answer, Error> {
    if let Ask::Open { place, mtu, path } = ask {
        let end = open.insert(End::open(place, *mtu, *path, None)?);
        return Ok(Answer::Opened {
            pid: process::id(),
            endpoint: end.qp.endpoint().to_string(),
            addr: end.mr.addr(),
            rkey: end.mr.rkey().value(),
        });
    }
    let Some(end) = open else {
        return Err(Error::new("nothing is open", "open first"));
    };
    match ask {
        Ask::Open { .. } => {}
        Ask::Connect { endpoint } => end.connect(&endpoint.parse::<Endpoint>()?)?,
        Ask::Prepare(step) => prepare(end, *step)?,
        Ask::Verify(step) => return Ok(Answer::Verified { wrong: verify(end, *step)? }),
        Ask::PrepareMistake => mistake::prepare(end)?,
        Ask::Aftermath => return Ok(Answer::Aftermath(mistake::aftermath(end)?)),
    }
    Ok(Answer::Ready)
}

fn prepare(end: &End, step: Step) -> Result<(), Error> {
    end.set(&match step.op {
        Op::Read => step.filled(),
        op if op.is_atomic() => Step::with_word(op.word().before),
        _ => background(),
    })?;
    if step.op.takes_receive() {
        // The data of a WRITE goes to the address in its RETH, and immediate data needs no memory.
        let takes_data = step.op != Op::WriteImm && step.size > 0;
        let into = [end.mr.slice(START..START + step.size)];
        end.qp.recv(u64::from(step.seed), if takes_data { &into } else { &[] })?;
    }
    Ok(())
}

/// Returns the error in the result of a step, if any.
fn verify(end: &End, step: Step) -> Result<Option<String>, Error> {
    if step.op.takes_receive() {
        let done = end.cq.wait_one(TIMEOUT)?;
        if done.status != Status::Success {
            return Ok(Some(format!("the receive ended with {}", done.status)));
        }
        let op = match step.op {
            Op::WriteImm => CompletionOp::RecvRdmaWithImm,
            _ => CompletionOp::Recv,
        };
        let imm = done.imm.map(|imm| match imm {
            Immediate::Data(n) => n,
            Immediate::Invalidated(key) => key.value(),
        });
        let have = (done.id, done.op, done.byte_len as usize, imm);
        let want = (u64::from(step.seed), op, step.size, step.imm());
        if have != want {
            return Ok(Some(format!("the receive's completion says {have:?}, not {want:?}")));
        }
    }
    end.difference(&match step.op {
        op if op.is_atomic() => Step::with_word(op.word().after),
        _ => step.filled(),
    })
}
