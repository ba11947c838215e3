//! The simulation: two or three engines on a faulty network, in virtual time.
//! The network loses, duplicates, reorders and damages packets. Every decision is drawn from one
//! seed. A model of what verbs promise checks the engines.
//!
//! There are two kinds of run (a [`case`] is either):
//! - A [`plan`] describes a run over reliable connections. A [`world`] executes it, and the
//!   [`model`] (with [`atomics`]) checks it to the last packet.
//! - A [`script`] is a list of steps with every service and object. A [`stage`] executes it, and
//!   the [`judge`] checks it.
//!
//! Both use the same [`network`]. A run that fails is [made smaller](shrink) and printed as a
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
