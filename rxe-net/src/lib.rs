//! Ways onto a wire.
