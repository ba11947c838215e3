//! `rxe devices`, `devinfo` and `gids` as a user calls them, in network namespaces with known
//! interfaces.

use std::io;
use std::process::{Command, Output};

use rxe_test_support::skipped;
use serde_json::Value;

/// Creates a veth pair with addresses on one end. They are set by hand, so that none is ever
/// tentative.
const VETH: &str = "
    ip link set lo up
    ip link add veth0 address 52:54:00:12:34:56 type veth peer name veth1
    ip link set veth0 addrgenmode none
    ip link set veth1 addrgenmode none
    ip link set veth0 up
    ip link set veth1 up
    ip address add 10.0.0.1/24 dev veth0
    ip address add 192.168.7.1/16 dev veth0
    ip address add fd00::1/64 dev veth0 nodad
";
const LINK_LOCAL: &str = "ip address add fe80::5054:ff:fe12:3456/64 dev veth0 nodad\n";

#[test]
fn each_interface_with_an_address_is_a_device() {
    let Some(out) = rxe("each_interface_with_an_address_is_a_device", VETH, &["devices"]) else {
        return;
    };
    let expected = "    device          \t   node GUID
    ------          \t----------------
    rxe_veth0       \t505400fffe123456
    rxe_lo          \t020000fffe000000
";
    assert_eq!(stdout(&out), expected);
}

#[test]
fn gids_stand_in_the_order_of_the_kernel() {
    let setup = VETH.to_string() + LINK_LOCAL;
    let name = "gids_stand_in_the_order_of_the_kernel";
    let Some(out) = rxe(name, &setup, &["gids"]) else { return };
    let expected = "\
DEV\t\tPORT\tINDEX\tGID\t\t\t\t\tIPv4\t\tVER\tDEV
---\t\t----\t-----\t---\t\t\t\t\t------------\t---\t---
rxe_veth0\t1\t0\tfe80:0000:0000:0000:5054:00ff:fe12:3456\t\t\tv2\tveth0
rxe_veth0\t1\t1\t0000:0000:0000:0000:0000:ffff:0a00:0001\t10.0.0.1\tv2\tveth0
rxe_veth0\t1\t2\t0000:0000:0000:0000:0000:ffff:c0a8:0701\t192.168.7.1\tv2\tveth0
rxe_veth0\t1\t3\tfd00:0000:0000:0000:0000:0000:0000:0001\t\t\tv2\tveth0
rxe_lo\t\t1\t0\t0000:0000:0000:0000:0000:ffff:7f00:0001\t127.0.0.1\tv2\tlo
rxe_lo\t\t1\t1\t0000:0000:0000:0000:0000:0000:0000:0001\t\t\tv2\tlo
n_gids_found=6
";
    assert_eq!(stdout(&out), expected);
}

#[test]
fn a_default_gid_that_nobody_has_is_listed_as_not_usable() {
    let name = "a_default_gid_that_nobody_has_is_listed_as_not_usable";
    let Some(out) = rxe(name, VETH, &["gids", "veth0", "--json"]) else { return };
    let rows = json(&out);
    let usable: Vec<_> = rows.as_array().unwrap().iter().map(|r| r["usable"].clone()).collect();
    assert_eq!(usable, [false, true, true, true]);
    assert_eq!(rows[0]["gid"], "fe80:0000:0000:0000:5054:00ff:fe12:3456");
    assert_eq!(rows[1]["ipv4"], "10.0.0.1");
}

#[test]
fn devinfo_prints_what_ibv_devinfo_does() {
    let name = "devinfo_prints_what_ibv_devinfo_does";
    let Some(out) = rxe(name, VETH, &["devinfo", "-d", "veth0"]) else { return };
    let expected = format!(
        "hca_id:\trxe_veth0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t{}
\tnode_guid:\t\t\t5054:00ff:fe12:3456
\tsys_image_guid:\t\t\t5054:00ff:fe12:3456
\tvendor_id:\t\t\t0xffffff
\tvendor_part_id:\t\t\t0
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet

",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(stdout(&out), expected);
}

#[test]
fn devinfo_verbose_has_every_field_and_gid() {
    let name = "devinfo_verbose_has_every_field_and_gid";
    let Some(out) = rxe(name, VETH, &["devinfo", "-v", "rxe_veth0"]) else { return };
    let text = stdout(&out);
    for line in [
        "\tmax_qp:\t\t\t\t1048576",
        "\tmax_sge:\t\t\t32",
        "\tmax_cqe:\t\t\t1048576",
        "\tdevice_cap_flags:\t\t0x01123c06",
        "\t\t\t\t\tRC_RNR_NAK_GEN",
        "\t\t\t\t\tXRC",
        "\t\t\t\t\tMEM_WINDOW_TYPE_2B",
        "\t\t\t\t\tATOMIC_WRITE",
        "\tdevice_cap_flags_ex:\t\t0x14001123C06",
        "\tmax_qp_rd_atom:\t\t\t128",
        "\tlocal_ca_ack_delay:\t\t15",
        "\t\t\tmax_msg_sz:\t\t0x80000000",
        "\t\t\tgid_tbl_len:\t\t1024",
        "\t\t\tphys_state:\t\tLINK_UP (5)",
        "\t\t\tGID[  1]:\t\t::ffff:10.0.0.1, RoCE v2",
        "\t\t\tGID[  3]:\t\tfd00::1, RoCE v2",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} is missing in\n{text}");
    }
}

#[test]
fn devinfo_json_has_the_values_of_the_text() {
    let name = "devinfo_json_has_the_values_of_the_text";
    let Some(out) = rxe(name, VETH, &["devinfo", "--json"]) else { return };
    let all = json(&out);
    let ids: Vec<_> = all.as_array().unwrap().iter().map(|d| d["hca_id"].clone()).collect();
    assert_eq!(ids, ["rxe_veth0", "rxe_lo"]);
    assert_eq!(all[0]["vendor_id"], 0xff_ffff);
    let port = &all[0]["ports"][0];
    assert_eq!(port["state"], "PORT_ACTIVE");
    assert_eq!(port["active_mtu"], 1024);
    assert_eq!(port["gids"][1], "::ffff:10.0.0.1");
    assert_eq!(all[1]["ports"][0]["active_mtu"], 4096, "loopback carries the largest");
}

#[test]
fn the_path_mtu_follows_the_link() {
    for (link, path) in [(4175, 2048), (4176, 4096)] {
        let setup = format!("{VETH} ip link set veth0 mtu {link}\n");
        let args = ["devinfo", "veth0", "--json"];
        let Some(out) = rxe("the_path_mtu_follows_the_link", &setup, &args) else { return };
        assert_eq!(json(&out)[0]["ports"][0]["active_mtu"], path, "link MTU {link}");
    }
}

#[test]
fn a_link_without_carrier_is_down() {
    let setup = VETH.to_string() + "ip link set veth1 down\n";
    let args = ["devinfo", "veth0", "--json"];
    let Some(out) = rxe("a_link_without_carrier_is_down", &setup, &args) else { return };
    let port = &json(&out)[0]["ports"][0];
    assert_eq!((&port["state"], &port["phys_state"]), (&"PORT_DOWN".into(), &"POLLING".into()));
}

#[test]
fn a_wrong_name_is_answered_with_the_devices_there_are() {
    let name = "a_wrong_name_is_answered_with_the_devices_there_are";
    for args in [&["devinfo", "mlx5_0"][..], &["gids", "-d", "mlx5_0"]] {
        let Some(out) = rxe(name, VETH, args) else { return };
        assert_fails(&out, "rxe: no device \"mlx5_0\": use rxe_veth0 or rxe_lo\n");
    }
    let Some(out) = rxe(name, VETH, &["gids", "veth1"]) else { return };
    assert_fails(
        &out,
        "rxe: interface veth1 has no address, so it is no device: give it one (`ip address add \
         ADDRESS/LENGTH dev veth1`), or use rxe_veth0 or rxe_lo\n",
    );
}

#[test]
fn a_host_without_addresses_is_told_what_to_do() {
    for command in ["devices", "devinfo", "gids"] {
        let name = "a_host_without_addresses_is_told_what_to_do";
        let Some(out) = rxe(name, "", &[command]) else { return };
        assert_fails(
            &out,
            "rxe: no device: no interface has an address; `ip link set lo up` makes one on \
             loopback\n",
        );
    }
}

#[test]
fn a_wrong_port_is_refused() {
    let name = "a_wrong_port_is_refused";
    let Some(out) = rxe(name, VETH, &["devinfo", "veth0", "-i", "2"]) else { return };
    let expected =
        "rxe: rxe_veth0 has no port 2: use port 1, the only one, or leave the port out\n";
    assert_fails(&out, expected);
}

#[test]
fn devices_are_found_without_sys_and_proc() {
    let name = "devices_are_found_without_sys_and_proc";
    let hide = "mount -t tmpfs none /sys\nmount -t tmpfs none /proc\n";
    let Some(out) = rxe(name, &(VETH.to_string() + hide), &["devinfo", "-l"]) else { return };
    assert_eq!(stdout(&out), "2 HCAs found:\n\trxe_veth0\n\trxe_lo\n\n");
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for args in [&["devinfo", "--frobnicate"][..], &["no-such-command"], &[]] {
        let out = Command::new(RXE).args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(out.stdout.is_empty() && !out.stderr.is_empty());
    }
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let out = Command::new(RXE).args(["completions", "zsh"]).stdout(writer).output().unwrap();
    assert!(out.status.success(), "{:?}", out.status);
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}

#[test]
fn completions_and_version_are_there() {
    for shell in ["bash", "zsh", "fish"] {
        let out = Command::new(RXE).args(["completions", shell]).output().unwrap();
        assert!(stdout(&out).contains("devinfo"), "{shell}");
    }
    let out = Command::new(RXE).arg("--version").output().unwrap();
    let text = stdout(&out);
    let commit = text.strip_prefix(concat!("rxe ", env!("CARGO_PKG_VERSION"))).unwrap().trim_end();
    // A build from sources without git has no commit.
    let digits = commit.strip_prefix(" (").map_or("", |rest| rest.strip_suffix(')').unwrap());
    assert!(commit.is_empty() || digits.len() == 12, "{text:?}");
    assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()), "{text:?}");
}

/// bash completes words in a directory with a capture, by the function that the script defines.
#[test]
fn completions_offer_files_and_values() {
    if !Command::new("bash").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return rxe_test_support::skipped("completions", "bash is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("one.pcapng"), "").unwrap();
    let offered = |words: &str, last: &str| {
        let script = format!(
            r#"eval "$("{RXE}" completions bash)"; PATH=$(dirname "{RXE}"):$PATH
            COMP_WORDS=({words} "{last}"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _rxe rxe "{last}" "${{COMP_WORDS[COMP_CWORD - 1]}}"; echo "${{COMPREPLY[*]}}""#
        );
        let mut bash = Command::new("bash");
        let out = bash.args(["-c", &script]).current_dir(&dir).output().unwrap();
        stdout(&out).trim_end().to_owned()
    };
    for words in ["rxe check --junit", "rxe run --pcap", "rxe gen -w"] {
        assert_eq!(offered(words, "on"), "one.pcapng", "{words}");
    }
    assert_eq!(offered("rxe run --ack", ""), "adaptive prompt");
    assert_eq!(offered("rxe perf write", "b"), "bw");
    assert_eq!(offered("rxe pingpong --backend", "p"), "packet");
    assert_eq!(offered("rxe run --color", "al"), "always");
    assert_eq!(offered("rxe pingpong -d", "rxe_l"), "rxe_lo");
    assert!(offered("rxe devinfo", "").contains("rxe_lo"));
    let script = |shell| stdout(&Command::new(RXE).args(["completions", shell]).output().unwrap());
    let zsh = script("zsh");
    for kind in
        [":FILE:_files'", "_files -/'", "program -- ", ":DEV:_rxe_devices'", "_rxe_devices() {"]
    {
        assert!(zsh.contains(kind), "{kind}");
    }
    // Where no value fits, bash offers files.
    assert!(script("bash").contains("-o default rxe"));
    let fish = script("fish");
    let junit = fish.lines().find(|line| line.contains("-l junit")).unwrap();
    assert!(junit.ends_with("-r -F"), "{junit}");
    assert!(fish.contains(r#"-r -f -a "(rxe devices "#), "{fish}");
    for script in [zsh, fish, script("bash"), script("elvish")] {
        assert!(!script.contains("RXE_DEVICES"), "{script}");
    }
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    let out = Command::new(RXE).arg("man").arg(&pages).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    for command in ["demo", "devices", "link-add", "perf", "pingpong", "run"] {
        let page = page(&format!("rxe-{command}.1"));
        assert!(page.contains(".SH OPTIONS"), "{command}");
        let foot = format!(".TH rxe-{command} 1  \"rxe {}", env!("CARGO_PKG_VERSION"));
        assert!(page.contains(&foot), "{page}");
    }
    assert!(page("rxe.1").contains("rxe\\-run(1)"));
    let synopsis = |name: &str| {
        let page = page(name);
        let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
        rest.split_once("\n.SH ").unwrap().0.replace("\\fB", "").replace("\\fR", "")
    };
    assert_eq!(synopsis("rxe-perf.1"), "rxe perf [OPTIONS] <OPERATION> <TEST> [HOST]");
    assert_eq!(synopsis("rxe-resource.1"), "rxe resource [OPTIONS]\n.br\nrxe resource <COMMAND>");

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let out = Command::new(RXE).arg("man").arg(&file).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("cannot write into"));
}

const RXE: &str = env!("CARGO_BIN_EXE_rxe");

/// Runs `rxe` in a new network namespace after `setup`. Returns `None` and prints a line if this
/// host does not allow one.
fn rxe(test: &str, setup: &str, args: &[&str]) -> Option<Output> {
    let unshare = |script: &str| {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        Command::new("unshare")
            .args(["-Urnm", "sh", "-ec", script, RXE])
            .args(args)
            .env("PATH", path)
            .output()
    };
    let why = match unshare(setup) {
        Ok(out) if out.status.success() => {
            return unshare(&format!("{setup}\nexec \"$0\" \"$@\"")).ok();
        }
        Ok(out) => String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; "),
        Err(e) => format!("unshare: {e}"),
    };
    skipped(test, why);
    None
}

#[track_caller]
fn stdout(out: &Output) -> String {
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{:?}: {stderr}", out.status);
    String::from_utf8(out.stdout.clone()).unwrap()
}

#[track_caller]
fn json(out: &Output) -> Value {
    serde_json::from_str(&stdout(out)).unwrap()
}

#[track_caller]
fn assert_fails(out: &Output, stderr: &str) {
    assert_eq!(String::from_utf8_lossy(&out.stderr), stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(out.stdout.is_empty());
}
