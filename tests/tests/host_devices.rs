//! What programs under `rxe run` see of RDMA devices beside the verbs: the answers to `rdma` of iproute2,
//! and nothing of the host's own devices.

mod common;
use common::alone;

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
