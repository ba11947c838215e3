//! Shared pieces of the outer tests.
