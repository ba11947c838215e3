//! The five standard works whose instructions `cargo xtask bench --instructions` counts, with both
//! engines in one thread. Call it as `instructions WORK MESSAGES`: it prints how many messages and
//! packets it has sent. `instructions` alone prints the names of the works, one a line.

use rxe_core::types::Mtu;
use rxe_tests::stream::{Kind, Stream, Work};

/// Name, operation, bytes of a message, messages outstanding. The path MTU is 1024.
const WORKS: [(&str, Kind, u32, u64); 5] = [
    ("write-64k", Kind::Write, 65_536, 16),
    ("read-64k", Kind::Read, 65_536, 16),
    ("send-64k", Kind::Send, 65_536, 16),
    ("send-8", Kind::Send, 8, 1),
    ("write-8", Kind::Write, 8, 64),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [name, messages] = &args[..] else {
        return WORKS.iter().for_each(|(name, ..)| println!("{name}"));
    };
    let &(_, kind, len, depth) =
        WORKS.iter().find(|work| work.0 == name).expect("the name of a work");
    let messages = messages.parse().expect("a number of messages");
    let mut stream = Stream::new(Work { kind, mtu: Mtu::M1024, len, depth });
    stream.run_to(messages);
    println!("{} {}", stream.messages(), stream.packets());
}
