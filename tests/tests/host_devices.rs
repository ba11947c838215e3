//! The view of RDMA devices, other than by verbs, of programs under `rxe run`: the answers to
//! `rdma` of iproute2; and the host's own devices, which are hidden, or visible with
//! `--with-host-devices`.

mod common;
use common::{Dir, Where, alone, both, installed, rxe};

use std::fs;

use rxe_harness::c::Compiled;
use rxe_harness::vm::{Cmd, Kernel, Net, Output, Spec, Vm};
use rxe_harness::{libs, or_skip};

#[test]
fn rdma_of_iproute2_tells_of_devices_objects_and_counters() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE perf send bw -D 200 > server 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        $RXE perf send bw -D 200 10.9.0.1 > client 2>&1 & client=$!
        $RXE run -- rping -s -a 10.9.0.1 -C 1 > rping 2>&1 & rping=$!
        until listens 10.9.0.1; do kill -0 $rping; sleep 0.05; done
        eval "$($RXE env)"
        until rdma -j statistic show link rxe_veth0/1 | grep -q '"rdma_recvs":[1-9]'; do sleep 0.05; done
        rdma dev
        rdma -j link
        rdma resource show rxe_veth0
        rdma resource show qp pid $client > list
        qpn=$(grep -o ' lqpn [0-9]*' list)
        cat list
        rdma resource show qp $qpn | wc -l
        for kind in cq mr pd ctx; do rdma -j resource show $kind pid $server; done
        rdma resource show cm_id
        rdma resource show srq
        rdma system
        rdma dev show rxe_none || echo refused
        rdma dev set rxe_veth0 name other || echo refused
        kill $server $client $rping
        wait || true
    "#;
    let Some(out) = alone("rdma", "rdma", script) else { return };
    let lines: Vec<_> = out.lines().collect();
    let guid = "5054:00ff:fe00:0001";
    let device = format!("node_guid {guid} sys_image_guid {guid}");
    assert!(lines[0].contains(": rxe_veth0: node_type ca ") && lines[0].contains(&device), "{out}");
    let link = r#""ifname":"rxe_veth0","port":1,"state":"ACTIVE","physical_state":"LINK_UP""#;
    assert!(lines[1].starts_with("[{") && lines[1].contains(link), "{out}");
    assert!(lines[2].contains("rxe_veth0: pd 3 cq 2 qp 2 cm_id 1 mr 2 ctx 3 srq 0"), "{out}");
    assert!(
        lines[3].starts_with("link rxe_veth0/1 lqpn ") && lines[3].contains(" type RC state RTS ")
    );
    assert_eq!(lines[4], "1", "one queue pair of this number: {out}");
    for (line, text) in
        lines[5..9].iter().zip(["\"users\":1", "\"mrlen\":", "\"users\":2", "\"ctxn\":"])
    {
        assert!(line.starts_with("[{") && line.contains(text), "{text}: {out}");
        assert!(line.contains("\"comm\":\"rxe\""), "{out}");
    }
    assert!(
        lines[9].contains(" state LISTEN ps TCP ") && lines[9].contains("src-addr 0.0.0.0:7174")
    );
    assert!(lines[10].starts_with("netns exclusive"), "{out}");
    assert_eq!(lines[11..], ["refused", "refused"], "{out}");
}

#[test]
fn devices_of_the_host_are_hidden() {
    let script = "
        export XDG_RUNTIME_DIR=\"$PWD\"
        mount -t tmpfs none /sys/class
        mount -t tmpfs none /sys/bus
        pci=/sys/bus/pci/devices/0000:01:00.0/infiniband
        mkdir -p /sys/class/infiniband/mlx5_0 /sys/class/infiniband_verbs/uverbs0 $pci/mlx5_0
        mkdir -p /sys/class/infiniband_mad/umad0 /sys/class/net/eth0/device/infiniband/mana_0
        echo mlx5_0 > /sys/class/infiniband_verbs/uverbs0/ibdev
        ls -d /sys/class/infiniband*/* $pci/*
        echo under rxe run
        for dir in /sys/class/infiniband /sys/class/infiniband_verbs; do $RXE run -- ls $dir; done
        $RXE run -- cat /sys/class/infiniband_verbs/uverbs0/ibdev
        for dir in /sys/class/infiniband_mad $pci /sys/class/net/eth0/device/infiniband; do
            ! $RXE run -- ls $dir 2> error
        done
        $RXE run -- ls /sys/class/net/eth0
        $RXE run -- ibv_devices
        $RXE run -- rdma dev
        $RXE run -- ls -l /sys/class/infiniband 2>&1
        $RXE run -- bash -c 'cd /sys/class/infiniband/rxe_veth0 && [ -r node_type ] && cat node_type'
    ";
    let Some(out) = alone("hidden", "ibv_devices", script) else { return };
    let (host, ours) = out.split_once("under rxe run\n").unwrap();
    assert_eq!(host.lines().count(), 4, "{out}");
    assert!(ours.starts_with("rxe_veth0\nabi_version\nuverbs0\nrxe_veth0\ndevice\n"), "{out}");
    assert!(!ours.contains("mlx5") && !ours.contains("mana"), "{out}");
    assert!(
        ours.contains("rxe_veth0       \t5054") && ours.contains(": rxe_veth0: node_type"),
        "{out}"
    );
    assert!(ours.ends_with(" rxe_veth0\n1: CA\n") && !ours.contains("No such file"), "{out}");
}

#[test]
fn files_of_the_host_s_devices_are_beside_ours() {
    let script = "
        export XDG_RUNTIME_DIR=\"$PWD\"
        mount -t tmpfs none /sys/class
        pci=/sys/class/net/eth0/device/infiniband
        mkdir -p /sys/class/infiniband/mlx5_0/ports/1/counters $pci/mlx5_0
        mkdir -p /sys/class/infiniband_verbs/uverbs0 /sys/class/infiniband_mad/umad0
        echo mlx5_0 > /sys/class/infiniband_verbs/uverbs0/ibdev
        echo 17 > /sys/class/infiniband/mlx5_0/ports/1/counters/link_downed
        ! $RXE run --as mlx5 --with-host-devices -- true 2> error
        grep -q 'cannot be used with' error
        ! RXE_AS=mlx5 $RXE run --with-host-devices -- true 2> error
        grep -q 'both be mlx5_0' error
        eval \"$($RXE env --with-host-devices)\"
        ls /sys/class/infiniband /sys/class/infiniband_verbs /sys/class/infiniband_mad $pci
        cat /sys/class/infiniband_verbs/uverbs0/ibdev /sys/class/infiniband_verbs/uverbs1000/ibdev
        for device in mlx5_0 rxe_veth0; do
            cat /sys/class/infiniband/$device/ports/1/counters/link_downed
        done
        readlink /sys/class/infiniband/mlx5_0
    ";
    let Some(out) = alone("beside", "ibv_devices", script) else { return };
    let lists = "/sys/class/infiniband:\nmlx5_0\nrxe_veth0\n\n\
         /sys/class/infiniband_mad:\numad0\n\n\
         /sys/class/infiniband_verbs:\nabi_version\nuverbs0\nuverbs1000\n\n\
         /sys/class/net/eth0/device/infiniband:\nmlx5_0\n";
    assert_eq!(out, format!("{lists}mlx5_0\nrxe_veth0\n17\n0\n/sys/class/infiniband/mlx5_0\n"));
}

#[test]
fn where_the_host_has_no_devices_there_are_ours() {
    let script = "
        $RXE run -- ibv_devices > without 2>&1
        $RXE run --with-host-devices -- ibv_devices > with 2>&1
        cmp without with
        $RXE run --with-host-devices -- ibv_devinfo -d rxe_veth0
        $RXE run --with-host-devices -- rdma dev
    ";
    let Some(out) = alone("none of the host", "ibv_devinfo", script) else { return };
    assert!(out.starts_with("hca_id:\trxe_veth0"), "{out}");
    assert!(out.contains(": rxe_veth0: node_type ca"), "{out}");
}

/// Both kinds of devices carry data: a kernel's `rdma_rxe`, and ours in another network namespace,
/// because the kernel's device uses the UDP port of its own namespace. Once through the versioned
/// libraries, which providers of the host call, and once without them.
#[test]
fn a_program_uses_devices_of_a_kernel_and_ours() {
    let test = "a kernel's devices beside ours";
    if !installed(test, "ib_send_bw") || !installed(test, "rdma") {
        return;
    }
    let bin = Dir::new();
    for file in ["rxe", "librxe_preload.so"] {
        fs::copy(rxe().with_file_name(file), bin.0.join(file)).unwrap();
    }
    let Some(_) = or_skip(libs::build(&bin.0)) else { return };
    let Some(c) = or_skip(Compiled::linked(&["tests/c/beside.c"], &["-libverbs"])) else { return };
    let vm = Net::tap(1500).and_then(|net| {
        let vm = Vm::boot(&net, &Kernel::find("6.1")?, &Spec::default())?;
        Ok((net, vm))
    });
    let Some((_net, vm)) = or_skip(vm) else { return };
    let run = |script: &str| {
        let rxe = bin.0.join("rxe");
        let head = format!("export XDG_RUNTIME_DIR=/run RXE={}\n", rxe.display());
        vm.run(Cmd::sh(head + script)).and_then(Output::ok).unwrap()
    };
    let pair = |program: &str| {
        format!(
            "{program} > /run/server 2>&1 & server=$!
            until ss -Htln | grep -q ':18515'; do kill -0 $server || exit 1; sleep 0.05; done
            {program} localhost && wait $server && echo both ended || cat /run/server"
        )
    };
    let begin = |options: &str| format!("eval \"$($RXE env --with-host-devices {options})\"\n");

    let list = "ibv_devices\nrdma link\nibv_devinfo -d rxe0\n\
                cat /sys/class/infiniband/rxe0/ports/1/gids/1\n";
    let out = run(&format!("{}{list}", begin("")));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[2].contains("rxe_eth0 ") && lines[3].contains("rxe0 "), "{out}");
    assert!(lines[4].starts_with("link rxe_eth0/1 state ACTIVE"), "{out}");
    assert!(lines[5].starts_with("link rxe0/1 state ACTIVE"), "{out}");
    assert!(out.contains("hca_id:\trxe0\n") && out.contains("PORT_ACTIVE"), "{out}");
    assert!(lines.last().is_some_and(|gid| gid.ends_with(":0a2f:5b0b")), "{out}");

    let send = pair("ib_send_bw -d rxe0 -x 1 -n 5 -s 4096 -F");
    let out = run(&(begin("") + &send));
    assert!(out.contains("both ended"), "{out}");
    let out =
        run(&(begin("") + "unset LD_LIBRARY_PATH\n" + &pair("ibv_uc_pingpong -d rxe0 -g 1 -n 1")));
    assert!(out.contains("both ended"), "{out}");

    let begin = begin("--device rxe_lo");
    let write = pair("ib_write_bw -d rxe_lo -x 0 -n 5 -s 4096 -F");
    let both = format!("{} rxe0 rxe_lo 2>&1", c.path("tests/c/beside.c").display());
    let out = run(&format!(
        "cat > /run/ours <<-'end'\nip link set lo up\n{begin}ibv_devices\n{both}\n{write}\nend\n\
         unshare -n sh /run/ours"
    ));
    assert!(
        out.contains("both ended") && out.contains("rxe_lo ") && out.contains("rxe0 "),
        "{out}"
    );
    let said: Vec<_> = out.lines().filter(|line| line.starts_with("rxe: ")).collect();
    assert!(said.len() == 1 && said[0].contains("belongs to a device of the host"), "{out}");
    assert!(out.contains("beside: done"), "{out}");
}

#[test]
fn devices_have_the_identity_of_a_card() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE run --as mlx5 -- ibv_devices
        $RXE run --as mlx5 -- ibv_devinfo -d mlx5_0
        RXE_AS=mlx5 $RXE run -- ls /sys/class/infiniband
        eval "$($RXE env --as mlx5)"
        basename $(readlink /sys/class/infiniband/mlx5_0/device)
        cat /sys/bus/pci/devices/7278:01:00.0/vendor /sys/class/infiniband/mlx5_0/device/numa_node
        ls /sys/class/infiniband/mlx5_0/device/net
        ls /sys/devices/pci7278:00/7278:01:00.0/infiniband
        cat /sys/class/infiniband_verbs/uverbs0/ibdev
        cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/sent_pkts
        rdma link
    "#;
    let Some(out) = alone("as", "ibv_devinfo", script) else { return };
    assert!(out.contains("    mlx5_0          \t505400fffe000001"), "{out}");
    assert!(out.contains("hca_id:\tmlx5_0") && !out.contains("rxe_"), "{out}");
    let files =
        "mlx5_0\n7278:01:00.0\n0x15b3\n-1\nveth0\nmlx5_0\nmlx5_0\n0\nlink mlx5_0/1 state ACTIVE";
    assert!(out.contains(files), "{out}");
}

#[test]
fn programs_that_insist_on_a_card_s_name_run() {
    let setup = "export RXE_AS=mlx5";
    both(
        "ibv_rc_pingpong",
        18515,
        setup,
        "ibv_rc_pingpong -d mlx5_0 -g 1 -c",
        "ibv_rc_pingpong -d mlx5_0 -g 1 -c 10.9.0.1",
        Where::TwoHosts,
    );
    let setup = "export RXE_AS=mlx5 UCX_NET_DEVICES=mlx5_0:1 UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_LOG_LEVEL=error";
    let ucx = "ucx_perftest -t tag_bw -n 100 -s 5000";
    both("ucx_perftest", 13337, setup, ucx, &format!("{ucx} 10.9.0.1"), Where::TwoHosts);
}

#[test]
fn a_program_that_is_asked_for_a_missing_device_is_explained() {
    let script = r#"
        $RXE run -- ibv_rc_pingpong -d mlx5_0 2>&1 || true
        NCCL_IB_HCA=rxe0:1 $RXE run -- ibv_devices 2>&1
        $RXE run --as mlx5 -- ibv_rc_pingpong -d mlx5_7 2>&1 || true
        $RXE run -- ibv_devinfo -d rxe_veth0 2>&1
    "#;
    let Some(out) = alone("wanted", "ibv_rc_pingpong", script) else { return };
    let asked = |name: &str| {
        format!("the program is asked for {name}, and there is no such device: ask for ")
    };
    for (name, present, other) in [
        ("mlx5_0", "rxe_veth0", "`rxe run --as mlx5`"),
        ("rxe0", "rxe_veth0", "`rxe link add rxe0 type rxe netdev NETDEV`"),
        ("mlx5_7", "mlx5_0", "`rxe run --as mlx5`"),
    ] {
        assert!(out.contains(&(asked(name) + present + "; or " + other)), "{name}: {out}");
    }
    assert_eq!(out.matches("no such device").count(), 3, "{out}");
}

#[test]
fn a_program_that_is_asked_for_a_device_by_a_former_name_is_explained() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        ask() { $RXE run "$@" 2>&1 || true; }
        ask -- ibv_rc_pingpong -d rxe_lo
        ask --as mlx5 -- ibv_rc_pingpong -d rxe_veth0
        $RXE link add veth0 type rxe netdev veth0
        ask -- ibv_rc_pingpong -d rxe_veth0
        UCX_NET_DEVICES=rxe_veth0:1 ask -- ibv_devices
        ask -- ibv_devinfo -d veth0
    "#;
    let Some(out) = alone("former names", "ibv_rc_pingpong", script) else { return };
    let given = "asked for rxe_veth0, whose device has been given the name veth0: ask for veth0, or take \
                 that name away (`rxe link delete veth0`)";
    for (said, count) in [
        ("rxe_lo, which is not among the devices that it is shown: ask for rxe_veth0; or", 1),
        ("asked for rxe_veth0, whose device is called mlx5_0 here: ask for mlx5_0", 1),
        (given, 2),
        ("rxe: ", 4),
    ] {
        assert_eq!(out.matches(said).count(), count, "{said}: {out}");
    }
}
