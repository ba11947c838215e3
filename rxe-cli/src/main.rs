//! The command `rxe`.

fn main() {}
