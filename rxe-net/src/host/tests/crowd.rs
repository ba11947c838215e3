//! A test with as many processes as an address has blocks, and one more.

use std::io::Write;

use super::*;

#[test]
fn all_that_an_address_has_room_for_come_up_at_once() {
    in_namespace("", || {
        let start = |_| {
            let mut process = Process::start(&["env", "RXE_TEST_WAITS=1"]);
            assert!(!process.says_after("WAITS ").is_empty());
            process
        };
        let mut all: Vec<_> = (0..=255).map(start).collect();
        for process in &mut all {
            process.0.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        }
        let (mut blocks, mut refused) = (Vec::new(), Vec::new());
        for said in all.iter_mut().map(Process::says) {
            match said.parse::<u8>() {
                Ok(block) => blocks.push(block),
                Err(_) => refused.push(said),
            }
        }
        blocks.sort_unstable();
        assert!(blocks.iter().copied().eq(1..=255), "{blocks:?} {refused:?}");
        assert!(
            matches!(&refused[..], [limit] if limit.starts_with("all 255 blocks")),
            "{refused:?}"
        );
        all.into_iter().for_each(Process::kill);
    });
}
