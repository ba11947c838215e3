//! `rxe stat`: `rdma statistic` for the devices of the running processes.

mod prometheus;
mod text;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rxe_verbs::observe::Subject;
use serde_json::{Map, Value};

use crate::common::running::{Column, Running, Which, fields_json, table};
use crate::common::{Align, Error, is_unread, print, print_error, print_json};

/// Show what running programs have sent, received, lost and repeated, as rdma statistic does
///
/// Shows each device that a running process of this user has open (root: of any user). Counters that
/// kernel devices have too come first, under the same names; others follow if they are not 0.
///
/// Example: rxe run -- ib_write_bw -d rxe_lo & rxe stat --watch
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Show it again each second, with rates, until interrupted
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    watch: bool,
    /// Show each queue pair instead: what it has on the way, and what has happened on it
    #[arg(long, conflicts_with_all = ["watch", "prometheus"])]
    qp: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print it in the text format of Prometheus; with an address, answer HTTP requests there with it
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1)]
    prometheus: Option<Option<SocketAddr>>,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.prometheus {
            Some(Some(address)) => return prometheus::serve(address, &self.which),
            Some(None) => return print(&prometheus::text(&self.ask()?)),
            None => {}
        }
        if self.watch {
            return self.watch();
        }
        let subject = if self.qp { Subject::Qp } else { Subject::Counters };
        let running = self.which.ask(subject)?;
        if self.json && self.qp {
            return print_json(&running.iter().flat_map(Running::objects_json).collect::<Vec<_>>());
        }
        if self.json {
            return print_json(&running.iter().map(json).collect::<Vec<_>>());
        }
        if running.is_empty() {
            return Ok(());
        }
        print(&if self.qp { table(&running, QP_COLUMNS) } else { text::all(&running) })
    }

    fn ask(&self) -> Result<Vec<Running>, Error> {
        self.which.ask(Subject::Counters)
    }

    fn watch(&self) -> Result<(), Error> {
        let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
        let (mut before, mut said): (Vec<Running>, Vec<String>) = Default::default();
        let mut asked = Instant::now();
        loop {
            let now = Instant::now();
            let (running, notices) = self.which.look(Subject::Counters)?;
            let time = now.duration_since(asked);
            print(&format!("{clear}{}", text::rates(&running, &before, time)))?;
            // Notices follow the sequence that clears the screen. Without it, print them only when
            // they change.
            if notices != said || !clear.is_empty() {
                notices.iter().for_each(print_error);
            }
            if is_unread(io::stdout().as_fd()) {
                return Ok(());
            }
            (before, said, asked) = (running, notices, now);
            thread::sleep(INTERVAL.saturating_sub(now.elapsed()));
        }
    }
}

/// The fields that are shown of each queue pair. JSON has all.
const QP_COLUMNS: &[Column] = &[
    ("lqpn", Align::Left),
    ("unacked", Align::Right),
    ("window", Align::Right),
    ("retries", Align::Right),
    ("dropped", Align::Right),
];

const INTERVAL: Duration = Duration::from_secs(1);

fn json(running: &Running) -> Value {
    let mut map = running.json();
    for record in running.records() {
        map.insert(record.kind().into(), fields_json(record).into());
    }
    // A device without drops reports no such record.
    map.entry("dropped").or_insert_with(|| Map::new().into());
    map.into()
}
