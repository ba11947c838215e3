//! The reports of a process about its devices.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use rxe_verbs::observe::{DeviceReport, Subject, ask};
use rxe_verbs::*;

/// Asks for reports and returns those of this process.
fn ask_own(subject: Subject) -> Vec<DeviceReport> {
    let mut all = ask(subject);
    all.retain(|report| report.pid == Some(std::process::id()));
    all
}

#[test]
fn a_device_lists_each_queue_pair_once_and_what_happened_on_it() {
    let side = Side::new(Device::options("lo").address(address()).shards(2).open().unwrap());
    let pd = &side.pd;
    // Without a timer: a retransmitted request would be refused once more, and counted.
    let options = ConnectOptions { rnr_retry: 0, ..without_retries() };
    let (a, b) = (pd.qp(&side.cq).build().unwrap(), pd.qp(&side.cq).build().unwrap());
    connect_with(&a, &b, &options);
    // More queue pairs than fit into one answer, with gaps in their numbers.
    let mut others: Vec<_> = (0..600).map(|_| pd.qp(&side.cq).build().unwrap()).collect();
    // Queue pairs on another completion queue belong to another shard.
    let other_cq = side.device.create_cq(16).unwrap();
    others.extend((0..300).map(|_| pd.qp(&other_cq).build().unwrap()));
    let mut index = 0;
    others.retain(|_| {
        index += 1;
        index % 3 != 0
    });
    a.send_bytes(1, b"to nobody").post().unwrap();
    let failed = side.cq.wait_one(TIMEOUT).unwrap();
    assert_eq!(failed.status, Status::RnrRetryExceeded);

    let own: HashSet<String> =
        others.iter().chain([&a, &b, &side.qp]).map(|qp| qp.qpn().to_string()).collect();
    let reports = ask_own(Subject::Qp);
    let of = |report: &&DeviceReport| {
        report.objects().iter().any(|qp| qp.get("lqpn") == Some(&a.qpn().to_string()))
    };
    let report = reports.iter().find(of).unwrap();
    // Devices of other tests may close while they are asked, but this report is complete.
    assert!(report.records.is_ok());
    let numbers: Vec<_> = report.objects().iter().filter_map(|qp| qp.get("lqpn")).collect();
    assert_eq!(numbers.len(), own.len(), "none is there twice");
    assert!(numbers.iter().all(|number| own.contains(*number)));
    assert_eq!(report.total, own.len() as u64);
    let qp = |qp: &QueuePair, field: &str| {
        let number = qp.qpn().to_string();
        let found = report.objects().iter().find(|found| found.get("lqpn") == Some(&number));
        found.unwrap().number(field).unwrap()
    };
    assert_eq!((qp(&a, "rcvd_rnr_err"), qp(&b, "send_rnr_err")), (1, 1));
    assert_eq!((qp(&a, "send_rnr_err"), qp(&b, "rcvd_rnr_err")), (0, 0));
    let causes = [
        "ack_timeout",
        "round_trip_timeout",
        "retry_sequence_nak",
        "retry_implied_nak",
        "retry_rnr",
    ];
    let of_causes: u64 = causes.map(|cause| qp(&a, cause)).into_iter().sum();
    assert_eq!(qp(&a, "retries"), of_causes);
    let counters = side.device.counters();
    assert_eq!((counters.rcvd_rnr_err, counters.retry_rnr_exceeded_err), (1, 1));
    assert_eq!((counters.rdma_sends, counters.rdma_recvs), (0, 0));
}

/// A device that is closed while it answers must not wait for itself.
#[test]
fn questions_without_end_stop_nothing() {
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let ask_all = |subjects: [Subject; 2]| {
            while !done.load(Ordering::Relaxed) {
                subjects.into_iter().for_each(|subject| drop(ask(subject)));
            }
        };
        scope.spawn(move || ask_all([Subject::Counters, Subject::Qp]));
        scope.spawn(move || ask_all([Subject::Summary, Subject::Cq]));
        for _ in 0..20 {
            let side = Side::new(Device::options("lo").address(address()).open().unwrap());
            let qps: Vec<_> = (0..50).map(|_| side.pd.qp(&side.cq).build().unwrap()).collect();
            drop((qps, side));
        }
        done.store(true, Ordering::Relaxed);
    });
}
