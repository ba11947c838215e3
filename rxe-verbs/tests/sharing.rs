//! Several devices on one address: in one process, and in processes that come and are killed.

mod common;

use common::*;
use rxe_net::BackendKind;
use rxe_verbs::*;

#[test]
fn two_devices_on_one_address_talk() {
    in_namespace("", || {
        for kind in BackendKind::ALL {
            for ip in ["127.0.0.1", "::1"] {
                let ip = ip.parse().unwrap();
                let open = || Device::options("lo").address(ip).backend(kind).open().unwrap();
                let (a, b, c) = (Side::new(open()), Side::new(open()), Side::new(open()));
                let blocks = [&a, &b, &c].map(|side| side.device.qpn_block());
                assert_eq!(blocks, [Some(1), Some(2), Some(3)]);
                assert_eq!(a.qp.qpn().value() >> 16, 1);
                connect(&a.qp, &b.qp);
                let (from, to) = (a.region(100_000), b.region(100_000));
                from.write_at(0, &pattern(100_000, 7)).unwrap();
                drop(c);
                a.qp.write(1, &[from.slice(..)], to.remote(0)).post().unwrap();
                a.ok();
                assert_eq!(to.to_vec(..).unwrap(), pattern(100_000, 7));
                assert_eq!(b.device.counters().drops().map(|(_, count)| count).sum::<u64>(), 0);
            }
        }
    });
}
