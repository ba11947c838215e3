//! What programs under `rxe run` see of RDMA devices beside the verbs: the answers to `rdma` of iproute2,
//! and nothing of the host's own devices.

mod common;
use common::{Where, alone, both};

#[test]
fn rdma_of_iproute2_tells_of_devices_objects_and_counters() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE perf send bw -D 20 > server 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do sleep 0.05; done
        $RXE perf send bw -D 20 10.9.0.1 > client 2>&1 & client=$!
        $RXE run -- rping -s -a 10.9.0.1 -C 1 > rping 2>&1 & rping=$!
        until listens 10.9.0.1; do sleep 0.05; done
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
