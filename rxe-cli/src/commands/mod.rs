//! The subcommands, one file each. Such a file has a `struct Args`, whose doc comment is the
//! command's help, with `fn run(self) -> Result<(), Error>`.

mod completions;
mod demo;
mod devices;
mod devinfo;
mod gids;
mod perf;
mod pingpong;

use clap::{Parser, Subcommand};

use crate::common::Error;

/// Defines [`Command`] and what runs it. To add one: a line here, and its `mod` above.
macro_rules! commands {
    ($($name:ident($module:ident),)*) => {
        #[derive(Subcommand)]
        enum Command {
            $($name($module::Args),)*
        }

        impl Command {
            fn run(self) -> Result<(), Error> {
                match self {
                    $(Self::$name(args) => args.run(),)*
                }
            }
        }
    };
}

commands! {
    Demo(demo),
    Devices(devices),
    Devinfo(devinfo),
    Gids(gids),
    Pingpong(pingpong),
    Perf(perf),
    Completions(completions),
}

/// RDMA over Converged Ethernet (RoCEv2) from an ordinary process.
#[derive(Parser)]
#[command(name = "rxe", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Does what the command line says. On a wrong command line, or for help, the process ends here.
pub(crate) fn run() -> Result<(), Error> {
    Cli::parse().command.run()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
