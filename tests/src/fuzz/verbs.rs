//! Verbs in any order, right and wrong ones, on two devices with a network in between that loses
//! what the bytes say it loses: objects made, changed, used and destroyed at any moment.
//!
//! What is refused has changed nothing; requests complete in the order in which they were posted, at
//! most once; a queue pair in the error state has nothing left; deregistered memory stays as it was;
//! the devices come to rest.

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
