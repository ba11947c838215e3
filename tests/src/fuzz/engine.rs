//! One engine with a queue pair of each kind, and a peer that sends what the fuzzer chooses: packets
//! with a right ICRC near the expected PSNs, damaged packets, whole messages with a packet missing,
//! congestion marks. Meanwhile the program posts, polls, modifies and deregisters, and time passes.
//!
//! Invariants: nothing panics; memory that the peer has no right to does not change; the number of
//! packets that answer one step is bounded; each request completes at most once.

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
