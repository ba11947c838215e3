//! The examples do what they say.

mod common;

macro_rules! example {
    ($name:ident, $path:literal) => {
        #[path = $path]
        #[allow(dead_code, reason = "main is for the command line")]
        mod $name;

        #[test]
        fn $name() {
            $name::run(common::address(), common::address()).unwrap();
        }
    };
}

example!(publish, "../examples/publish.rs");
example!(send_receive, "../examples/send_receive.rs");
example!(write_read, "../examples/write_read.rs");
example!(atomics, "../examples/atomics.rs");
example!(datagrams, "../examples/datagrams.rs");
example!(shared_receive_queue, "../examples/shared_receive_queue.rs");
example!(memory_window, "../examples/memory_window.rs");
example!(xrc, "../examples/xrc.rs");
example!(echo, "../examples/echo.rs");
