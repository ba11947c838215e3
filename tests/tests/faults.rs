//! Tests of `--fault` of the commands, and of `RXE_FAULT` for unmodified programs.

mod common;

use common::{alone, in_namespace};
use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

/// Returns the numbers in the reports of a fault: the packets that were hit, and those that could
/// have been.
fn hits(out: &str, fault: &str) -> Vec<[u64; 2]> {
    let lines = out.lines().filter_map(|line| line.split_once(fault)?.1.strip_prefix(" hit "));
    lines
        .map(|counts| {
            let mut numbers = counts.split(' ').filter_map(|word| word.parse().ok());
            [(); 2].map(|()| numbers.next().expect("two numbers"))
        })
        .collect()
}

#[test]
fn a_command_loses_packets_over_each_backend_and_over_shared_memory() {
    let script = r#"
        run() {
            echo "-- $*"
            $RXE perf send bw -d veth0 "$@" > server 2>&1 & server=$!
            until ss -Htln "sport = :18515" | grep -q .; do kill -0 $server; sleep 0.02; done
            $RXE perf send bw -n 500 -s 4096 "$client" 10.9.0.1 \
                --fault 'out: drop 2%; dup 1%; only opcode=send' --seed 1 > client 2>&1
            wait $server
            cat client
        }
        client=-F
        run
        run --no-shm
        client=--no-shm
        run --backend packet
    "#;
    let Some(out) = in_namespace("faults over each backend", script) else { return };
    let out =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let lost = hits(&out, "out: drop 2% only opcode=send");
    assert_eq!(lost.len(), 3, "{out}");
    for [hit, seen] in lost {
        // 500 messages of at least one packet each, and retransmissions.
        assert!(seen >= 500 && (seen / 100..=seen / 25).contains(&hit), "{out}");
    }
}

#[test]
fn a_command_loses_packets_at_an_address_of_its_own() {
    let script = r#"
        export XDG_RUNTIME_DIR=$PWD
        run() {
            $RXE perf send bw -d $1 > server 2>&1 & server=$!
            until ss -Htln "sport = :18515" | grep -q .; do kill -0 $server; sleep 0.02; done
            $RXE perf send bw -n 500 -s 4096 -F -d $2 127.0.0.1 \
                --fault 'out: drop 2%; dup 1%; only opcode=send' --seed 1 > client 2>&1
            wait $server
            cat client
        }
        for n in 1 2; do
            $RXE link add own$n type rxe l2 qemu:$PWD/wire address 10.8.0.$n/24 nodad
        done
        run own1 own2
        if ip tuntap add dev tap0 mode tap 2> no-tap; then
            ip link set tap0 up
            ip address add 10.7.0.1/24 dev tap0
            $RXE link add own3 type rxe l2 tap:tap0 address 10.7.0.2/24 nodad
            run tap0 own3
        else
            echo "no TAP: $(cat no-tap)"
        fi
    "#;
    let name = "faults at an address of its own";
    let Some(out) = in_namespace(name, script) else { return };
    let out =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let lost = hits(&out, "out: drop 2% only opcode=send");
    let devices = match out.split_once("no TAP: ") {
        Some((_, why)) => {
            rxe_test_support::skipped(name, why.trim());
            1
        }
        None => 2,
    };
    assert_eq!(lost.len(), devices, "{out}");
    for [hit, seen] in lost {
        assert!(seen >= 500 && (seen / 100..=seen / 25).contains(&hit), "{out}");
    }
}

#[test]
fn an_unmodified_program_runs_with_faults() {
    let script = r#"
        timeout 20 $RXE run --fault 'out: dup 20% only opcode=send after 2' --seed 7 -- \
            ibv_rc_pingpong -d rxe_veth0 -g 1 -n 50 > server 2>&1 & server=$!
        until ss -Htln "sport = :18515" | grep -q .; do kill -0 $server; sleep 0.02; done
        timeout 20 $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 -n 50 10.9.0.1 > client 2>&1
        wait $server
        cat server
    "#;
    let Some(out) = alone("rxe run --fault", "ibv_rc_pingpong", script) else { return };
    let fault = "out: dup 20% only opcode=send after 2";
    assert!(out.contains(&format!("rxe: fault on rxe_veth0: {fault} hit ")), "{out}");
    let [[hit, seen]] = hits(&out, fault)[..] else { panic!("{out}") };
    assert!(hit > 0 && hit < seen && seen >= 200, "{out}");
}

#[test]
fn a_seed_is_chosen_and_said_and_a_mistake_is_said_with_its_place() {
    let script = r#"
        $RXE run --fault 'drop 1%' -- true
        $RXE env --fault 'delay 50us±10' --seed 5 | grep FAULT
        $RXE run --fault 'drop 1%; dorp 2%' -- true && exit 1
        $RXE pingpong --seed 5 && exit 1
        # A client without a server ends at once, and has opened its device.
        RXE_FAULT='drop 1' $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 127.0.0.1
        RXE_FAULT='drop x' $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1
        true
    "#;
    let script = format!("exec 2>&1; set +e; {script}");
    let Some(out) = alone("rxe run --fault", "ibv_rc_pingpong", &script) else { return };
    for said in [
        "rxe: the seed of the faults is ",
        "export RXE_FAULT='delay 50us±10us 100%'",
        "column 10: `dorp`: not a fault: did you mean `drop`? Otherwise write drop",
        "--fault",
        "RXE_FAULT=drop x: column 6: `x`: neither an amount",
        // It does not wait for a client without the faults.
        "Couldn't get context for rxe_veth0",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
}

#[test]
fn the_seed_of_the_environment_is_used_and_a_wrong_one_refused() {
    let script = r#"
        RXE_SEED=7 $RXE env --fault 'drop 1%' | grep SEED
        RXE_SEED=7 $RXE env --fault 'drop 1%' --seed 8 | grep SEED
        RXE_SEED= $RXE env --fault 'wc=RETRY_EXC@msg 3' | grep SEED
        RXE_SEED=x $RXE run --fault 'drop 1%' -- echo the program runs
        echo "exit code $?"
        # The library alone: a server waits for no client if it has no device.
        RXE_FAULT='drop 1%' RXE_SEED=-1 $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1
        true
    "#;
    let script = format!("exec 2>&1; set +e; {script}");
    let Some(out) = alone("RXE_SEED", "ibv_rc_pingpong", &script) else { return };
    let what = "a seed is a whole number from 0 to 18446744073709551615";
    for said in [
        "export RXE_SEED='7'\nexport RXE_SEED='8'\nexport RXE_SEED='0'\n".to_owned(),
        format!("rxe: RXE_SEED=x: {what}\nexit code 2\n"),
        format!("RXE_SEED=-1: {what}\n"),
        "Couldn't get context for rxe_veth0".to_owned(),
    ] {
        assert!(out.contains(&said), "{said}: {out}");
    }
    assert!(!out.contains("the seed of the faults is"), "{out}");
}

#[test]
fn a_c_program_gets_exactly_the_faults_at_the_verbs_that_are_asked_for() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/faults.c"])) else { return };
    let program = c.path("tests/c/faults.c").display().to_string();
    let run = |fault: &str, events: u32| {
        let script = format!(
            "exec 2> errors; timeout 30 $RXE run --fault '{fault}' --seed 1 -- {program} rxe_veth0 1 {events}
            grep '^rxe: fault' errors; grep -c 'on purpose' errors || true"
        );
        alone(fault, "cc", &script)
    };
    let fault = "wc=RNR_RETRY_EXC@msg 3; errno=ENOMEM@ibv_reg_mr#2; errno=EAGAIN@ibv_post_send#2; \
                 errno=EIO@ibv_poll_cq#1; errno=EBUSY@ibv_destroy_qp#1; async=port_down@100ms; async=GID_CHANGE@150ms; \
                 errno=ENOMEM@ibv_alloc_pd#3";
    let Some(out) = run(fault, 2) else { return };
    let said = "region 1: ok\n\
                region 2: Cannot allocate memory\n\
                region 3: ok\n\
                post 2: Resource temporarily unavailable\n\
                poll: Input/output error\n\
                send 1: success\n\
                send 2: success\n\
                send 3: RNR retry counter exceeded\n\
                send 4: Work Request Flushed Error\n\
                send 5: Work Request Flushed Error\n\
                state: ERR\n\
                event: port error, port 1\n\
                event: GID table change, port 1\n\
                destroy: Device or resource busy\n\
                rxe: fault on rxe_veth0: wc=RNR_RETRY_EXC@msg 3 hit 1 request\n\
                rxe: fault on rxe_veth0: async=PORT_ERR@100ms came 1 time\n\
                rxe: fault on rxe_veth0: async=GID_CHANGE@150ms came 1 time\n\
                rxe: fault: errno=ENOMEM@ibv_reg_mr#2 hit 1 of 3 calls\n\
                rxe: fault: errno=EAGAIN@ibv_post_send#2 hit 1 of 6 calls\n\
                rxe: fault: errno=EIO@ibv_poll_cq#1 hit 1 of CALLS calls\n\
                rxe: fault: errno=EBUSY@ibv_destroy_qp#1 hit 1 of 2 calls\n\
                rxe: fault: errno=ENOMEM@ibv_alloc_pd#3 hit 0 of 1 call\n\
                5\n";
    // The number of polls depends on time.
    let (before, polls) = out.split_once("ibv_poll_cq#1 hit 1 of ").expect(&out);
    let polls = polls.trim_start_matches(|c: char| c.is_ascii_digit());
    assert_eq!(format!("{before}ibv_poll_cq#1 hit 1 of CALLS{polls}"), said);
    // Delayed completions wake a thread that waits for them, and none is missed.
    let Some(out) = run("slow cq 2ms", 0) else { return };
    assert!(out.contains("send 5: success\nstate: not ERR\n"), "{out}");
    let held = "rxe: fault on rxe_veth0: slow cq 2ms held back ";
    let held: u32 = out.split_once(held).unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!((5..=10).contains(&held), "{out}");
}

#[test]
fn a_program_of_librdmacm_gets_exactly_the_errno_that_is_asked_for() {
    let script = "timeout 20 $RXE run --fault 'errno=ENODEV@rdma_resolve_addr#1' -- \
                  rping -c -a 10.9.0.1 2>&1 || true";
    let Some(out) = alone("errno of librdmacm", "rping", script) else { return };
    assert!(out.contains("rdma_resolve_addr: No such device"), "{out}");
    let why = "a fault on purpose (errno=ENODEV@rdma_resolve_addr#1)";
    assert!(out.contains(why), "{out}");
}

#[test]
fn ib_send_bw_gets_exactly_the_status_that_is_asked_for() {
    for (status, number) in [("RETRY_EXC", 12), ("REM_ACCESS", 10)] {
        let script = format!(
            "timeout 30 $RXE run -- ib_send_bw -d rxe_veth0 -x 1 -F -n 500 > server 2>&1 & server=$!
            until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.02; done
            timeout 30 $RXE run --fault 'wc={status}@msg 100' -- \\
                ib_send_bw -d rxe_veth0 -x 1 -F -n 500 10.9.0.1 2>&1 || true
            kill $server || true"
        );
        let Some(out) = alone(status, "ib_send_bw", &script) else { return };
        assert!(out.contains("Completion with error at client"), "{out}");
        assert!(out.contains(&format!("Failed status {number}:")), "{out}");
        assert!(out.contains(&format!("wc={status}@msg 100 hit 1 request")), "{out}");
    }
}
