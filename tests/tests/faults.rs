//! `--fault` of the commands, and `RXE_FAULT` of unmodified programs.

mod common;

use common::{alone, in_namespace};

/// The lines that say what faults did: the packets that were hit, and those that could have been.
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
            until ss -Htln "sport = :18515" | grep -q .; do sleep 0.02; done
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
        // 500 messages of at least one packet each, and what was sent again.
        assert!(seen >= 500 && (seen / 100..=seen / 25).contains(&hit), "{out}");
    }
}

#[test]
fn an_unmodified_program_runs_with_faults() {
    let script = r#"
        timeout 20 $RXE run --fault 'out: dup 20% only opcode=send after 2' --seed 7 -- \
            ibv_rc_pingpong -d rxe_veth0 -g 1 -n 50 > server 2>&1 & server=$!
        until ss -Htln "sport = :18515" | grep -q .; do sleep 0.02; done
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
        RXE_FAULT='drop 1' RXE_SEED=x $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 127.0.0.1
        RXE_FAULT='drop x' $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 127.0.0.1
        true
    "#;
    let script = format!("exec 2>&1; set +e; {script}");
    let Some(out) = alone("rxe run --fault", "ibv_rc_pingpong", &script) else { return };
    for said in [
        "rxe: the seed of the faults is ",
        "export RXE_FAULT='delay 50us±10us 100%'",
        "column 10: `dorp`: not a fault: write drop",
        "--fault",
        "rxe: RXE_SEED is not a whole number: the seed of the faults is ",
        "rxe: RXE_FAULT=drop x: column 6: `x`: not a condition",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
}
