//! Checks that the examples do what they say.

mod common;

macro_rules! example {
    ($name:ident, $path:literal) => {
        #[path = $path]
        #[allow(dead_code, reason = "main is for the command line")]
        mod $name;

        #[test]
        fn $name() {
            $name::run(common::address(), common::address()).unwrap();
        }
    };
}

example!(guide, "../examples/guide.rs");
example!(publish, "../examples/publish.rs");
example!(send_receive, "../examples/send_receive.rs");
example!(write_read, "../examples/write_read.rs");
example!(atomics, "../examples/atomics.rs");
example!(datagrams, "../examples/datagrams.rs");
example!(shared_receive_queue, "../examples/shared_receive_queue.rs");
example!(memory_window, "../examples/memory_window.rs");
example!(xrc, "../examples/xrc.rs");
example!(echo, "../examples/echo.rs");
example!(tokio_echo, "../examples/tokio_echo.rs");

#[path = "../examples/cluster_lock.rs"]
#[allow(dead_code, reason = "main is for the command line")]
mod cluster_lock;

#[path = "../examples/cluster_ring.rs"]
#[allow(dead_code, reason = "main is for the command line")]
mod cluster_ring;

#[path = "../examples/cluster_incast.rs"]
#[allow(dead_code, reason = "main is for the command line")]
mod cluster_incast;

#[test]
fn the_bug_of_cluster_lock_is_found_and_found_again_and_its_repair_holds() {
    use cluster_lock::{Update, run};
    let failure = (0..200).find_map(|seed| run(seed, Update::Write, None).unwrap().err());
    let failure = failure.expect("some seed shows the bug");
    for _ in 0..2 {
        assert_eq!(run(failure.seed, Update::Write, None).unwrap().as_ref(), Err(&failure));
    }
    for seed in 0..200 {
        assert_eq!(run(seed, Update::CompareAndSwap, None).unwrap(), Ok(()));
    }
}

#[test]
fn cluster_ring_carries_a_thousand_hosts() {
    cluster_ring::run(7, 1000).unwrap();
}

#[test]
fn cluster_incast_loses_less_with_congestion_control() {
    let [(on_line, on), (off_line, off)] =
        [true, false].map(|on| cluster_incast::run(1, 100, on).unwrap());
    // The pages show the figures of this seed.
    let pages =
        [include_str!("../../docs/en/do/cluster.md"), include_str!("../../docs/zh/do/cluster.md")];
    for (page, line) in pages.iter().flat_map(|page| [(page, &on_line), (page, &off_line)]) {
        assert!(page.contains(&**line), "a page about clusters has not: {line}");
    }
    assert!(on.overflowed < off.overflowed, "{on:?} {off:?}");
    assert!(on.marked > 0 && off.marked == 0, "{on:?} {off:?}");
}
