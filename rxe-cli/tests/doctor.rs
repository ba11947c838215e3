//! `rxe doctor` in network namespaces with and without obstacles for programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

mod util;
use util::{Dir, LOOPBACK, RXE, VETH, in_namespace};

/// Returns the exit code and the findings of `rxe doctor --json`, which `script` runs.
fn doctor(test: &str, setup: &str, script: &str) -> Option<(i32, Vec<Value>)> {
    doctor_in(&Dir::new(), test, setup, script)
}

/// Like [`doctor`], in this directory.
fn doctor_in(dir: &Dir, test: &str, setup: &str, script: &str) -> Option<(i32, Vec<Value>)> {
    let out = in_namespace(test, setup, script, &dir.file(""))?;
    let said = String::from_utf8_lossy(&out.stdout);
    let findings: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    Some((out.status.code().unwrap(), findings.as_array().unwrap().clone()))
}

/// Returns the findings of a check with this status.
fn of<'a>(findings: &'a [Value], check: &str, status: &str) -> Vec<&'a Value> {
    let wanted = findings.iter().filter(|f| f["check"] == check && f["status"] == status);
    wanted.collect()
}

fn problems(findings: &[Value]) -> Vec<&str> {
    let problems = findings.iter().filter(|f| f["status"] == "problem");
    problems.map(|f| f["check"].as_str().unwrap()).collect()
}

/// Copies the command without a library, or with this one next to it.
fn copy(dir: &Path, library: Option<&[u8]>) {
    fs::hard_link(RXE, dir.join("rxe"))
        .or_else(|_| fs::copy(RXE, dir.join("rxe")).map(drop))
        .unwrap();
    if let Some(bytes) = library {
        fs::write(dir.join("librxe_preload.so"), bytes).unwrap();
    }
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn a_process_on_the_port_is_named() {
    let test = "a_process_on_the_port_is_named";
    let script = r#"
        perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 17);
            bind(S, sockaddr_in(4791, INADDR_ANY)) or die; $| = 1; print "bound\n"; sleep 20' \
            > owner & owner=$!
        until [ -s owner ]; do sleep 0.01; done
        code=0
        "$RXE" doctor --json > findings 2> errors || code=$?
        kill $owner
        sed "s/process $owner/process OWNER/" findings
        exit $code
    "#;
    let Some((code, findings)) = doctor(test, LOOPBACK, script) else { return };
    let found = of(&findings, "UDP port 4791", "problem");
    assert_eq!(code, 1, "{findings:?}");
    let expected = "UDP port 4791 on 127.0.0.1 is in use by process OWNER (perl)";
    assert_eq!(found[0]["text"], expected, "{findings:?}");
    assert_eq!(found[0]["remedy"], "stop it or use another address");
}

#[test]
fn nothing_in_the_way_of_devices_is_ok() {
    let test = "nothing_in_the_way_of_devices_is_ok";
    let script = "\"$RXE\" doctor --json || true";
    let Some((_, findings)) = doctor(test, VETH, script) else { return };
    let devices = of(&findings, "devices", "ok");
    assert_eq!(devices[0]["text"], "rxe_veth0");
    // The library may not have been built for these tests.
    assert!(problems(&findings).iter().all(|check| *check == "library"), "{findings:?}");
    for check in ["UDP port 4791", "MTU", "open files", "shared memory", "packet backend"] {
        assert!(!of(&findings, check, "ok").is_empty(), "{check}: {findings:?}");
    }
    assert_eq!(of(&findings, "MTU", "ok")[0]["text"], "rxe_veth0: path MTU 1024 (MTU 1500)");
    // In a user namespace, this host's limit bounds the receive buffer.
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let small = limit.trim().parse::<u64>().unwrap() < 4 << 20;
    let notes = of(&findings, "socket buffers", "note");
    let receive = notes.iter().any(|f| f["text"].as_str().unwrap().starts_with("receive"));
    assert_eq!(receive, small, "{findings:?}");
}

#[test]
fn interfaces_without_address_are_no_devices() {
    let test = "interfaces_without_address_are_no_devices";
    let script = "
        ip link add bare type veth peer name end netns far
        ip link set bare addrgenmode none
        ip link set bare up
        ip -n far link set end up
        ip link set veth0 mtu 600
        \"$RXE\" doctor --json || true";
    let Some((_, findings)) = doctor(test, VETH, script) else { return };
    let notes = of(&findings, "devices", "note");
    assert_eq!(notes[0]["text"], "no device on bare: no address", "{findings:?}");
    assert_eq!(notes[0]["remedy"], "`ip address add ADDRESS/LENGTH dev bare`");
    let text = of(&findings, "MTU", "note")[0]["text"].as_str().unwrap();
    assert_eq!(text, "rxe_veth0: MTU 600, so the path MTU is only 512");
    let Some((code, findings)) = doctor(test, "true", "\"$RXE\" doctor --json") else { return };
    assert_eq!(code, 1);
    assert_eq!(of(&findings, "devices", "problem")[0]["text"], "none: no interface has an address");
}

#[test]
fn rules_of_nft_that_let_the_port_in_or_not_are_told() {
    let test = "rules_of_nft_that_let_the_port_in_or_not_are_told";
    let with = |rule: &str| {
        let script = format!(
            r#"
            PATH=$PATH:/usr/sbin:/sbin
            nft add table inet own || {{ echo '[]'; exit 0; }}
            nft add chain inet own arriving '{{ type filter hook input priority 0; policy drop; }}'
            {rule}
            "$RXE" doctor --json || true"#
        );
        doctor(test, VETH, &script)
    };
    let Some((_, findings)) = with("") else { return };
    if findings.is_empty() {
        return rxe_test_support::skipped(
            test,
            "nft is not installed, or the system has no nf_tables",
        );
    }
    let found = of(&findings, "firewall", "note");
    let text = "arriving packets are filtered, no rule names UDP port 4791";
    assert_eq!(found[0]["text"], text, "{findings:?}");
    // If the host's own packets cannot pass, the cause is the firewall, not loopback.
    let found = of(&findings, "UDP GSO and GRO", "note");
    assert!(found[0]["remedy"].as_str().unwrap().contains("firewall"), "{findings:?}");
    let remedy = of(&findings, "firewall", "note")[0]["remedy"].as_str().unwrap().to_owned();
    let remedy = remedy.trim_matches('`').strip_prefix("sudo ").unwrap();
    let (_, findings) = with(remedy).unwrap();
    let found = of(&findings, "firewall", "ok");
    assert_eq!(found[0]["text"], "a rule names UDP port 4791", "{findings:?}");
    let (_, findings) = with("nft insert rule inet own arriving udp dport 4791 drop").unwrap();
    let found = of(&findings, "firewall", "note");
    assert_eq!(found[0]["text"], "a rule refuses the port: udp dport 4791 drop", "{findings:?}");
}

#[test]
fn few_open_files_are_a_note_and_too_few_a_problem() {
    let test = "few_open_files_are_a_note_and_too_few_a_problem";
    let with = |limit: u32| {
        let script = format!("ulimit -n {limit}; \"$RXE\" doctor --json || exit $?");
        doctor(test, LOOPBACK, &script)
    };
    let Some((_, findings)) = with(64) else { return };
    assert!(!of(&findings, "UDP port 4791", "ok").is_empty(), "{findings:?}");
    assert_eq!(of(&findings, "open files", "note").len(), 1, "{findings:?}");
    // `ulimit -n` lowers the hard limit as well, and cannot raise it again.
    let remedy =
        |hard| format!("as root, raise the hard limit (now {hard}), then `ulimit -n 1024`");
    assert_eq!(of(&findings, "open files", "note")[0]["remedy"], remedy(64), "{findings:?}");
    for limit in [8, 12] {
        let Some((code, findings)) = with(limit) else { return };
        assert_eq!(code, 1);
        let found = of(&findings, "open files", "problem");
        let text = format!("{limit} are too few to open rxe_lo");
        assert_eq!(found[0]["text"], text, "{findings:?}");
        // Other findings about files that cannot be opened have the same remedy.
        let all = found.into_iter().chain(of(&findings, "packet backend", "note"));
        all.for_each(|f| assert_eq!(f["remedy"], remedy(limit), "{findings:?}"));
    }
}

#[test]
fn loopback_alone_without_link_is_a_problem() {
    let test = "loopback_alone_without_link_is_a_problem";
    let setup = "ip link set lo up; ip address add 127.0.0.3/8 dev lo; ip link set lo down";
    let script = "\"$RXE\" doctor --json || exit $?";
    let Some((code, findings)) = doctor(test, setup, script) else { return };
    let found = of(&findings, "link", "problem");
    assert_eq!(code, 1);
    assert_eq!(found[0]["text"], "rxe_lo: lo has no link", "{findings:?}");
    assert_eq!(found[0]["remedy"], "`ip link set lo up`");
}

#[test]
fn a_library_that_is_missing_or_does_not_load_is_a_problem() {
    let test = "a_library_that_is_missing_or_does_not_load_is_a_problem";
    for (library, expected) in
        [(None, "librxe_preload.so is neither in "), (Some(&b"no library"[..]), "does not load: ")]
    {
        let dir = Dir::new();
        copy(&dir.file(""), library);
        let Some(out) = in_namespace(test, LOOPBACK, "./rxe doctor", &dir.file("")) else { return };
        let said = text(&out).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("problem library"), "{said}");
        assert!(said.contains(expected) && said.contains("-> "), "{said}");
        assert!(text(&out).lines().all(|line| line.chars().count() <= 80 || line.contains('/')));
        assert_eq!(out.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(errors, "rxe: 1 problem: programs do not run here until it is solved\n");
    }
}

/// Returns the contents of a library that this process has loaded, and that hence can be loaded.
fn loaded(name: &str) -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.split_whitespace().find(|word| word.contains(name))?;
    Some(fs::read(path).unwrap())
}

#[test]
fn without_versioned_libraries_programs_that_load_libibverbs_are_noted() {
    let test = "without_versioned_libraries_programs_that_load_libibverbs_are_noted";
    let Some(library) = loaded("/libgcc_s.so") else { return };
    let dir = Dir::new();
    copy(&dir.file(""), Some(&library));
    let libraries = dir.file("rxe-libs");
    fs::create_dir(&libraries).unwrap();
    let found = |status: &str| {
        let (code, findings) = doctor_in(&dir, test, LOOPBACK, "./rxe doctor --json")?;
        assert_eq!(code, 0, "{findings:?}");
        let found = of(&findings, "library", status);
        Some(found.iter().map(|f| format!("{} -> {}", f["text"], f["remedy"])).collect::<String>())
    };
    let Some(none) = found("note") else { return };
    fs::write(libraries.join("libibverbs.so.1"), &library).unwrap();
    let one = found("note").unwrap();
    fs::write(libraries.join("librdmacm.so.1"), "no library").unwrap();
    let broken = found("note").unwrap();
    fs::write(libraries.join("librdmacm.so.1"), &library).unwrap();
    let ok = found("ok").unwrap();
    for (said, why) in
        [(&none, "no libibverbs.so.1 in "), (&one, "no librdmacm.so.1 in "), (&broken, "not load")]
    {
        let effect = "programs that load libibverbs by themselves find no device: ";
        assert!(said.contains(effect) && said.contains(why), "{said}");
        assert!(said.contains("package") && said.contains("`cargo xtask libs`"), "{said}");
    }
    assert!(ok.contains("for programs that load it: "), "{ok}");
    assert_eq!(found("note").unwrap(), "");
}

#[test]
fn it_succeeds_with_a_library_that_loads() {
    let test = "it_succeeds_with_a_library_that_loads";
    let Some(library) = loaded("/libc.so") else { return };
    let dir = Dir::new();
    copy(&dir.file(""), Some(&library));
    let Some(out) = in_namespace(test, LOOPBACK, "./rxe doctor", &dir.file("")) else { return };
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(out.stderr.is_empty() && text(&out).contains("ok       library"), "{out:?}");
    let wrong = Command::new(RXE).args(["doctor", "--nonsense"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
