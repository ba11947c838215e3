//! One engine with a queue pair of each kind, and a peer that says whatever the fuzzer makes up:
//! packets with a right ICRC near the PSNs that are expected, spoiled ones, whole messages with a
//! packet missing, congestion marks; while the program posts, polls, modifies and deregisters, and
//! time passes.
//!
//! Nothing may panic; memory that the peer has no right to stays as it was; one step is answered by
//! a bounded number of packets; each request completes at most once.

mod packets;
mod world;

use super::input::Input;
use world::World;

/// Lets the bytes decide what happens.
pub fn run(data: &[u8]) {
    const STEPS: usize = 200;
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}
