//! The judge of the engine: two or three engines on a network that loses, doubles, reorders and
//! damages, in virtual time, every decision drawn from one number; and beside them a model of what
//! verbs promise.
//!
//! A [`plan`] says what happens in a run, a [`world`] carries it out, the [`model`] (and for atomics
//! [`atomics`]) says whether that was right. When it was not, the run is [shrunk](shrink) and told
//! as a [`ladder`].

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
