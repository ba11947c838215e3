//! `cargo xtask bench --profile`: finds out where both ends spend their time, by sampling them with
//! `perf`.
//!
//! Each work runs once while `perf record` samples both CPUs. A sample belongs to the server or the
//! client by its CPU, and to a part of the work by its innermost functions. In a VM both ends use
//! both CPUs, and our engine is compared with the kernel's device.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::{Error, Result};

use super::contender::Contender;
use super::kernel::{self, Recording};
use super::link::Link;
use super::shared_cache::SharedCacheGate;
use super::tests::{Test, is_named};
use super::versions;

/// The sampling rate, in samples per second and CPU.
const FREQUENCY: &str = "2999";
/// The least share of samples, in percent, of a part or function that is listed.
const LEAST: f64 = 1.0;
/// The most functions that are listed.
const FUNCTIONS: usize = 8;

/// Returns the works, each with the name of the contender that does it.
/// They are those for which docs/en/project/performance.md has a goal.
fn works() -> Vec<(Test, &'static str)> {
    let write = Test::bandwidth("WRITE", 65536, 4096);
    vec![
        (Test::bandwidth("WRITE", 65536, 1024), "rxe udp"),
        (write, "rxe udp"),
        (write, "perftest on rxe"),
        (Test::bandwidth("SEND", 65536, 1024), "rxe udp"),
        (Test::bandwidth("SEND", 65536, 4096), "rxe udp"),
        (Test::latency("SEND", 8), "rxe udp"),
        (Test::latency("SEND", 8), "rxe packet"),
        (Test::latency("WRITE", 8), "perftest on rxe"),
        (Test::rate("WRITE"), "perftest on rxe"),
        (write.with_qps(64), "rxe udp"),
        (write.with_qps(64), "rxe packet"),
        (write.with_qps(64), "perftest on rxe"),
        (write.with_qps(64).with_usual_recv_buffer(), "rxe packet"),
        (write.on_one_host(), "rxe shm"),
        (write.on_one_host(), "perftest on rxe"),
        (Test::bandwidth("SEND", 65536, 4096).on_one_host(), "perftest on rxe"),
        (Test::bandwidth("READ", 65536, 4096).on_one_host(), "perftest on rxe"),
        (Test::latency("SEND", 8).on_one_host(), "rxe shm"),
        (Test::latency("WRITE", 8).on_one_host(), "perftest on rxe"),
        (Test::rate("SEND").on_one_host(), "rxe shm"),
        (Test::rate("WRITE").on_one_host(), "perftest on rxe"),
    ]
}

/// Profiles the works whose name contains `only`, and prints tables.
/// If there is a `kernel`, works are profiled in a VM too. If `write`, the tables are put into
/// docs/en/project/performance.md.
///
/// # Errors
/// [`Error::Missing`] without `perf`, without the right to sample all CPUs, or with one CPU only.
pub(super) fn run(
    only: Option<&str>,
    kernel: Option<&str>,
    write: bool,
    cache_gate: &SharedCacheGate,
) -> Result<()> {
    let file = checkout::root()?.join("target/perf.data");
    let rxe = versions::build_own()?;
    let contenders = Contender::all(&rxe);
    let mut page = String::new();
    for (test, name) in works().into_iter().filter(|(test, _)| is_named(test, only)) {
        let Some(contender) = contenders.iter().find(|c| c.name() == name) else { continue };
        if !contender.is_there() {
            eprintln!("xtask: {test}, {name} is left out: {}", contender.missing_package());
            continue;
        }
        let profile = cache_gate.run(|| sampled(&file, contender, test))?;
        put(&mut page, &profile.markdown(&format!("{test}: {name}"), ["client", "server"]));
    }
    fs::remove_file(&file).ok();
    // The page has all results, so it needs those with the kernel.
    if let Some(kernel) = kernel.or(write.then_some(kernel::DEFAULT)) {
        for (test, recordings) in kernel::recordings(&rxe, kernel, only)? {
            let mut ends = [End::default(), End::default()];
            for (end, recording) in ends.iter_mut().zip(&recordings) {
                let script = script(&recording.samples, Some(recording))?;
                samples(&script).filter(|s| !s.is_idle()).for_each(|sample| end.add(&sample));
            }
            put(&mut page, &Profile { ends }.markdown(&test.to_string(), ["rxe", "kernel rxe"]));
        }
    }
    if write {
        pages::write(&checkout::root()?, super::PAGE, "bench --profile --write", &page)?;
    }
    Ok(())
}

fn put(page: &mut String, table: &str) {
    println!("{table}");
    *page += table;
    page.push('\n');
}

/// Runs a work under `perf record`.
fn sampled(file: &Path, contender: &Contender, test: Test) -> Result<Profile> {
    let link = Link::new(test.link_mtu())?;
    let cpus = link.cpus().ok_or_else(|| {
        Error::Missing("a profile needs two CPUs, and taskset to bind programs to them".into())
    })?;
    let recorder = Recorder::start(file)?;
    let measured = contender.measure(&link, test, false);
    recorder.stop()?;
    measured.map_err(|why| Error::Failed(format!("{}, {test}: {why}", contender.name())))?;
    Ok(Profile::of(&script(file, None)?, cpus))
}

struct Recorder(std::process::Child);

impl Recorder {
    fn start(file: &Path) -> Result<Self> {
        let mut cmd = Command::new("perf");
        cmd.args(["record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", FREQUENCY, "-o"]).arg(file);
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = rxe_harness::vm::spawn(cmd)
            .map_err(|e| Error::Missing(format!("perf: {e}: install linux-perf")))?;
        Ok(Self(child))
    }

    /// Ends `perf record` so that its file is complete.
    fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let status = self.0.wait().map_err(|e| Error::Failed(format!("perf: {e}")))?;
        // It ends by the signal that was sent, or with the exit code for that signal.
        if status.code().is_some_and(|code| code != 0 && code != 130) {
            let why = "perf cannot sample all CPUs: be root, or allow it with \
                       `sysctl kernel.perf_event_paranoid=-1`";
            return Err(Error::Missing(why.into()));
        }
        Ok(())
    }
}

/// Returns the samples as text.
/// With `vm`, they are from another kernel, and the files have other names.
fn script(file: &Path, vm: Option<&Recording>) -> Result<String> {
    let mut cmd = Command::new("perf");
    cmd.arg("script").arg("-i").arg(file).args(["-F", "comm,cpu,ip,sym,dso"]);
    if let Some(Recording { symbols, files, .. }) = vm {
        cmd.arg("--kallsyms").arg(symbols).arg("--symfs").arg(files);
    }
    let out = cmd.stderr(Stdio::null()).output();
    let out = out.map_err(|e| Error::Failed(format!("perf script: {e}")))?;
    if !out.status.success() {
        return Err(Error::Failed(format!("perf script: {}", out.status)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The samples of two ends that are compared.
#[derive(Debug, Default, PartialEq)]
struct Profile {
    ends: [End; 2],
}

#[derive(Debug, Default, PartialEq)]
struct End {
    total: u32,
    parts: BTreeMap<Part, u32>,
    functions: BTreeMap<String, u32>,
}

impl End {
    fn add(&mut self, sample: &Sample<'_>) {
        self.total += 1;
        *self.parts.entry(sample.part()).or_default() += 1;
        *self.functions.entry(sample.function()).or_default() += 1;
    }

    fn share(&self, samples: u32) -> f64 {
        100.0 * f64::from(samples) / f64::from(self.total.max(1))
    }
}

impl Profile {
    /// Counts the samples of client and server in the text of `perf script`.
    /// Samples of other programs and CPUs are left out.
    fn of(script: &str, (server, client): (usize, usize)) -> Self {
        let mut profile = Self::default();
        for sample in samples(script).filter(|s| s.is_measured() && !s.is_calibration()) {
            match sample.cpu {
                cpu if cpu == client => profile.ends[0].add(&sample),
                cpu if cpu == server => profile.ends[1].add(&sample),
                _ => {}
            }
        }
        profile
    }

    /// Returns a table with two columns, and the main functions of the first column.
    fn markdown(&self, title: &str, names: [&str; 2]) -> String {
        let [first, second] = names;
        let mut out =
            format!("**{title}**\n\n| part of the time, in percent | {first} | {second} |\n");
        out += "| --- | --- | --- |\n";
        for part in Part::ALL {
            let shares = [&self.ends[0], &self.ends[1]]
                .map(|end| end.share(end.parts.get(&part).copied().unwrap_or_default()));
            if shares.iter().any(|share| *share >= LEAST) {
                let _ = writeln!(out, "| {} | {:.0} | {:.0} |", part.name(), shares[0], shares[1]);
            }
        }
        let end = &self.ends[0];
        let mut functions: Vec<_> = end.functions.iter().collect();
        functions.sort_by_key(|(name, samples)| (std::cmp::Reverse(**samples), *name));
        let most = functions.iter().map(|(name, samples)| (name, end.share(**samples)));
        let most: Vec<_> = most
            .take_while(|(_, share)| *share >= LEAST)
            .take(FUNCTIONS)
            .map(|(name, share)| format!("`{name}` {share:.0}"))
            .collect();
        let _ = writeln!(out, "\nThe first column's functions: {}.", most.join(", "));
        out
    }
}

/// Parses the output of `perf script`, in which a sample is a block of lines.
fn samples(script: &str) -> impl Iterator<Item = Sample<'_>> {
    script.split("\n\n").filter_map(Sample::parse)
}

/// One sample: the state of a CPU at one moment.
struct Sample<'a> {
    /// The name of the thread.
    program: &'a str,
    cpu: usize,
    /// The functions with their files, the innermost first.
    stack: Vec<(&'a str, &'a str)>,
}

impl<'a> Sample<'a> {
    /// Parses a block of `perf script`: a line with program and CPU, and a line for each function.
    fn parse(block: &'a str) -> Option<Self> {
        let mut lines = block.lines().filter(|line| !line.trim().is_empty());
        let (program, cpu) = lines.next()?.rsplit_once('[')?;
        let program = program.trim();
        let cpu = cpu.trim_end().strip_suffix(']')?.parse().ok()?;
        let stack: Vec<_> = lines.filter_map(frame).collect();
        (!stack.is_empty()).then_some(Self { program, cpu, stack })
    }

    /// Returns whether the sample was taken in a measured program.
    /// A thread has its program's name, or one that begins with `rxe`.
    fn is_measured(&self) -> bool {
        self.program.starts_with("rxe") || self.program.starts_with("ib_")
    }

    /// Returns whether the CPU was idle, or ran `perf`.
    fn is_idle(&self) -> bool {
        ["swapper", "perf"].contains(&self.program)
    }

    /// Returns whether perftest was calibrating the clock.
    /// It does so for a fifth of a second before it measures.
    fn is_calibration(&self) -> bool {
        self.stack[0].0.ends_with("gettimeofday")
    }

    /// Returns whether a file is the kernel or a module, as `[rdma_rxe]`.
    /// Some other names in brackets are parts of a program.
    fn is_kernel(file: &str) -> bool {
        let of_program = ["[vdso]", "[unknown]", "[heap]", "[stack]", "[vsyscall]"].contains(&file);
        file.ends_with(".ko") || file.starts_with('[') && !of_program
    }

    fn function(&self) -> String {
        let (function, file) = self.stack[0];
        match function {
            // The program has no symbols.
            "[unknown]" => file.rsplit('/').next().unwrap_or(file).to_owned(),
            _ => short(function),
        }
    }

    fn part(&self) -> Part {
        let (function, file) = self.stack[0];
        if Self::is_kernel(file) { self.system_part() } else { Part::of_user(function, file) }
    }

    fn system_part(&self) -> Part {
        let kernel = || self.stack.iter().take_while(|(_, file)| Self::is_kernel(file));
        let any = |names: &[&str]| kernel().any(|(f, _)| names.iter().any(|name| f.contains(name)));
        if kernel().any(|(_, file)| file.contains("rdma_rxe")) {
            Part::KernelRxe
        } else if any(&["copy_user", "copy_from_iter", "copy_to_iter", "rep_movs", "process_vm_rw"])
        {
            Part::SystemCopy
        } else if any(&["sys_sendm", "sys_sendto"]) {
            Part::SystemSend
        } else if any(&["sys_recvm", "sys_recvfrom"]) {
            Part::SystemReceive
        } else {
            Part::SystemOther
        }
    }
}

/// Returns function and file of a line such as `22f08 copies::pop (/usr/bin/copies)`.
fn frame(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.trim_start().split_once(' ')?;
    let (function, file) = rest.rsplit_once(" (")?;
    let function = function.rsplit_once("+0x").map_or(function, |(name, _)| name);
    Some((function, file.strip_suffix(')')?))
}

/// Returns a function's name without generic arguments and with only the last module:
/// `tx::transmit_ready`, or `Backend::receive` for a method of a trait.
fn short(function: &str) -> String {
    let of_trait = function.strip_prefix('<').and_then(|rest| rest.split_once(" as "));
    let function = of_trait.map_or(function, |(_, named)| named);
    let mut depth = 0;
    let plain: String = function
        .chars()
        .filter(|c| {
            depth += i32::from(*c == '<');
            let keep = depth == 0 && *c != '>';
            depth = (depth - i32::from(*c == '>')).max(0);
            keep
        })
        .collect();
    let parts: Vec<_> = plain.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

/// The activity to which a sample is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    KernelRxe,
    SystemSend,
    SystemReceive,
    SystemCopy,
    SystemOther,
    Copy,
    Icrc,
    Memory,
    Queues,
    Engine,
    Ring,
    Backend,
    Verbs,
    Clock,
    Library,
    Program,
}

impl Part {
    const ALL: [Self; 16] = [
        Self::KernelRxe,
        Self::SystemSend,
        Self::SystemReceive,
        Self::SystemCopy,
        Self::SystemOther,
        Self::Copy,
        Self::Icrc,
        Self::Memory,
        Self::Queues,
        Self::Engine,
        Self::Ring,
        Self::Backend,
        Self::Verbs,
        Self::Clock,
        Self::Library,
        Self::Program,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::KernelRxe => "system: rdma_rxe, and what it calls",
            Self::SystemSend => "system: sending, with the way into the other socket",
            Self::SystemReceive => "system: receiving and polling the socket",
            Self::SystemCopy => "system: copies of payload",
            Self::SystemOther => "system: all else",
            Self::Copy => "copies of payload",
            Self::Icrc => "ICRC",
            Self::Memory => "memory regions: keys, bounds, gather and scatter",
            Self::Queues => "work requests and completions",
            Self::Engine => "engine: headers, states, timers",
            Self::Ring => "rings in shared memory",
            Self::Backend => "backend",
            Self::Verbs => "verbs and driver",
            Self::Clock => "reading the clock",
            Self::Library => "C library: allocation, locks, all else",
            Self::Program => "the program itself",
        }
    }

    /// Returns the part of a function outside the kernel. The first entry that matches counts.
    fn of_user(function: &str, file: &str) -> Self {
        const FUNCTIONS: [(&str, Part); 15] = [
            ("rxe_core_copy", Part::Copy),
            ("memcpy", Part::Copy),
            ("memmove", Part::Copy),
            ("clock_gettime", Part::Clock),
            ("Timespec", Part::Clock),
            ("crc32fast", Part::Icrc),
            ("rxe_core::wire::icrc", Part::Icrc),
            ("rxe_core::mem", Part::Memory),
            ("rxe_core::queue", Part::Queues),
            ("rxe_core::service", Part::Queues),
            ("rxe_core", Part::Engine),
            ("rxe_net::backends::shm", Part::Ring),
            ("rxe_net", Part::Backend),
            ("rxe_verbs", Part::Verbs),
            ("rxe_preload", Part::Verbs),
        ];
        if file.contains("vdso") {
            return Self::Clock;
        }
        if let Some((_, part)) = FUNCTIONS.iter().find(|(name, _)| function.contains(name)) {
            return *part;
        }
        if file.contains("libc.so") { Self::Library } else { Self::Program }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_profiled_has_the_test() {
        let contenders = Contender::all("rxe");
        for (test, name) in works() {
            let able = |c: &Contender| c.name() == name && c.supports(test);
            assert!(contenders.iter().any(able), "{test}: {name}");
        }
    }

    const SCRIPT: &str = "\
rxe [001] \n\tffffffff rep_movs_alternative ([kernel.kallsyms])\n\tffff __x64_sys_sendmmsg ([kernel.kallsyms])\n\t12 sendmmsg (/lib/libc.so.6)

ib_write_bw [001] \n\tffffffff udp_sendmsg ([kernel.kallsyms])\n\tffff __x64_sys_sendmmsg ([kernel.kallsyms])

rxe-driver [000] \n\t22f08 rxe_core::wire::icrc::prefix::Prefix::compute (/x/rxe)

rxe [000] \n\t7ff8 [unknown] ([vdso])

ib_write_lat [000] \n\t7ff8 __vdso_gettimeofday ([vdso])

swapper [000] \n\tffff default_idle ([kernel.kallsyms])
";

    #[test]
    fn samples_are_counted_by_end_and_part() {
        let Profile { ends: [client, server] } = Profile::of(SCRIPT, (0, 1));
        assert_eq!((client.total, server.total), (2, 2));
        assert_eq!(client.parts, [(Part::SystemSend, 1), (Part::SystemCopy, 1)].into());
        assert_eq!(server.parts, [(Part::Icrc, 1), (Part::Clock, 1)].into());
        assert_eq!(server.functions.keys().collect::<Vec<_>>(), ["Prefix::compute", "[vdso]"]);
    }

    #[test]
    fn names_of_functions_are_short() {
        for (function, name) in [
            ("rxe_core::engine::tx::<impl rxe_core::engine::Engine>::serve", "tx::serve"),
            (
                "<rxe_net::backends::shm::Shm<B> as rxe_net::backend::Backend>::receive",
                "Backend::receive",
            ),
            ("crossbeam_queue::seg_queue::SegQueue<T>::pop", "SegQueue::pop"),
            ("_copy_from_iter", "_copy_from_iter"),
        ] {
            assert_eq!(short(function), name);
        }
    }

    #[test]
    fn shares_are_of_an_end() {
        let text = Profile::of(SCRIPT, (0, 1)).markdown("a work", ["client", "server"]);
        assert!(text.starts_with("**a work**\n"), "{text}");
        assert!(text.contains("| ICRC | 0 | 50 |"), "{text}");
        assert!(text.contains("`rep_movs_alternative` 50, `udp_sendmsg` 50."), "{text}");
        assert!(!text.contains("backend"), "{text}");
    }
}
