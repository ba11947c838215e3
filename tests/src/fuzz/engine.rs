//! Fuzzes one engine that has a queue pair of each service type.
//! The peer sends what the bytes choose: packets with a correct ICRC near the expected PSNs,
//! damaged packets, whole messages with a missing packet, congestion marks. Meanwhile the program
//! posts, polls, modifies and deregisters, and time passes.
//!
//! Invariants: nothing panics; memory that the peer has no right to does not change; the number of
//! packets that answer one step is bounded; each request completes at most once.

mod packets;
mod world;

use super::input::Input;
use world::World;

/// Runs the steps that the bytes choose.
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
