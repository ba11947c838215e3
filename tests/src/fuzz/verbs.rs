//! Right and wrong calls of verbs in any order, on two devices. The bytes decide which packets the
//! network loses. Objects are made, changed, used and destroyed at any moment.
//!
//! Invariants: a refused call changes nothing; requests complete at most once, in the order in which
//! they were posted; a queue pair in the error state has no requests left; deregistered memory does not
//! change; the devices stop sending.

mod calls;
mod node;
mod requests;

use super::input::Input;
use calls::World;

/// Lets the bytes decide which calls are made.
pub fn run(data: &[u8]) {
    const CALLS: usize = 200;
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        world.call(&mut input);
    }
    world.end();
}
