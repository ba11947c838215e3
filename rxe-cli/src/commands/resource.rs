//! `rxe resource`: `rdma resource` for the devices of the running processes.

use clap::{Subcommand, ValueEnum};
use rxe_verbs::observe::Subject;

use crate::common::running::{Column, Running, Which, table};
use crate::common::{Align, Error, WIDTH, print, print_error, print_json};

/// Show the verbs objects of running programs, as rdma resource does
///
/// Of each device that a running process of this user has open (root: of any user). Keys of memory
/// regions are not shown.
///
/// Example: rxe resource show qp
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Show objects of a kind, or how many there are of each
    Show(Show),
}

#[derive(clap::Args, Default)]
struct Show {
    /// The kind of objects; without, how many there are of each
    #[arg(value_enum)]
    kind: Option<Kind>,
    #[command(flatten)]
    which: Option<Which>,
    /// Show all that is known of each object
    #[arg(long)]
    details: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// Queue pairs
    Qp,
    /// Completion queues
    Cq,
    /// Memory regions
    Mr,
    /// Shared receive queues
    Srq,
    /// Connections by address and port, and listeners
    CmId,
    /// Open devices
    Ctx,
    /// Protection domains
    Pd,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let Action::Show(show) = self.action.unwrap_or(Action::Show(Show::default()));
        show.run()
    }
}

impl Show {
    fn run(self) -> Result<(), Error> {
        let subject = match self.kind {
            None | Some(Kind::Ctx) => Subject::Summary,
            Some(Kind::Qp) => Subject::Qp,
            Some(Kind::Cq) => Subject::Cq,
            Some(Kind::Mr) => Subject::Mr,
            Some(Kind::Srq) => Subject::Srq,
            Some(Kind::CmId) => Subject::CmId,
            Some(Kind::Pd) => Subject::Pd,
        };
        let running = self.which.unwrap_or_default().ask(subject)?;
        if self.json {
            if self.kind == Some(Kind::Ctx) {
                return print_json(&running.iter().map(Running::json).collect::<Vec<_>>());
            }
            return print_json(&running.iter().flat_map(Running::objects_json).collect::<Vec<_>>());
        }
        if running.is_empty() {
            return Ok(());
        }
        for device in &running {
            let shown = device.records().len() as u64;
            if subject != Subject::Summary && shown < device.total() {
                let what = format!("{shown} of {} objects are shown", device.total());
                print_error(&format!(
                    "{} of process {}: {what}",
                    device.device(),
                    device.pid_text()
                ));
            }
        }
        print(&match self.kind {
            Some(_) if self.details => details(&running),
            kind => table(&running, columns(kind)),
        })
    }
}

/// Returns the columns that fit into 80, next to the device, the process and its program.
fn columns(kind: Option<Kind>) -> &'static [Column] {
    use Align::{Left, Right};
    match kind {
        None => &[
            ("pd", Right),
            ("cq", Right),
            ("qp", Right),
            ("cm_id", Right),
            ("mr", Right),
            ("ctx", Right),
            ("srq", Right),
        ],
        Some(Kind::Ctx) => &[],
        Some(Kind::Qp) => {
            &[("lqpn", Left), ("rqpn", Left), ("type", Left), ("state", Left), ("sq-psn", Left)]
        }
        Some(Kind::Cq) => {
            &[("cqn", Right), ("cqe", Right), ("completions", Right), ("overflow", Right)]
        }
        Some(Kind::Mr) => &[("mrlen", Right), ("pdn", Right), ("access", Left), ("windows", Right)],
        Some(Kind::Srq) => &[
            ("srqn", Right),
            ("type", Left),
            ("pdn", Right),
            ("depth", Right),
            ("receives", Right),
            ("limit", Right),
        ],
        Some(Kind::CmId) => {
            &[("state", Left), ("lqpn", Left), ("src", Left), ("dst", Left), ("port", Right)]
        }
        Some(Kind::Pd) => &[("pdn", Right)],
    }
}

/// Formats all fields of each object like `rdma -d`, in lines of at most [`WIDTH`] bytes.
fn details(running: &[Running]) -> String {
    let mut out = String::new();
    for device in running {
        for record in device.records() {
            let mut line = format!("dev {}", device.device());
            let (pid, comm) = (device.pid_text(), device.comm.as_str());
            let network = device.other_network().map(|netns| netns.to_string());
            let network = network.as_deref().map(|netns| ("netns", netns));
            let process = network.into_iter().chain([("pid", pid.as_str()), ("comm", comm)]);
            let all = record.fields().chain(process);
            for (name, value) in all {
                let field = format!(" {name} {value}");
                if line.len() + field.len() > WIDTH {
                    out += &line;
                    out += "\n";
                    line = "   ".into();
                }
                line += &field;
            }
            out += &line;
            out += "\n";
        }
    }
    out
}
