//! Fuzzes verbs on two devices, with correct and wrong calls in any order.
//! The bytes decide which calls are made and which packets the network loses. Objects are created,
//! modified, used and destroyed at any moment.
//!
//! Invariants: a refused call changes nothing; requests complete at most once, in the order of
//! posting; a queue pair in the error state has no requests left; deregistered memory does not
//! change; the devices stop sending.

mod calls;
mod node;
mod requests;

use super::input::Input;
use calls::World;

/// Makes the calls that the bytes choose.
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
