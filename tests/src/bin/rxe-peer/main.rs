//! A verbs endpoint on rxe-verbs that a test controls by JSON commands.
//! It speaks the protocol of `tests/peer/peer.py` (`tests/peer/protocol.md`), so a test can put
//! either of the two at either end.
//!
//! Settings that are not part of the protocol (backend, address, faults, capture) are on the
//! command line.

mod answers;
mod endpoint;
mod fields;
mod pattern;
mod requests;

use std::io::{self, BufRead, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rxe_verbs::{BackendKind, FaultPlan};
use serde_json::{Map, Value, json};

use endpoint::Endpoint;

/// A scriptable verbs endpoint: reads and writes one JSON object in each line.
#[derive(Debug, Parser)]
#[command(name = "rxe-peer")]
pub(crate) struct Args {
    /// The device or interface that "open" opens when it names none
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// udp, packet, xdp or another name of a backend
    #[arg(long, default_value = "udp")]
    pub(crate) backend: BackendKind,
    /// Use only this address of the device; may be given several times
    #[arg(long)]
    pub(crate) address: Vec<IpAddr>,
    /// Write everything sent and received to a pcapng file
    #[arg(long)]
    pub(crate) pcap: Option<PathBuf>,
    /// Faults, as `rxe run --fault` describes them
    #[arg(long)]
    pub(crate) fault: Option<FaultPlan>,
    /// The seed of the faults
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

fn main() -> ExitCode {
    let mut endpoint = Endpoint::new(Args::parse());
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if line.trim().is_empty() {
            continue;
        }
        let (answer, more) = answer(&mut endpoint, &line);
        let mut out = io::stdout().lock();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() || !more {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Answers one line. Returns the answer, and whether to continue.
fn answer(endpoint: &mut Endpoint, line: &str) -> (Value, bool) {
    let mut request: Map<String, Value> = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(e) => return (problem(Value::Null, &Problem::Wrong(e.to_string())), true),
    };
    let id = request.remove("id").unwrap_or(Value::Null);
    let cmd = request.remove("cmd").unwrap_or(Value::Null);
    match endpoint.run(cmd.as_str().unwrap_or(""), request) {
        Ok(mut answer) => {
            answer.insert("ok".into(), true.into());
            if !id.is_null() {
                answer.insert("id".into(), id);
            }
            (Value::Object(answer), cmd != "exit")
        }
        Err(why) => (problem(id, &why), true),
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The request is malformed.
    Wrong(String),
    /// A verb failed.
    Verb(rxe_verbs::Error),
    /// A request of a list failed: its index, and the reason.
    InList(usize, Box<Problem>),
}

impl From<rxe_verbs::Error> for Problem {
    fn from(e: rxe_verbs::Error) -> Self {
        Self::Verb(e)
    }
}

fn problem(id: Value, why: &Problem) -> Value {
    let mut out = match why {
        Problem::Wrong(why) => json!({"ok": false, "error": "PROTOCOL", "message": why}),
        Problem::Verb(e) => {
            json!({"ok": false, "error": errno_name(e.errno()), "message": e.to_string()})
        }
        Problem::InList(index, why) => {
            let mut out = problem(Value::Null, why);
            out["index"] = (*index).into();
            out
        }
    };
    if !id.is_null() {
        out["id"] = id;
    }
    out
}

/// Returns the name of a number that `rxe_verbs::Error::errno` returns.
fn errno_name(errno: i32) -> &'static str {
    const NAMES: &[(i32, &str)] = &[
        (1, "EPERM"),
        (2, "ENOENT"),
        (5, "EIO"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (16, "EBUSY"),
        (19, "ENODEV"),
        (22, "EINVAL"),
        (75, "EOVERFLOW"),
        (95, "EOPNOTSUPP"),
        (98, "EADDRINUSE"),
        (99, "EADDRNOTAVAIL"),
        (110, "ETIMEDOUT"),
    ];
    NAMES.iter().find(|(n, _)| *n == errno).map_or("EIO", |(_, name)| name)
}
