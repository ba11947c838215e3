//! The judge of the engine: two or three engines on a network that loses, doubles, reorders and
//! damages, in virtual time, every decision drawn from one number; and beside them a model of what
//! verbs promise.
//!
//! There are two kinds of run (a [`case`] is either):
//! - A [`plan`] says what happens on reliable connections, a [`world`] carries it out, the [`model`]
//!   (and for atomics [`atomics`]) says whether that was right, to the last packet.
//! - A [`script`] is a list of steps with every service and object, a [`stage`] carries it out, the
//!   [`judge`] says whether that was right.
//!
//! Both go over the same [`network`]. When a run was not right, it is [shrunk](shrink) and told as a
//! [`ladder`].

pub mod atomics;
pub mod case;
pub mod judge;
pub mod ladder;
pub mod memory;
pub mod model;
pub mod network;
pub mod plan;
pub mod rng;
pub mod script;
pub mod shrink;
pub mod stage;
pub mod world;
