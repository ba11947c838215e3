//! The standard works whose instructions `cargo xtask bench --instructions` counts.
//! Both engines run in one thread. `instructions WORK MESSAGES` prints how many messages and
//! packets it has sent. Without arguments it prints the names of the works, one per line.

use rxe_tests::stream::{Stream, WORKS};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [name, messages] = &args[..] else {
        return WORKS.iter().for_each(|(name, _)| println!("{name}"));
    };
    let &(_, work) = WORKS.iter().find(|work| work.0 == name).expect("the name of a work");
    let messages = messages.parse().expect("a number of messages");
    let mut stream = Stream::new(work);
    stream.run_to(messages);
    println!("{} {}", stream.messages(), stream.packets());
}
