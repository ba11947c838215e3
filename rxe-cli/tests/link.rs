//! `rxe link` as a user calls it, in network namespaces of the tests.

mod util;

use serde_json::{Value, json};
use util::{Dir, LOOPBACK, in_namespace};

/// Sets up loopback, `eth0` with an address and `eth1` without. Names are stored in the test's
/// directory.
const SETUP: &str = r#"
    ip link set lo up
    ip link add eth0 type veth peer name eth1
    ip link set eth0 addrgenmode none
    ip link set eth1 addrgenmode none
    ip link set eth0 up
    ip link set eth1 up
    ip address add 10.0.0.1/24 dev eth0
    export XDG_RUNTIME_DIR="$PWD"
"#;

/// Returns the standard output of a script, which must succeed.
fn said(test: &str, setup: &str, script: &str) -> Option<String> {
    let dir = Dir::new();
    let out = in_namespace(test, setup, script, &dir.file(""))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    Some(text)
}

#[test]
fn links_are_shown_as_rdma_link_does() {
    let script = "$RXE link; $RXE link show eth0/1; $RXE link sh rxe_eth0 -j; $RXE link -j";
    let Some(out) = said("links_are_shown_as_rdma_link_does", SETUP, script) else { return };
    let lines: Vec<_> = out.lines().collect();
    let eth0 = "link rxe_eth0/1 state ACTIVE physical_state LINK_UP netdev eth0 ";
    let lo = "link rxe_lo/1 state ACTIVE physical_state LINK_UP netdev lo ";
    assert_eq!(lines[..3], [eth0, lo, eth0]);
    let of_eth0: Value = serde_json::from_str(lines[3]).unwrap();
    let index = &of_eth0[0]["netdev_index"];
    assert!(index.is_u64());
    let expected = json!([{
        "ifindex": index, "ifname": "rxe_eth0", "port": 1, "state": "ACTIVE",
        "physical_state": "LINK_UP", "netdev": "eth0", "netdev_index": index,
    }]);
    assert_eq!(of_eth0, expected);
    let all: Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!((&all[0], &all[1]["ifname"]), (&of_eth0[0], &json!("rxe_lo")));
}

#[test]
fn an_added_name_is_shown_everywhere_until_it_is_deleted() {
    let script = r#"
        $RXE link add rxe0 type rxe netdev eth0
        $RXE link show rxe0
        $RXE devices | grep -o 'rxe[^ ]*'
        $RXE devinfo -d rxe_eth0 | grep hca_id
        $RXE gids eth0 | grep -o '^rxe[^	]*'
        ip link set eth0 down
        ip link set eth0 name eth7
        $RXE link show rxe0
        $RXE link del rxe0
        $RXE link show rxe_eth7
        ls rxe
    "#;
    let name = "an_added_name_is_shown_everywhere_until_it_is_deleted";
    let Some(out) = said(name, SETUP, script) else { return };
    let expected = "\
link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0 
rxe0
rxe_lo
hca_id:\trxe0
rxe0
rxe0
link rxe0/1 state DOWN physical_state DISABLED netdev eth7 
link rxe_eth7/1 state DOWN physical_state DISABLED netdev eth7 
links.lock
";
    assert_eq!(out, expected);
}

#[test]
fn a_name_is_of_one_namespace() {
    let script = r#"
        $RXE link add rxe0 type rxe netdev lo
        unshare -n sh -ec 'ip link set lo up; $RXE link'
        $RXE link show lo
    "#;
    let Some(out) = said("a_name_is_of_one_namespace", SETUP, script) else { return };
    let names: Vec<_> = out.lines().filter_map(|l| l.split([' ', '/']).nth(1)).collect();
    assert_eq!(names, ["rxe_lo", "rxe0"]);
}

#[test]
fn what_can_not_be_is_answered_with_what_to_do() {
    let script = r#"
        exec 2>&1
        $RXE link add rxe0 type rxe netdev lo
        for words in 'add rxe0 type rxe netdev eth0' 'add rxe1 type rxe netdev lo' \
            'add rxe1 type rxe netdev eth9' 'add rxe1 type rxe netdev eth1' \
            'add 5 type rxe netdev eth0' 'add rxe1 type siw netdev eth0' \
            'delete rxe1' 'delete rxe_eth0' 'show mlx5_0' 'show rxe0/2' 'show rxe0/x'
        do
            ! $RXE link $words || exit 1
        done
    "#;
    let name = "what_can_not_be_is_answered_with_what_to_do";
    let Some(out) = said(name, SETUP, script) else { return };
    let begins = [
        "rxe: rxe0 exists already, on lo: choose another name, or `rxe link delete rxe0` first",
        "rxe: lo has the device rxe0: `rxe link delete rxe0` first",
        "rxe: no interface \"eth9\": use lo, eth1 or eth0",
        "rxe: interface eth1 has no address, so it is no device: give it one first",
        "rxe: \"5\" cannot be a device's name: it is a number; choose one like rxe0",
        "rxe: there are no links of type \"siw\": use `type rxe`",
        "rxe: no link \"rxe1\": those added are rxe0",
        "rxe: rxe_eth0 was not added: it is there because eth0 has an address",
        "rxe: no device \"mlx5_0\": use rxe_eth0 or rxe0",
        "rxe: rxe0 has no port 2: use port 1",
        "rxe: \"x\" is no port of rxe0: use port 1",
    ];
    assert_eq!(out.lines().count(), begins.len(), "{out}");
    for (line, begin) in out.lines().zip(begins) {
        assert!(line.starts_with(begin), "{line}\nbut expected\n{begin}");
    }
}

#[test]
fn where_names_can_not_be_kept_devices_are_there_all_the_same() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        touch rxe
        $RXE link show lo
        ! $RXE link add rxe0 type rxe netdev lo 2>&1
    "#;
    let name = "where_names_can_not_be_kept_devices_are_there_all_the_same";
    let Some(out) = said(name, LOOPBACK, script) else { return };
    assert!(out.starts_with("link rxe_lo/1 "), "{out}");
    assert!(out.contains("rxe: cannot keep the names of links: "), "{out}");
    let why = "/rxe: it is not a directory: set XDG_RUNTIME_DIR to a directory of your own";
    assert!(out.trim_end().ends_with(why), "{out}");
}

#[test]
fn many_may_add_at_once() {
    let script = r#"
        for i in 1 2 3 4 5 6 7 8; do
            ip link add d$i type veth peer name p$i
            ip address add 10.0.$i.1/24 dev d$i
        done
        for i in 1 2 3 4 5 6 7 8; do
            $RXE link add rxe$i type rxe netdev d$i & all="$all $!"
        done
        for one in $all; do wait $one; done
        $RXE link | grep -o 'link rxe[1-8]/' | wc -l
    "#;
    let Some(out) = said("many_may_add_at_once", SETUP, script) else { return };
    assert_eq!(out.trim(), "8");
}
