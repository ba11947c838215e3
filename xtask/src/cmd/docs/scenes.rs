//! The commands and the output that the pictures of terminals show.

use super::terminal::When;

/// A sequence of commands in a terminal.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// The widths of the pictures, in columns.
    pub(super) columns: &'static [u16],
    /// Commands that run first, and whose output is not shown.
    before: &'static str,
    /// Commands that are shown with their output.
    shown: &'static [&'static str],
    pub(super) when: When,
}

/// The usual width of a terminal, and that of a terminal as wide as a screen.
const NARROW: &[u16] = &[80];
const BOTH: &[u16] = &[80, 160];

/// A script that installs `rxe` and creates the network of this host and `far`.
/// `listens PORT` waits until a program listens on this host, `far_listens PORT` on the other host.
pub(super) const NETWORK: &str = r#"
mount -t tmpfs none /dev/shm
mount -t tmpfs none /run
mount -t tmpfs none /usr/local
mkdir -p /usr/local/bin /usr/local/lib/rxe
for file in bin/rxe lib/rxe/librxe_preload.so; do
    touch /usr/local/$file
    mount --bind "$BUILT/${file##*/}" /usr/local/$file
done
ip netns add far
ip link set lo up
ip -n far link set lo up
ip link add eth0 mtu 4200 address 52:54:00:00:00:01 type veth \
    peer name eth0 mtu 4200 address 52:54:00:00:00:02 netns far
ip address add 10.0.0.1/24 dev eth0
ip address add fd00::1/64 dev eth0 nodad
ip -n far address add 10.0.0.2/24 dev eth0
ip -n far address add fd00::2/64 dev eth0 nodad
ip link set eth0 up
ip -n far link set eth0 up
far() { ip netns exec far sh -c 'mount -t tmpfs none /dev/shm; exec "$@"' - "$@"; }
listens() { until ss -Htln "sport = :$1" | grep -q .; do sleep 0.05; done; }
far_listens() { until ip netns exec far ss -Htln "sport = :$1" | grep -q .; do sleep 0.05; done; }
show() { printf '\033[1m$ %s\033[m\n' "$1"; eval "$1" || true; }
"#;

/// A script that starts a WRITE of a minute from this host to the other.
const TRAFFIC: &str = "far rxe perf write bw -D 60 & far_listens 18515
rxe perf write bw -D 60 10.0.0.2 &
until rxe stat --json | grep '\"sent_pkts\"' | grep -q '[0-9][0-9][0-9]'; do sleep 0.05; done";

/// All scenes of terminals.
pub(super) const TERMINALS: &[Scene] = &[
    ended("help", NARROW, "", &["rxe --help"]),
    ended("doctor", BOTH, "", &["rxe doctor"]),
    ended("devices", NARROW, "", &["rxe devices", "rxe gids eth0", "rxe link"]),
    ended("demo", NARROW, "", &["rxe demo"]),
    ended(
        "pingpong",
        NARROW,
        "far rxe pingpong & far_listens 18515",
        &["rxe pingpong -t 10.0.0.2"],
    ),
    ended(
        "perf",
        BOTH,
        "far rxe perf write bw & far_listens 18515",
        &["rxe perf write bw -a 10.0.0.2"],
    ),
    ended(
        "perf-lat",
        NARROW,
        "far rxe perf send lat & far_listens 18515",
        &["rxe perf send lat -n 5000 10.0.0.2"],
    ),
    Scene {
        when: When::Shows(|text| percent(text).is_some_and(|percent| percent >= 40)),
        ..ended(
            "perf-progress",
            NARROW,
            "far rxe perf write bw & far_listens 18515",
            &["rxe perf write bw -D 5 10.0.0.2"],
        )
    },
    ended("stat", BOTH, TRAFFIC, &["rxe stat", "rxe stat --qp", "rxe resource show"]),
    Scene {
        when: When::Shows(|text| text.lines().any(has_rate)),
        ..ended("stat-watch", BOTH, TRAFFIC, &["rxe stat --watch"])
    },
    ended("capture", BOTH, TRAFFIC, &["rxe capture -c 8"]),
    ended("decode", BOTH, "", &["rxe decode pcaps/kernel-6.1/peer_gone.pcap"]),
    ended(
        "decode-v",
        BOTH,
        "",
        &["rxe decode -v --only nak pcaps/kernel-6.1/write_wrong_rkey.pcap"],
    ),
    ended("ladder", BOTH, "", &["rxe ladder pcaps/kernel-6.1/peer_gone.pcap"]),
    ended("check", BOTH, "", &["rxe check pcaps/kernel-6.1/peer_gone.pcap"]),
    ended("explain", NARROW, "", &["rxe explain RETRY_EXC"]),
    ended("explain-zh", NARROW, "", &["rxe explain --lang zh RETRY_EXC"]),
    ended(
        "gen",
        NARROW,
        "",
        &["rxe gen pcaps/scenarios/rnr_nak.toml -w rnr.pcapng", "rxe decode rnr.pcapng"],
    ),
    ended(
        "conform",
        BOTH,
        "rxe conform --print-peer > peer.c; cc -DWITH_CM peer.c -o peer -libverbs -lrdmacm
        far rxe run -- ./peer & far_listens 18520",
        &["rxe conform --peer 10.0.0.2 --only retries,memory"],
    ),
    ended(
        "replay",
        BOTH,
        "rxe conform --print-peer > peer.c; cc peer.c -o peer -libverbs
        far rxe run -- ./peer & far_listens 18520",
        &[
            "rxe replay pcaps/kernel-6.1/read.pcap --to 10.0.0.2",
            "rxe replay pcaps/kernel-6.1/write.pcap --to 10.0.0.2 --access remote_read",
        ],
    ),
];

/// Creates a scene that ends when its commands have ended.
const fn ended(
    name: &'static str,
    columns: &'static [u16],
    before: &'static str,
    shown: &'static [&'static str],
) -> Scene {
    Scene { name, columns, before, shown, when: When::Ended }
}

impl Scene {
    /// Returns the file name of the picture with this width.
    pub(super) fn file(&self, columns: u16) -> String {
        format!("{}-{columns}.svg", self.name)
    }

    /// Returns the commands, for a shell that has run [`NETWORK`].
    pub(super) fn script(&self) -> String {
        let shown = self.shown.iter().map(|command| format!("show '{command}'\n"));
        format!("{{ :\n{}\n}} > log 2>&1\n{}", self.before, shown.collect::<String>())
    }
}

/// Returns the percentage that a progress bar shows.
fn percent(text: &str) -> Option<u32> {
    text.split(" %").next()?.rsplit(' ').next()?.parse().ok()
}

/// Returns whether this row of `rxe stat --watch` has a rate above 0.
fn has_rate(row: &str) -> bool {
    let rate = row.trim_end().strip_suffix("/s").and_then(|row| row.rsplit(' ').next());
    row.contains("sent_pkts") && rate.is_some_and(|rate| rate != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_rates_are_seen() {
        assert_eq!(percent("   64 KiB [====>   ]  45 %"), Some(45));
        assert_eq!(percent("no bar"), None);
        assert!(has_rate("  sent_pkts      1234      17/s  "));
        assert!(!has_rate("  sent_pkts      1234       0/s"));
        assert!(!has_rate("  sent_pkts      1234"));
    }
}
