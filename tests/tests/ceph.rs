//! Ceph, whose messenger (`ms_type = async+rdma`) uses verbs: a monitor, an OSD that stores its
//! objects in memory, and the program `rados`, all on our devices, on two hosts and on one address.
//! Debian's packages are downloaded.

use rxe_harness::debs::Unpacked;
use rxe_harness::{or_skip, paths};

mod common;
use common::{Where, alone};

/// The packages of the programs, and of libraries that some machines lack.
const PACKAGES: [&str; 17] = [
    "ceph-base",
    "ceph-common",
    "ceph-mon",
    "ceph-osd",
    "libaio1",
    "libboost-iostreams1.74.0",
    "libboost-thread1.74.0",
    "libdaxctl1",
    "libfmt9",
    "libfuse2",
    "libkmod2",
    "libleveldb1d",
    "libndctl6",
    "libpmem1",
    "librados2",
    "libradosstriper1",
    "libsnappy1v5",
];

/// The configuration of all three programs. By default Ceph allocates 4 GB of receive buffers, so
/// their number is set.
const CONFIGURATION: &str = "
    fsid = 2d2fd136-6df1-4a6b-9a4c-9b0a6b2f8f01
    mon_host = v1:10.9.0.1:6789
    ms_type = async+rdma
    ms_async_rdma_device_name = rxe0
    ms_async_rdma_gid_idx = 1
    ms_async_rdma_send_buffers = 256
    ms_async_rdma_receive_buffers = 256
    ms_async_rdma_receive_queue_len = 64
    auth_cluster_required = none
    auth_service_required = none
    auth_client_required = none
    public_network = 10.9.0.0/24
    osd_objectstore = memstore
    memstore_device_bytes = 268435456
    osd_pool_default_size = 1
    osd_pool_default_pg_num = 1
    osd_crush_chooseleaf_type = 0
    mon_allow_pool_size_one = true
    # A disk that is nearly full does not matter.
    mon_data_avail_crit = 1
    admin_socket =
    pid_file =
";

#[test]
fn an_object_between_two_hosts() {
    an_object(Where::TwoHosts);
}

#[test]
fn an_object_on_one_address() {
    an_object(Where::OneAddress);
}

/// Writes an object, reads it back and compares it. It is larger than a message of rados (4 MiB).
#[track_caller]
fn an_object(place: Where) {
    let Some(unpacked) = or_skip(Unpacked::fetch("ceph", &PACKAGES)) else { return };
    let enter = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let script = format!(
        r#"
        {variables}
        libraries={libraries}
        export LD_LIBRARY_PATH=$libraries/ceph:$LD_LIBRARY_PATH
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        cat > conf <<END
[global]
    # An OSD that starts may ask for its class and place too early, is told "wrong fsid", and ends. The map has them.
    osd_class_update_on_start = false
    osd_crush_update_on_start = false
    run_dir = $PWD
    mon_data = $PWD/mon
    osd_data = $PWD/osd
    log_file = $PWD/\$name.log
    osd_class_dir = $libraries/rados-classes
    plugin_dir = $libraries/ceph
    erasure_code_dir = $libraries/ceph/erasure-code
    {CONFIGURATION}
END
        mkdir mon osd
        exec 3>&1 > quiet 2>&1
        failed() {{ tail -n 40 quiet *.log *.out >&3; exit 1; }}
        monmaptool --create --addv a '[v1:10.9.0.1:6789]' \
            --fsid 2d2fd136-6df1-4a6b-9a4c-9b0a6b2f8f01 monmap || failed
        # With an OSD, so that nobody needs to ask for one.
        osdmaptool -c conf --createsimple 1 osdmap || failed
        ceph-mon -c conf -i a --mkfs --monmap monmap --osdmap osdmap || failed
        start() {{ timeout -k 5 120 $RXE run -- $1 -c conf -i $2 -f > $1.out 2>&1 & }}
        trap 'kill $monitor $osd || true; wait' EXIT
        start ceph-mon a; monitor=$!
        osd=
        timeout -k 1 60 $RXE run -- ceph-osd -c conf -i 0 --mkfs \
            --osd-uuid 4e3a6f0c-2b55-4e44-8f0a-1a4f5d8e7b02 || failed
        start ceph-osd 0; osd=$!
        until grep -q 'state: booting -> active' osd.0.log; do
            kill -0 $monitor && kill -0 $osd || failed
            sleep 0.1
        done
        head -c 5000001 /dev/urandom > file
        client="timeout -k 1 60 {enter} $RXE run"
        $client -- python3 {pool} conf pool || failed
        $client --pcap put.pcapng -- rados -c conf -p pool put object file || failed
        $client --pcap get.pcapng -- rados -c conf -p pool get object copy || failed
        cmp file copy || failed
        # All of it went by RDMA.
        [ $(stat -c %s put.pcapng) -gt 5000001 ] && [ $(stat -c %s get.pcapng) -gt 5000001 ] || failed
        echo the same >&3
        "#,
        variables = unpacked.variables(),
        libraries = unpacked.path("usr/lib/x86_64-linux-gnu").display(),
        pool = paths::checkout().join("tests/python/ceph_pool.py").display(),
    );
    let Some(said) = alone(&format!("Ceph ({place:?})"), "python3", &script) else { return };
    assert_eq!(said, "the same\n");
}
