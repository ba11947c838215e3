//! Explanations of mistakes: each mistake of `tests/c/mistakes.c` is explained once on stderr, with
//! the queue pair, the value and the remedy; and not at all if explanations are switched off.

use rxe_harness::c::{Compiled, TUTORIALS};
use rxe_harness::or_skip;

mod common;
use common::alone;

/// The end that prints an explanation: `A` is the requester, `B` the responder.
#[derive(Clone, Copy, Debug)]
enum Who {
    A,
    B,
    /// Any end: no queue pair is named, or one whose number the program does not print.
    Any,
}
use Who::{A, Any, B};

/// A mistake and its explanations: the end that prints each, and parts of the line.
type Mistake = (&'static str, &'static [(Who, &'static [&'static str])]);

/// Mistakes after which the program ends by itself.
const ENDING: &[Mistake] = &[
    (
        "null-device",
        &[
            (Any, &["ibv_open_device: device is NULL", "devices here are: rxe_veth0"]),
            (Any, &["ibv_alloc_pd: the context (ibv_open_device) is NULL"]),
            (Any, &["ibv_create_cq: the context (ibv_open_device) is NULL"]),
            (Any, &["ibv_reg_mr: the protection domain is NULL"]),
        ],
    ),
    (
        "port",
        &[
            (Any, &["ibv_query_port: port 0: the device has only port 1"]),
            (Any, &["ibv_modify_qp: QP 0x", "port_num: 2: the device has one port, 1"]),
        ],
    ),
    ("no-grh", &[(Any, &["QP 0x", "is_global: is 0", "set it to 1 and fill in grh", "-g INDEX"])]),
    (
        "gid-index",
        &[(Any, &["QP 0x", "sgid_index: 99: the GID table has no such entry", "1 (10.9.0.1)"])],
    ),
    (
        "gid-family",
        &[(Any, &["QP 0x", "fd09::1 and peer 10.9.0.1 are of different families: choose a GID"])],
    ),
    (
        "no-dgid",
        &[(
            Any,
            &["QP 0x", "grh.dgid: it is zero", "If the peer's program sent zeros", "show_gids"],
        )],
    ),
    (
        "mtu",
        &[(Any, &["QP 0x", "path_mtu: 4096 does not fit the link", "is 1024 (active_mtu", "use"])],
    ),
    (
        "missing-bits",
        &[(
            Any,
            &["QP 0x", "INIT to RTR", "IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC: set them"],
        )],
    ),
    (
        "rts-before-rtr",
        &[(Any, &["QP 0x", "cannot go from INIT to RTS: the order is RESET, INIT, RTR, RTS"])],
    ),
    (
        "reset",
        &[
            (Any, &["post_send is not allowed", "in RESET: bring it to RTS first"]),
            (Any, &["post_recv is not allowed", "in RESET: bring it to INIT first"]),
        ],
    ),
    ("rights-of-region", &[(Any, &["ibv_reg_mr", "REMOTE_WRITE", "need LOCAL_WRITE", "add it"])]),
    (
        "pd-in-use",
        &[(Any, &["ibv_dealloc_pd: 2 memory regions and 1 shared receive queue made in the"])],
    ),
    (
        "queues-in-use",
        &[
            (
                Any,
                &["ibv_destroy_cq", "in use by 2 queue pairs and 1 shared receive queue: destroy"],
            ),
            (Any, &["ibv_destroy_srq", "in use by 2 queue pairs: destroy these first"]),
            (Any, &["ibv_close_xrcd", "in use by 1 shared receive queue: destroy these first"]),
            (Any, &["ibv_destroy_comp_channel", "in use by 2 completion queues: destroy these"]),
        ],
    ),
    ("inline", &[(A, &["2000 bytes of inline data", "made for 64 (max_inline_data)"])]),
    ("queue-full", &[(A, &["the send queue is full (4 requests): poll for completions first"])]),
    (
        "rnr",
        &[(A, &["a SEND to QP 0x", "10.9.0.1 had no receive posted", "call ibv_post_recv before"])],
    ),
    (
        "rkey",
        &[
            (B, &["the peer asked for 64 bytes", "no memory region has this key", "2 regions"]),
            (
                A,
                &["an RDMA WRITE to QP", "does not let it use 64 bytes", "IBV_ACCESS_REMOTE_WRITE"],
            ),
            (A, &["wr_id 0xa", "RDMA WRITE of it failed with \"remote access error\"", "look for"]),
            (B, &["wr_id 0xb", "its peer's request was refused (rkey refused"]),
        ],
    ),
    (
        "rkey-reversed",
        &[
            (B, &["The key in reverse byte order, 0x", "is one: send it with htonl()"]),
            (A, &["does not let it use 64 bytes", "byte order (htobe64, htonl)"]),
        ],
    ),
    (
        "address",
        &[
            (B, &["reaches outside the memory region. The region is 4096 bytes from 0x"]),
            (A, &["does not let it use 64 bytes", "check that its region is that long"]),
        ],
    ),
    (
        "two-processes",
        &[
            (B, &["reaches outside the memory region. The region is 4096 bytes from 0x"]),
            (A, &["does not let it use 64 bytes", "check that its region is that long"]),
            (A, &["wr_id 0xb", "an RDMA WRITE of it failed with"]),
            (B, &["wr_id 0xb", "its peer's request was refused"]),
        ],
    ),
    (
        "address-reversed",
        &[
            (B, &["The address has the wrong byte order: send it with htobe64()"]),
            (A, &["does not let it use 64 bytes"]),
        ],
    ),
    (
        "right",
        &[
            (B, &["not registered with this access right", "with IBV_ACCESS_LOCAL_WRITE only"]),
            (A, &["an RDMA READ to QP", "was registered with IBV_ACCESS_REMOTE_READ"]),
        ],
    ),
    (
        "qp-access",
        &[
            (B, &["qp_access_flags do not enable this", "add IBV_ACCESS_REMOTE_READ, _WRITE or"]),
            (A, &["an RDMA WRITE to QP", "QP was not set up to accept (qp_access_flags)"]),
        ],
    ),
    (
        "lkey",
        &[(A, &["names 64 bytes at 0x", "lkey 0x00000000: no memory region", "that ibv_reg_mr"])],
    ),
    (
        "local-range",
        &[(A, &["names 4097 bytes", "outside the memory region. The region is 4096 bytes"])],
    ),
    ("no-reads", &[(A, &["an RDMA READ to QP", "although max_rd_atomic is 0"])]),
    (
        "cq-small",
        &[
            (A, &["was full and completions are lost", "create it with room (cqe)"]),
            (Any, &["ibv_poll_cq: the completion queue overflowed: make it deeper than 1"]),
        ],
    ),
    (
        "receive-small",
        &[
            (B, &["longer than the receive posted for it; post larger receives, or send less"]),
            (A, &["a SEND to QP", "a message longer than its receive"]),
        ],
    ),
    ("psn", &[(A, &["a SEND to QP", "its rq_psn must be the sq_psn of this side"])]),
    ("psn-behind", &[(A, &["a SEND to QP", "its rq_psn must be the sq_psn of this side"])]),
    (
        "service",
        &[
            (B, &["(UC, in RTS)", "make both ends with the same qp_type"]),
            (A, &["a SEND to QP", "no acknowledgement came"]),
        ],
    ),
    (
        "no-answer",
        &[
            (A, &["at 10.9.0.99 failed", "nothing ever came from there", "UDP port 4791 is open"]),
            (Any, &["could not leave rxe_veth0: the system has no route there"]),
        ],
    ),
    (
        "ended",
        &[
            (A, &["a SEND to QP 0x", "The peer has answered before: has its program ended"]),
            (Any, &["a queue pair of this process keeps sending to QP 0x", "program has ended"]),
        ],
    ),
    ("large", &[(Any, &["ibv_create_qp: max_inline_data: 4096 asked for, at most 512 allowed"])]),
    // Libraries find the limit by trying.
    ("found-by-trying", &[]),
    (
        "not-ready",
        &[
            (
                B,
                &["(RC, in INIT)", "the peer has been sending for some time: bring the queue pair"],
            ),
            (A, &["a SEND to QP", "is in RTR or RTS with this side's GID and QP number"]),
        ],
    ),
    (
        "datagram-room",
        &[(B, &["a receive with wr_id 0xb", "longer than the receive", "40 bytes more than the"])],
    ),
    (
        "datagram-long",
        &[(A, &["a SEND with wr_id 0xa failed", "not be longer than the path MTU (active_mtu"])],
    ),
    (
        "dest-qpn",
        &[
            (
                Any,
                &[
                    "keeps sending to QP 0x",
                    "which no process on this address has: check dest_qp_num",
                ],
            ),
            (A, &["a SEND to QP", "nothing ever came from there"]),
        ],
    ),
    ("no-address-handle", &[(A, &["a datagram needs an address handle (wr.ud.ah)"])]),
];

/// Mistakes after which the program waits forever. It is killed when all explanations have been
/// printed.
const WAITING: &[Mistake] = &[
    (
        "rnr-for-ever",
        &[
            (A, &["the peer has had no receive posted", "must call ibv_post_recv, once for each"]),
            (B, &["has found no receive posted here", "call ibv_post_recv before the peer sends"]),
        ],
    ),
    (
        "qkey",
        &[(
            B,
            &["(UD, in RTS): the queue key does not match", "remote_qkey in the sender's request"],
        )],
    ),
    (
        "no-datagram-receive",
        &[(B, &["no receive request is posted", "post receives before the peer sends"])],
    ),
    ("unarmed", &[(Any, &["nobody has asked for", "Call ibv_req_notify_cq before waiting"])]),
];

#[test]
fn each_mistake_is_explained_once() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/mistakes.c"])) else { return };
    let program = c.path("tests/c/mistakes.c").display().to_string();
    for (name, said) in ENDING {
        // A route that the kernel itself refuses.
        let script = format!(
            "ip route add unreachable 10.9.0.99
            timeout 60 $RXE run -- {program} rxe_veth0 {name} 2>&1"
        );
        let Some(out) = alone(name, "cc", &script) else { return };
        assert!(out.ends_with("made\n"), "{name}: {out}");
        check(name, said, &out);
    }
}

#[test]
fn who_waits_for_ever_is_told_why() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/mistakes.c"])) else { return };
    let program = c.path("tests/c/mistakes.c").display().to_string();
    for (name, said) in WAITING {
        let script = format!(
            "timeout 60 $RXE run -- {program} rxe_veth0 {name} > out 2>&1 & program=$!
            until [ $(grep -c ^rxe: out) -ge {} ]; do
                kill -0 $program
                sleep 0.05
            done
            kill $program
            cat out",
            said.len()
        );
        let Some(out) = alone(name, "cc", &script) else { return };
        check(name, said, &out);
    }
}

#[test]
fn nothing_is_said_where_that_is_switched_off() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/mistakes.c"])) else { return };
    let program = c.path("tests/c/mistakes.c").display().to_string();
    let names: Vec<&str> = ENDING.iter().map(|(name, _)| *name).collect();
    // A few at a time, because a script has a time limit.
    for names in names.chunks(6) {
        let script = format!(
            "for name in {}; do
                timeout 60 $RXE run --explain off -- {program} rxe_veth0 $name 2>&1
            done",
            names.join(" ")
        );
        let Some(out) = alone("explain off", "cc", &script) else { return };
        assert_eq!(out.matches("made\n").count(), names.len(), "{out}");
        assert!(!out.contains("rxe:"), "{out}");
    }
}

#[test]
fn programs_that_do_it_right_are_told_nothing() {
    for (listens, server, client) in [
        (
            "ss -Htln 'sport = :18515' | grep -q .",
            "ibv_rc_pingpong -d rxe_veth0 -g 1",
            "ibv_rc_pingpong -d rxe_veth1 -g 1 10.9.0.1",
        ),
        (
            "ss -Htln 'sport = :18515' | grep -q .",
            "ibv_ud_pingpong -d rxe_veth0 -g 1 -e",
            "ibv_ud_pingpong -d rxe_veth1 -g 1 -e 10.9.0.1",
        ),
        // The program ends with a disconnect, and therefore with flushed requests.
        ("listens 10.9.0.1 && sleep 1", "rping -s -C 10 -V", "rping -c -a 10.9.0.1 -C 10 -V"),
    ] {
        let script = format!(
            "timeout 60 $RXE run -- {server} > server 2>&1 & server=$!
            until {listens}; do
                kill -0 $server
                sleep 0.05
            done
            timeout 60 ip netns exec far $RXE run -- {client} 2>&1
            wait $server
            cat server"
        );
        let program = client.split(' ').next().unwrap_or_default();
        let Some(out) = alone(client, program, &script) else { continue };
        assert!(!out.contains("rxe: "), "{client}: {out}");
    }
}

#[test]
fn everything_is_said_where_that_is_asked_for() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/mistakes.c"])) else { return };
    let program = c.path("tests/c/mistakes.c").display().to_string();
    let script = format!("timeout 60 $RXE run --explain all -- {program} rxe_veth0 rkey 2>&1");
    let Some(out) = alone("explain all", "cc", &script) else { return };
    for part in ["rxe: event: rxe_veth0: QP 0x", "NAKed at PSN", "peer NAKed PSN", "request failed"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}

/// Checks that all expected explanations were printed once, by the right end, and no others.
#[track_caller]
fn check(name: &str, said: &[(Who, &[&str])], out: &str) {
    let number = |before: &str| {
        let at = out.find(before)? + before.len();
        out.get(at..at + 8)
    };
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("rxe: ")).collect();
    for (who, parts) in said {
        let of = match who {
            A => number("a is QP "),
            B => number("b is QP "),
            Any => Some(""),
        };
        let of = of.unwrap_or_else(|| panic!("{name} tells no numbers: {out}"));
        // A line also names the other queue pair as that of the peer.
        let own = |line: &&&str| {
            of.is_empty() || line.find("QP 0x").is_some_and(|at| line[at + 3..].starts_with(of))
        };
        let found = lines.iter().filter(|line| parts.iter().all(|part| line.contains(part)));
        assert_eq!(found.filter(own).count(), 1, "{name}: {parts:?} by {who:?} in {out}");
    }
    assert_eq!(lines.len(), said.len(), "{name}: {out}");
}

#[test]
fn a_connection_that_fails_is_explained() {
    let Some(c) = or_skip(Compiled::new(&TUTORIALS[1..2])) else { return };
    let program = c.path(TUTORIALS[1]).display().to_string();
    // A host without a listener on the port; a host that does not exist; an address that no device
    // can reach.
    let script = format!(
        r#"
        set +e
        timeout 60 ip netns exec far $RXE run -- rping -s -p 7000 > server 2>&1 & server=$!
        until listens 10.9.0.2; do
            kill -0 $server || {{ cat server; exit 1; }}
            sleep 0.05
        done
        sleep 1
        timeout 60 $RXE run -- {program} -c 10.9.0.2 2>&1
        kill $server
        timeout 60 $RXE run -- {program} -c 10.9.0.99 > silent 2>&1 & program=$!
        until grep -q ^rxe: silent; do
            kill -0 $program || break
            sleep 0.05
        done
        kill $program
        cat silent
        timeout 60 $RXE run --device lo -- {program} -c 10.9.0.2 2>&1
        true
        "#
    );
    let Some(out) = alone("connections", "rping", &script) else { return };
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("rxe: ")).collect();
    let expected = [
        "10.9.0.2:20079 refused: there is a host, but no program listens there on that port of RDMA_PS_TCP",
        "10.9.0.99:20079 has not answered yet: check that a program with an RDMA device runs",
        "the system would send there from an address that no device has: see `rxe devices`",
    ];
    assert_eq!(lines.len(), expected.len(), "{out}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part}: {out}");
    }
}
