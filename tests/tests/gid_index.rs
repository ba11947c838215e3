//! Empty indices of the GID table: explained to the program that was given one, and to its peer,
//! but not to programs that scan the table.

use rxe_harness::c::{Compiled, TUTORIALS};
use rxe_harness::or_skip;

mod common;
use common::alone;

/// 3 is the GID index in most tutorials for cards. Here it is empty, and a GID of zeros is sent to
/// the peer.
#[test]
fn an_empty_gid_index_is_explained_to_the_program_that_was_given_it() {
    const NO_SUCH: &str = "sgid_index: 3: the GID table has no such entry";
    const NO_GRH: &str = "is_global: is 0: RoCE peers are addressed by GID. This program has asked for \
                          its own, so the peer has probably sent a GID of zeros";
    const ZERO: &str =
        "grh.dgid: it is zero, and RoCE needs the peer's GID. If the peer's program sent zeros";
    let Some(c) = or_skip(Compiled::new(&TUTORIALS[..1])) else { return };
    let own = c.path(TUTORIALS[0]).display().to_string();
    let pingpong = "ibv_rc_pingpong -g";
    for (program, server, client, at_server) in [
        (pingpong, 1, 3, NO_GRH),
        (pingpong, 3, 1, NO_SUCH),
        (pingpong, 3, 3, NO_GRH),
        (&*format!("{own} -g"), 1, 3, ZERO),
        // perftest compares the GIDs itself.
        ("ib_write_bw -x", 1, 3, "Incompatibility issue with GID types"),
    ] {
        let script = format!(
            "
            set +e
            timeout 60 $RXE run -- {program} {server} -d rxe_veth0 > server 2>&1 & server=$!
            until ss -Htln 'sport = :18515' | grep -q . || ! kill -0 $server; do
                sleep 0.05
            done
            timeout 60 ip netns exec far $RXE run -- {program} {client} -d rxe_veth1 \
                10.9.0.1 > client 2>&1
            wait $server
            echo '-- server'; cat server
            echo '-- client'; cat client"
        );
        let test = format!("{program} {server} and {client}");
        let name = program.split(' ').next().unwrap_or_default();
        let Some(out) = alone(&test, name, &script) else { continue };
        let (of_server, of_client) = out.split_once("-- client").unwrap();
        for (said, index, device, ip) in [
            (of_server, server, "rxe_veth0", "1 (10.9.0.1)"),
            (of_client, client, "rxe_veth1", "1 (10.9.0.2)"),
        ] {
            let told = format!("rxe: ibv_query_gid: GID index {index} of {device} is empty");
            let told: Vec<_> = said.lines().filter(|line| line.starts_with(&told)).collect();
            assert_eq!(told.len(), usize::from(index == 3), "{test}: {out}");
            assert!(told.iter().all(|line| line.contains(ip)), "{test}: {out}");
        }
        assert_eq!(of_server.matches(at_server).count(), 1, "{test}: {out}");
    }
}

/// For a program that scans the table, empty indices are not a mistake. UCX and Open MPI: `ucx.rs`,
/// `mpi.rs`.
#[test]
fn programs_that_scan_the_gid_table_are_told_nothing() {
    for (program, script) in [
        ("ibv_devinfo", "$RXE run -- ibv_devinfo -v"),
        ("ucx_info", "$RXE run -- ucx_info -d"),
        ("fi_info", "$RXE run -- fi_info -p verbs"),
        (
            "ib_send_bw",
            "timeout 60 $RXE run -- ib_send_bw -n 100 > server 2>&1 & server=$!
            until ss -Htln 'sport = :18515' | grep -q .; do
                kill -0 $server
                sleep 0.05
            done
            timeout 60 ip netns exec far $RXE run -- ib_send_bw -n 100 10.9.0.1
            wait $server
            cat server",
        ),
    ] {
        let script = format!("exec 2>&1\n{script}");
        let Some(out) = alone(&format!("{program} scans"), program, &script) else { continue };
        assert!(
            out.contains("rxe_veth0") && !out.contains("rxe: ibv_query_gid"),
            "{program}: {out}"
        );
    }
}
