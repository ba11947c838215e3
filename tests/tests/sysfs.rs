//! The files of devices in `/sys/class/infiniband`, as programs see them: they follow the names of
//! devices and the counters, and a program that cannot find them is told where they are.

mod common;
use common::alone;

/// The commands of rxe run without the library that `rxe env` preloads into all programs. With the
/// library, doctor took rxe's devices for the kernel's.
#[test]
fn doctor_sees_the_same_with_and_without_the_variables() {
    let script = r#"
        $RXE doctor > without || true
        eval "$($RXE env)"
        $RXE doctor > with || true
        diff without with
        echo same"#;
    let Some(out) = alone("rxe env", "sh", script) else { return };
    assert_eq!(out, "same\n");
}

#[test]
fn a_name_that_is_given_later_is_there_too() {
    // A shell, and a program that runs all the time and reads a line before each check.
    let script = r#"
        eval "$($RXE env)"
        mkfifo look
        python3 -c '
import os
for line in open("look"):
    print(sorted(os.listdir("/sys/class/infiniband")), flush=True)
' > seen & program=$!
        exec 3> look
        echo >&3
        until [ -s seen ]; do kill -0 $program; sleep 0.05; done
        $RXE link add rxe7 type rxe netdev veth0
        ls /sys/class/infiniband
        cat /sys/class/infiniband/rxe7/ports/1/gid_attrs/ndevs/1
        # A look costs nothing if there was one a moment ago.
        tries=0
        until grep -q rxe7 seen || [ $tries -gt 600 ]; do
            tries=$((tries + 1))
            echo >&3
            sleep 0.1
        done
        exec 3>&-
        wait $program
        head -n 1 seen
        tail -n 1 seen
        $RXE link delete rxe7
        ls /sys/class/infiniband
    "#;
    let Some(out) = alone("link add", "python3", script) else { return };
    assert_eq!(out, "rxe7\nveth0\n['rxe_veth0']\n['rxe7']\nrxe_veth0\n");
}

/// The commands for InfiniBand in tutorials that read these files.
#[test]
fn ibstat_and_ibstatus_show_a_device() {
    let Some(out) = alone("ibstat", "ibstat", "$RXE run -- ibstat") else { return };
    assert!(out.contains("CA 'rxe_veth0'") && out.contains("State: Active"), "{out}");
    let Some(out) = alone("ibstatus", "ibstatus", "$RXE run -- ibstatus") else { return };
    assert!(out.contains("'rxe_veth0' port 1") && out.contains("4: ACTIVE"), "{out}");
}

#[test]
fn a_counter_that_stays_open_is_new_when_it_is_read_again() {
    let script = r#"
        cat > kept.py << 'end'
import os, time
path = "/sys/class/infiniband/rxe_veth0/ports/1/hw_counters/sent_pkts"
kept, file = os.open(path, os.O_RDONLY), open(path)
before = int(os.pread(kept, 64, 0))
assert int(file.read()) >= before
def later(read):
    for _ in range(1200):
        value = read()
        if value > before:
            return value
        time.sleep(0.05)
    raise SystemExit("the counter stays at %d" % before)
later(lambda: int(os.pread(kept, 64, 0)))
def again():
    os.lseek(kept, 0, os.SEEK_SET)
    return int(os.read(kept, 64))
value = later(again)
# Only a read from the beginning begins anew.
assert os.read(kept, 64) == b"" and os.pread(kept, 64, 1)[-1:] == b"\n"
file.seek(0)
assert int(file.read()) >= value
print("newer values")
end
        timeout 120 $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 -n 100000000 > server 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        timeout 120 $RXE run -- python3 kept.py > seen 2>&1 & reader=$!
        timeout 120 $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 -n 100000000 10.9.0.1 > client 2>&1 & client=$!
        wait $reader || { cat seen; exit 1; }
        kill $server $client
        cat seen
    "#;
    let Some(out) = alone("kept counters", "ibv_rc_pingpong", script) else { return };
    assert_eq!(out, "newer values\n");
}

/// The symbol identifies programs in Go that call C.
#[test]
fn a_program_that_makes_system_calls_of_its_own_is_told_where_the_files_are() {
    let script = r#"
        cat > go.c << 'end'
#include <stdio.h>
void crosscall2(void) {}
int main(void) { puts(PATH); return 0; }
end
        cc -rdynamic -DPATH='"/sys/class/infiniband"' -o go go.c
        cc -rdynamic -DPATH='"/sys/class/net"' -o other go.c
        cc -DPATH='"/sys/class/infiniband"' -o c go.c
        for program in go other c; do
            $RXE run -- ./$program 2>&1
        done
        $RXE run --explain off -- ./go 2>&1
    "#;
    let Some(out) = alone("Go", "cc", script) else { return };
    let (told, rest) = out.split_once('\n').unwrap();
    assert!(told.starts_with("rxe: files: this program is written in Go"), "{out}");
    assert!(told.contains("/class/infiniband (RXE_SYSFS names that tree)"), "{out}");
    let path = "/sys/class/infiniband\n";
    assert_eq!(rest, format!("{path}/sys/class/net\n{path}{path}"));
}
