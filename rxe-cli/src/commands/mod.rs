//! The subcommands. The module of a command has a `struct Args`, whose doc comment is the command's
//! help, with a method `fn run(self) -> Result<(), Error>`.
//!
//! Commands that need a device are for Linux. Those that read and make captures are for all systems.

#[cfg(any(target_os = "linux", all(unix, feature = "pnet"), all(windows, feature = "npcap")))]
mod capture;
mod check;
mod completions;
#[cfg(target_os = "linux")]
mod conform;
#[cfg(target_os = "linux")]
mod copy;
mod decode;
#[cfg(target_os = "linux")]
mod demo;
#[cfg(target_os = "linux")]
mod devices;
#[cfg(target_os = "linux")]
mod devinfo;
#[cfg(target_os = "linux")]
mod doctor;
mod explain;
mod generate;
#[cfg(target_os = "linux")]
mod gids;
mod ladder;
#[cfg(target_os = "linux")]
mod link;
mod man;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod pingpong;
#[cfg(target_os = "linux")]
mod replay;
#[cfg(target_os = "linux")]
mod resource;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod stat;

use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::{env, process};

use clap::{Parser, Subcommand, ValueEnum};

#[cfg(target_os = "linux")]
use self::capture::extcap;
#[cfg(target_os = "linux")]
pub(crate) use self::run::LIBRARY_NAME;
use crate::common::{Error, WRONG_USAGE, color, print_error};

/// Defines [`Command`] and the code that runs it. To add a command, add a line here and its `mod` above.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident($module:ident::$args:ident),)*) => {
        #[derive(Subcommand)]
        enum Command {
            $($(#[$attribute])* $name($module::$args),)*
        }

        impl Command {
            fn run(self) -> Result<(), Error> {
                match self {
                    $($(#[$attribute])* Self::$name(args) => args.run(),)*
                }
            }
        }
    };
}

commands! {
    #[cfg(target_os = "linux")]
    Demo(demo::Args),
    #[cfg(target_os = "linux")]
    Doctor(doctor::Args),
    #[cfg(target_os = "linux")]
    Devices(devices::Args),
    #[cfg(target_os = "linux")]
    Devinfo(devinfo::Args),
    #[cfg(target_os = "linux")]
    Gids(gids::Args),
    #[cfg(target_os = "linux")]
    Link(link::Args),
    #[cfg(target_os = "linux")]
    Pingpong(pingpong::Args),
    #[cfg(target_os = "linux")]
    Perf(perf::Args),
    #[cfg(target_os = "linux")]
    Run(run::Args),
    #[cfg(target_os = "linux")]
    Env(run::EnvArgs),
    #[cfg(target_os = "linux")]
    Copy(copy::Args),
    #[cfg(target_os = "linux")]
    Stat(stat::Args),
    #[cfg(target_os = "linux")]
    Resource(resource::Args),
    #[cfg(any(
        target_os = "linux",
        all(unix, feature = "pnet"),
        all(windows, feature = "npcap")
    ))]
    Capture(capture::Args),
    Decode(decode::Args),
    Ladder(ladder::Args),
    Explain(explain::Args),
    Check(check::Args),
    #[cfg(target_os = "linux")]
    Conform(conform::Args),
    Gen(generate::Args),
    #[cfg(target_os = "linux")]
    Send(replay::SendArgs),
    #[cfg(target_os = "linux")]
    Replay(replay::ReplayArgs),
    Completions(completions::Args),
    Man(man::Args),
}

/// RDMA over Converged Ethernet (RoCEv2) from an ordinary process.
#[derive(Parser)]
#[command(name = "rxe", version = env!("RXE_VERSION"), arg_required_else_help = true)]
struct Cli {
    /// Color what is printed for people: auto (in a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        display_order = 1000,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    color: color::When,
    #[command(subcommand)]
    command: Command,
}

/// Runs the command line. The process ends here if the command line is wrong or asks for help.
pub(crate) fn run() -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    let name = env::args_os().next().unwrap_or_default();
    #[cfg(target_os = "linux")]
    if Path::new(&name).file_name().is_some_and(|name| name == extcap::NAME) {
        return parsed::<extcap::Args>().run();
    }
    let Cli { color, command } = parsed();
    color::choose(color);
    command.run()
}

/// Returns the parsed command line. Ends the process if it is wrong or asks for help.
fn parsed<P: Parser>() -> P {
    parse(env::args_os()).unwrap_or_else(|e| {
        color::choose(color_named(env::args_os()).unwrap_or_default());
        if wants_help(&e) {
            e.exit()
        }
        let args = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
        print_error(&one_line(&e, &asked_for(&P::command(), args)));
        process::exit(WRONG_USAGE.into())
    })
}

/// Returns the value of `--color` in a command line that is wrong or asks for help.
fn color_named(args: impl Iterator<Item = OsString>) -> Option<color::When> {
    let mut args = args.take_while(|arg| arg != "--").map(|arg| arg.to_string_lossy().into_owned());
    let value = args.find_map(|arg| match arg.strip_prefix("--color")? {
        "" => Some(None),
        rest => rest.strip_prefix('=').map(|value| Some(value.to_owned())),
    })?;
    color::When::from_str(&value.or_else(|| args.next())?, false).ok()
}

fn parse<P: Parser>(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<P> {
    let mut matches = with_negatives(P::command()).try_get_matches_from(args)?;
    P::from_arg_matches_mut(&mut matches)
}

/// Accepts `-1` as a value. An error is then about the value, not about an option `-1`.
fn with_negatives(command: clap::Command) -> clap::Command {
    let values = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    };
    command.mut_args(values).mut_subcommands(with_negatives)
}

fn wants_help(e: &clap::Error) -> bool {
    let nothing = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    !e.use_stderr() || e.kind() == nothing
}

/// Returns the names of the command and subcommands that the arguments name.
fn asked_for(top: &clap::Command, mut args: impl Iterator<Item = String>) -> String {
    let (mut command, mut name) = (top, top.get_name().to_owned());
    while let Some(below) = args.next().and_then(|arg| command.find_subcommand(arg)) {
        name += &format!(" {}", below.get_name());
        command = below;
    }
    name
}

/// Formats clap's message as one line without the usage. `command` is the one whose help is named.
fn one_line(e: &clap::Error, command: &str) -> String {
    let text = e.render().to_string();
    let what = text.split("\nUsage:").next().unwrap_or_default();
    let what = what.split("\nFor more information").next().unwrap_or_default();
    let words: Vec<_> = what.split_whitespace().collect();
    let mut line = words.join(" ").replace(" tip: ", "; ");
    // Replaces messages of Rust and clap by plainer words.
    for (rust, plain) in [
        ("invalid digit found in string", "a whole number is expected"),
        ("cannot parse integer from empty string", "a whole number is expected"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid IP address syntax", "an IP address is expected, as in 10.0.0.1 or fd00::1"),
        (
            "invalid socket address syntax",
            "an IP address with a port is expected, as in 127.0.0.1:9470 or [::1]:9470",
        ),
    ] {
        line = line.replace(rust, plain);
    }
    format!("{}: see `{command} --help`", line.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_wrong_command_line_is_one_line() {
        let said = |line: &str| {
            let wrong = super::parse::<super::Cli>(line.split(' ')).err().unwrap();
            let args = line.split(' ').skip(1).map(str::to_owned);
            super::one_line(&wrong, &super::asked_for(&super::Cli::command(), args))
        };
        assert_eq!(
            said("rxe pingpong -s 0"),
            "invalid value '0' for '--size <SIZE>': 0 is not in 1..=1073741824: see `rxe pingpong --help`"
        );
        assert_eq!(
            said("rxe pingpong -g 1x"),
            "invalid value '1x' for '--gid-idx <INDEX>': a whole number is expected: see `rxe pingpong --help`"
        );
        assert_eq!(
            said("rxe perf write sideways"),
            "invalid value 'sideways' for '<TEST>' [possible values: bw, lat]: see `rxe perf --help`"
        );
        assert_eq!(
            said("rxe pingpong --sise 5"),
            "unexpected argument '--sise' found; a similar argument exists: '--size': see `rxe pingpong --help`"
        );
        assert_eq!(
            said("rxe check"),
            "the following required arguments were not provided: <FILE>...: see `rxe check --help`"
        );
        assert_eq!(
            said("rxe capture --of all -c -1"),
            "invalid value '-1' for '--count <N>': a whole number is expected: see `rxe capture --help`"
        );
        for (line, plain) in [
            ("rxe decode f --addr 10.0.0.0/8", ": an IP address is expected, as in 10.0.0.1 or "),
            ("rxe stat --prometheus :9470", ": an IP address with a port is expected, as in 127."),
        ] {
            assert!(said(line).contains(plain), "{}", said(line));
        }
        assert!(said("rxe link add").ends_with(": see `rxe link add --help`"));
        assert!(said("rxe nonsense").ends_with(": see `rxe --help`"));
    }

    #[test]
    fn options_do_not_contradict_each_other() {
        super::with_negatives(super::Cli::command()).debug_assert();
    }
}
