//! What the host's packet filter does with UDP port 4791, where this process may see it.

use std::env;
use std::ffi::OsString;
use std::process::{Command, Stdio};

use rxe_verbs::device::DeviceInfo;

use super::finding::Finding;

const CHECK: &str = "firewall";

/// `None` if only loopback is used, which firewalls let through.
pub(super) fn check(offered: &[DeviceInfo]) -> Option<Finding> {
    if offered.iter().all(|d| d.interface().loopback) {
        return None;
    }
    let rules = [("nft", &["list", "ruleset"][..]), ("iptables", &["-S", "INPUT"][..])];
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

/// The rules, if the program is there and may see them.
fn list(program: &str, args: &[&str]) -> Option<String> {
    let mut path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env_remove("LD_PRELOAD").stdin(Stdio::null());
    let out = command.output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Reads rules as a person who looks for the port does. It does not evaluate them.
fn judge(rules: &str) -> Finding {
    let named = |line: &str| line.contains("4791") || line.contains("roce");
    let refuses =
        |line: &str| ["drop", "reject", "DROP", "REJECT"].iter().any(|w| line.contains(w));
    let mut input = false;
    let mut filtered = false;
    for line in rules.lines() {
        if line.trim_start().starts_with("chain ") {
            input = false;
        }
        input |= line.contains("hook input") || line.contains("hook prerouting");
        input |= ["-P INPUT", "-A INPUT"].iter().any(|start| line.starts_with(start));
        if named(line) && refuses(line) {
            let todo = "remove this rule, or let the port in before it";
            return Finding::note(CHECK, format!("a rule refuses the port: {}", line.trim()), todo);
        }
        filtered |= input && refuses(line);
    }
    if rules.lines().any(named) {
        return Finding::ok(CHECK, "a rule names UDP port 4791");
    }
    if !filtered {
        return Finding::ok(CHECK, "no rule refuses what arrives");
    }
    let todo = "`sudo iptables -I INPUT -p udp --dport 4791 -j ACCEPT`, or the same with nft";
    Finding::note(CHECK, "arriving packets are filtered, no rule names UDP port 4791", todo)
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
}
