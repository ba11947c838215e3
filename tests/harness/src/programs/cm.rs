//! Programs of librdmacm in the table of [`programs`](crate::programs): their servers and clients
//! have different options, or different names, and find each other by address and port.

use super::world::{Row, Running, Sides, TIMEOUT, World, failed, installed};
use crate::c::TUTORIALS;
use crate::skipped;
use crate::vm::{HOST_V6, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A server and its client. In their options `ADDRESS` stands for the server's address, `OWN` for
/// the address of the program's own side, and `FILE` for a file that both sides have.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) options: &'static str,
    server: (&'static str, &'static str),
    client: (&'static str, &'static str),
    v6: bool,
    kind: Kind,
    /// The number of addresses and ports that the server listens on.
    listeners: usize,
    /// Whether both sides must be ours, because kernel `rdma_rxe` does not support the operation.
    ours_only: bool,
    /// The output of a successful client; some clients exit with 0 even if they fail.
    says: &'static str,
}

/// The behaviour of a server, which decides when its client may start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The server listens, and ends with its client.
    OneClient,
    /// Like `OneClient`, but client and server connect a second time. The server does not report
    /// when it listens again. A client that is faster is refused, and then uses an identifier that
    /// it has destroyed. In that case both are started again.
    Reconnects,
    /// The server listens until it is killed.
    Persistent,
    /// The server receives from a multicast group and ends when it has received enough. A sender
    /// does not know the receivers, so senders are started one after the other until the receiver
    /// ends.
    MulticastReceiver,
}

const fn with(name: &'static str, server: &'static str, client: &'static str) -> Program {
    pair((name, server), (name, client))
}

const fn pair(
    server: (&'static str, &'static str),
    client: (&'static str, &'static str),
) -> Program {
    Program {
        name: client.0,
        options: client.1,
        server,
        client,
        v6: false,
        kind: Kind::OneClient,
        listeners: 1,
        ours_only: false,
        says: "",
    }
}

/// Returns the program with IPv6 addresses, under other options in the table.
const fn v6(options: &'static str, program: Program) -> Program {
    Program { v6: true, options, ..program }
}

const fn of(kind: Kind, program: Program) -> Program {
    Program { kind, ..program }
}

/// A perftest program over rdma_cm: the server has the client's options, without an address.
macro_rules! perftest {
    ($name:literal, $options:literal) => {
        Program {
            options: concat!("-R ", $options),
            kind: Kind::Reconnects,
            ..with($name, concat!("-F -R ", $options), concat!("-F -R ", $options, " ADDRESS"))
        }
    };
}

const FIO: &str = "fio";

/// fio over rdma_cm. The receiver waits. It has receives for all messages, because fio does not
/// retry after an RNR NAK. Neither side leaves a file with its verification state. Each job has a
/// port of its own.
macro_rules! fio {
    ($more:literal) => {
        fio!($more, "", 1, " --name=rdma --port=4711")
    };
    ($more:literal, $shown:literal, $jobs:literal, $names:literal) => {
        Program {
            listeners: $jobs,
            options: concat!(
                "--ioengine=rdma --rw=write --verb=",
                $more,
                " --bs=64k --size=4m",
                $shown
            ),
            ..with(
                FIO,
                concat!(
                    "--thread --ioengine=rdma --rw=read --verb=recv --bs=64k --size=4m --iodepth=64 ",
                    "--verify=crc32c --verify_state_save=0",
                    $names
                ),
                concat!(
                    "--thread --ioengine=rdma --rw=write --verb=",
                    $more,
                    " --bs=64k --size=4m --iodepth=4 --hostname=ADDRESS --do_verify=0 ",
                    "--verify_state_save=0",
                    $names
                ),
            )
        }
    };
}

/// The name in scripts that starts a TCP program whose sockets are rsockets.
const RSOCKETS: &str = "over_rsockets";

const IPERF: &str = "iperf";
const NETCAT: &str = "nc.traditional";

/// A TCP program whose sockets are rsockets. Both sides are scripts, in which [`RSOCKETS`] starts a
/// program.
const fn tcp(
    name: &'static str,
    options: &'static str,
    server: &'static str,
    client: &'static str,
) -> Program {
    Program { name, options, ..pair((RSOCKETS, server), (RSOCKETS, client)) }
}

pub(super) const ALL: &[Program] = &[
    perftest!("ib_send_bw", "-n 100"),
    perftest!("ib_send_bw", "-n 100 -b -e"),
    perftest!("ib_send_bw", "-n 100 -q 8"),
    perftest!("ib_send_bw", "-n 100 --use-srq"),
    perftest!("ib_send_bw", "-n 100 -c UD -r 200"),
    perftest!("ib_send_lat", "-n 100"),
    perftest!("ib_send_lat", "-n 100 -c UD"),
    perftest!("ib_write_bw", "-n 100"),
    perftest!("ib_write_lat", "-n 100"),
    // The run is long enough for two keepalive probes of our side.
    perftest!("ib_write_lat", "-D 5"),
    perftest!("ib_read_bw", "-n 100"),
    perftest!("ib_read_lat", "-n 100"),
    perftest!("ib_atomic_bw", "-n 100"),
    perftest!("ib_atomic_lat", "-n 100"),
    with("rping", "-s -a ADDRESS -C 10 -V", "-c -a ADDRESS -C 10 -V"),
    v6(
        "-c -a IPV6 -C 3 -V -S 20000",
        with("rping", "-s -a ADDRESS -C 3 -V -S 20000", "-c -a ADDRESS -C 3 -V -S 20000"),
    ),
    with("ucmatose", "-b ADDRESS -c 5 -C 5", "-s ADDRESS -c 5 -C 5"),
    with("ucmatose", "-b ADDRESS -c 2 -m", "-s ADDRESS -c 2 -m"),
    v6("-s IPV6 -c 2 -C 5", with("ucmatose", "-b ADDRESS -c 2 -C 5", "-s ADDRESS -c 2 -C 5")),
    with("udaddy", "-b ADDRESS -c 3 -C 5", "-s ADDRESS -c 3 -C 5"),
    v6("-s IPV6 -c 2 -C 5", with("udaddy", "-b ADDRESS -c 2 -C 5", "-s ADDRESS -c 2 -C 5")),
    of(
        Kind::MulticastReceiver,
        with("mckey", "-m 239.47.91.1 -b OWN -C 5", "-m 239.47.91.1 -b OWN -s -C 5"),
    ),
    // Kernels do not join IPv6 groups for RoCEv2 (ENOTSUPP).
    Program {
        ours_only: true,
        ..of(
            Kind::MulticastReceiver,
            v6(
                "-m ff0e::47:91 -b IPV6 -s -C 5",
                with("mckey", "-m ff0e::47:91 -b OWN -C 5", "-m ff0e::47:91 -b OWN -s -C 5"),
            ),
        )
    },
    pair(("rdma_server", ""), ("rdma_client", "-s ADDRESS")),
    v6("-s IPV6", pair(("rdma_server", "-s ADDRESS"), ("rdma_client", "-s ADDRESS"))),
    pair(("rdma_xserver", "-c r"), ("rdma_xclient", "-c r -s ADDRESS")),
    with("riostream", "-b ADDRESS -S 1000 -I 3", "-s ADDRESS -S 1000 -I 3"),
    v6(
        "-s IPV6 -S 1000 -I 3",
        with("riostream", "-b ADDRESS -S 1000 -I 3", "-s ADDRESS -S 1000 -I 3"),
    ),
    of(Kind::Persistent, with("cmtime", "-b ADDRESS", "-s ADDRESS -c 10")),
    of(Kind::Persistent, v6("-s IPV6 -c 10", with("cmtime", "-b ADDRESS", "-s ADDRESS -c 10"))),
    fio!("send --verify=crc32c"),
    fio!(
        "send --verify=crc32c",
        " --name=a --port=4711 --name=b --port=4712",
        2,
        " --name=a --port=4711 --name=b --port=4712"
    ),
    fio!("write"),
    fio!("read"),
    Program {
        says: "4.00 MBytes",
        ..tcp(
            IPERF,
            "LD_PRELOAD=librspreload.so -c ADDRESS -n 4M",
            "over_rsockets iperf -s -B ADDRESS -P 1",
            "over_rsockets iperf -c ADDRESS -n 4M",
        )
    },
    tcp(
        NETCAT,
        "LD_PRELOAD=librspreload.so ADDRESS 5002 | cmp - FILE",
        "over_rsockets nc.traditional -l -s ADDRESS -p 5002 -q 1 < FILE",
        "over_rsockets nc.traditional ADDRESS 5002 < /dev/null | cmp - FILE",
    ),
    with(TUTORIALS[1], "ADDRESS", "-c ADDRESS"),
    with(TUTORIALS[2], "ADDRESS", "-c ADDRESS"),
];

/// The output of a client that started before its server listened.
const REFUSED: [&str; 2] = ["RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_UNREACHABLE"];

/// The maximum number of attempts, and the time limit of one.
const ATTEMPTS: u32 = 20;
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a server may still print after its client has ended.
const GRACE: Duration = Duration::from_millis(300);

/// The outcome of one attempt.
struct Attempt {
    good: bool,
    server: String,
    client: String,
}

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) {
    for program in ALL {
        if let Some(why) = program.missing() {
            skipped(program.name, &why);
            continue;
        }
        for sides in Sides::ALL {
            if program.ours_only && sides != Sides::OursOurs {
                continue;
            }
            let what = format!("{} {}", program.name, program.options);
            world.row(what, sides, || program.play(world, sides), rows);
        }
    }
}

impl Program {
    /// Returns what this machine lacks for the program, if anything.
    fn missing(&self) -> Option<String> {
        if [FIO, IPERF, NETCAT].contains(&self.name) && !installed(self.name) {
            return Some(format!("{} is not installed", self.name));
        }
        (self.client.0 == RSOCKETS && rsockets().is_none())
            .then(|| "librspreload.so is not installed".to_owned())
    }

    fn play(&self, world: &World<'_>, sides: Sides) -> Result<()> {
        let mut tries = 1;
        let end = Instant::now() + TIMEOUT;
        loop {
            let Attempt { good, server, client } = self.try_once(world, sides)?;
            if good {
                return Ok(());
            }
            let refused = REFUSED.iter().any(|word| client.contains(word));
            // A server on a kernel refuses requests while it changes listeners.
            let reconnects = self.kind == Kind::Reconnects && sides == Sides::KernelOurs;
            if !reconnects || !refused || tries == ATTEMPTS || Instant::now() > end {
                let both = format!("try {tries}: server: {server}; client: {client}");
                return Err(failed(both.replace('\n', " | ")));
            }
            tries += 1;
        }
    }

    fn try_once(&self, world: &World<'_>, sides: Sides) -> Result<Attempt> {
        let server_is_ours = sides != Sides::KernelOurs;
        let client_is_ours = sides != Sides::OursKernel;
        let address = self.address(world, server_is_ours);
        let start = |(program, options): (&str, &str), ours: bool| {
            let own = self.address(world, ours);
            let put = |word: &str| {
                let word = word.replace("ADDRESS", &address).replace("OWN", &own);
                word.replace("FILE", &world.file.path().to_string_lossy())
            };
            if program == RSOCKETS {
                return world.spawn("sh", &over_rsockets(&put(options)), ours);
            }
            let args: Vec<_> = options.split_whitespace().map(put).collect();
            world.spawn(program, &args, ours)
        };
        let mut server = start(self.server, server_is_ours)?;
        if self.kind != Kind::MulticastReceiver {
            listening(world, &address, self.listeners, &mut server)?;
        }
        let end = Instant::now() + TIMEOUT;
        let (client_good, client) = loop {
            let client = start(self.client, client_is_ours)?;
            let (good, said) = client.end_with(&mut server, self.timeout())?;
            // A sender succeeds even if no process received its datagrams.
            if self.kind != Kind::MulticastReceiver
                || !good
                || server.has_ended()?
                || Instant::now() > end
            {
                break (good, said);
            }
        };
        // If the client failed, the server may wait forever.
        let persistent = !client_good || self.kind == Kind::Persistent;
        let (server_good, server) = server.end(if persistent { GRACE } else { TIMEOUT })?;
        let good = match self.kind {
            // The clients of these servers always exit with 0 and print errors.
            Kind::Persistent => client_good && !client.contains("error"),
            _ => client_good && server_good,
        };
        let good = good && client.contains(self.says);
        Ok(Attempt { good, server, client })
    }

    fn timeout(&self) -> Duration {
        if self.kind == Kind::Reconnects { ATTEMPT_TIMEOUT } else { TIMEOUT }
    }

    fn address(&self, world: &World<'_>, ours: bool) -> String {
        match (ours, self.v6) {
            (_, false) => world.address(ours).to_string(),
            (true, true) => HOST_V6.to_string(),
            (false, true) => world.vm.v6().to_string(),
        }
    }
}

/// Returns the library that turns sockets of TCP programs into rsockets, if it is installed.
pub fn rsockets() -> Option<PathBuf> {
    let found = ["/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let mut found = found.iter().map(|dir| Path::new(dir).join("rsocket/librspreload.so"));
    found.find(|path| path.exists())
}

/// Returns the arguments of a shell that runs a script with TCP programs.
fn over_rsockets(script: &str) -> [String; 2] {
    let library = rsockets().unwrap_or_default();
    let start = format!("LD_PRELOAD={}:$LD_PRELOAD exec \"$@\"", library.display());
    ["-c".to_owned(), format!("{RSOCKETS}() {{ {start}; }}\n{script}")]
}

/// Waits until a server listens with `count` listeners, or has ended. A client must not start
/// earlier: perftest's client would use an identifier that it has destroyed.
fn listening(world: &World<'_>, address: &str, count: usize, server: &mut Running) -> Result<()> {
    let look = match server {
        // Our listener claims the service by a file that it has locked, when it takes requests. A
        // server in another network namespace may have the same address, so the lock must belong to
        // this server.
        Running::Ours(child) => format!(
            "n=0; for claim in /dev/shm/rxe-*/*/{address}/service-*; do \
             inode=$(stat -c %i $claim 2>&1) && grep -q \"FLOCK .*WRITE {} [^ ]*:$inode \" /proc/locks && \
             n=$((n + 1)); done; [ $n -ge {count} ]",
            child.id()
        ),
        Running::Theirs(_) => {
            format!("[ $(rdma resource show cm_id | grep -c 'state LISTEN') -ge {count} ]")
        }
    };
    world.until(&look, server, "the server does not listen")
}
