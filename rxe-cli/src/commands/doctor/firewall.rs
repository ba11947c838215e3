//! Checks what the host's packet filter does with UDP port 4791, if its rules are visible.

use std::env;
use std::ffi::OsString;
use std::process::{Command, Stdio};

use rxe_verbs::device::DeviceInfo;

use super::finding::Finding;

const CHECK: &str = "firewall";

/// Checks the rules. Returns `None` if only loopback is used, which firewalls pass.
pub(super) fn check(offered: &[DeviceInfo]) -> Option<Finding> {
    if offered.iter().all(|d| d.interface().loopback) {
        return None;
    }
    let rules = [("nft", &["list", "ruleset"][..]), ("iptables", &["-S"][..])];
    let seen: Vec<_> = rules.iter().filter_map(|(program, args)| list(program, args)).collect();
    if seen.is_empty() {
        let text = if rustix::process::geteuid().is_root() {
            "its rules are not visible: nft and iptables are missing or refuse"
        } else {
            "its rules are not visible without root"
        };
        let todo = "as root, see that UDP port 4791 is let in: `nft list ruleset`";
        return Some(Finding::note(CHECK, text, todo));
    }
    Some(judge(&seen.join("\n")))
}

/// Returns the rules, if the program exists and may read them.
fn list(program: &str, args: &[&str]) -> Option<String> {
    let mut path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env_remove("LD_PRELOAD").stdin(Stdio::null());
    let out = command.output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Searches the rules for the port, without evaluating them.
fn judge(rules: &str) -> Finding {
    let named = |line: &str| line.contains("4791") || line.contains("roce");
    let refuses =
        |line: &str| ["drop", "reject", "DROP", "REJECT"].iter().any(|w| line.contains(w));
    let mut place = Place::default();
    let (mut arriving, mut leaving) = (None, None);
    for line in rules.lines() {
        place.enter(line);
        if named(line) && refuses(line) {
            let todo = "remove this rule, or let the port in before it";
            return Finding::note(CHECK, format!("a rule refuses the port: {}", line.trim()), todo);
        }
        match place.way {
            Some(Way::In) if refuses(line) => arriving = arriving.or_else(|| Some(place.remedy())),
            Some(Way::Out) if refuses(line) => leaving = leaving.or_else(|| Some(place.remedy())),
            _ => {}
        }
    }
    if rules.lines().any(named) {
        return Finding::ok(CHECK, "a rule names UDP port 4791");
    }
    let (which, todo) = match (arriving, leaving) {
        (Some(todo), _) => ("arriving", todo),
        (None, Some(todo)) => ("leaving", todo),
        (None, None) => return Finding::ok(CHECK, "no rule refuses what arrives"),
    };
    Finding::note(CHECK, format!("{which} packets are filtered, no rule names UDP port 4791"), todo)
}

/// The direction of the packets in a chain.
#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// The position of a line in the rules.
#[derive(Default)]
struct Place<'a> {
    /// The nft table, such as `inet filter`; `None` in the rules of iptables.
    table: Option<&'a str>,
    chain: &'a str,
    /// The direction; `None` for forwarded packets, and in chains that others jump to.
    way: Option<Way>,
}

impl<'a> Place<'a> {
    fn enter(&mut self, line: &'a str) {
        let inside = |word| line.trim().strip_prefix(word)?.strip_suffix('{').map(str::trim);
        let rule = ["-P ", "-A ", "-N "].iter().find_map(|word| line.strip_prefix(word));
        if let Some(table) = inside("table ") {
            *self = Self { table: Some(table), ..Self::default() };
        } else if let Some(chain) = inside("chain ") {
            *self = Self { chain, way: None, ..*self };
        } else if let Some(rule) = rule {
            let chain = rule.split(' ').next().unwrap_or_default();
            *self = Self { table: None, chain, way: None };
            match chain {
                "INPUT" => self.way = Some(Way::In),
                "OUTPUT" => self.way = Some(Way::Out),
                _ => {}
            }
        } else if let Some((_, hook)) = line.split_once(" hook ") {
            self.way = match hook.split(' ').next() {
                Some("ingress" | "prerouting" | "input") => Some(Way::In),
                Some("output" | "postrouting" | "egress") => Some(Way::Out),
                _ => None,
            };
        }
    }

    /// Returns the command that lets the port through in this chain.
    fn remedy(&self) -> String {
        let chain = self.chain;
        match self.table {
            Some(table) => format!("`sudo nft insert rule {table} {chain} udp dport 4791 accept`"),
            None => format!("`sudo iptables -I {chain} -p udp --dport 4791 -j ACCEPT`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_filter_that_does_not_name_the_port_is_noted() {
        let nft = |policy: &str, rule: &str| {
            format!(
                "table inet filter {{\n\tchain input {{\n\t\ttype filter hook input priority \
                 filter; policy {policy};\n\t\t{rule}\n\t}}\n\tchain other {{\n\t\tdrop\n\t}}\n}}\n"
            )
        };
        for (rules, status) in [
            (nft("accept", ""), Status::Ok),
            (nft("drop", "tcp dport 22 accept"), Status::Note),
            (nft("drop", "udp dport 4791 accept"), Status::Ok),
            (nft("accept", "udp dport 4791 drop"), Status::Note),
            ("-P INPUT ACCEPT\n".into(), Status::Ok),
            ("-P INPUT DROP\n".into(), Status::Note),
            ("-P INPUT DROP\n-A INPUT -p udp --dport 4791 -j ACCEPT\n".into(), Status::Ok),
            ("-P INPUT ACCEPT\n-A INPUT -j REJECT\n".into(), Status::Note),
            (String::new(), Status::Ok),
        ] {
            assert_eq!(judge(&rules).status, status, "{rules}");
        }
    }

    #[test]
    fn the_remedy_names_the_chain_that_filters() {
        let nft = |hook: &str, policy: &str| {
            format!(
                "table inet mine {{\n\tset hosts {{\n\t\ttype ipv4_addr\n\t}}\n\n\tchain here {{\n\t\t\
                 type filter hook {hook} priority filter; policy {policy};\n\t}}\n}}\n"
            )
        };
        let iptables =
            "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT DROP\n-N mine\n-A mine -j DROP\n";
        let insert = "`sudo nft insert rule inet mine here udp dport 4791 accept`";
        for (rules, which, remedy) in [
            (nft("input", "drop"), "arriving", insert),
            (nft("ingress device \"eth0\"", "drop"), "arriving", insert),
            (nft("output", "drop"), "leaving", insert),
            (
                nft("output", "drop") + &nft("input", "accept") + "-P INPUT DROP\n",
                "arriving",
                "`sudo iptables -I INPUT -p udp --dport 4791 -j ACCEPT`",
            ),
            (iptables.into(), "leaving", "`sudo iptables -I OUTPUT -p udp --dport 4791 -j ACCEPT`"),
        ] {
            let found = judge(&rules);
            assert_eq!(found.remedy.as_deref(), Some(remedy), "{rules}");
            assert!(found.text.starts_with(which), "{rules}");
        }
        assert_eq!(judge(&nft("forward", "drop")).status, Status::Ok);
        assert_eq!(judge("-P FORWARD DROP\n-N mine\n-A mine -j DROP\n").status, Status::Ok);
    }
}
