//! How the kernel runs the XDP program and exchanges frames with the AF_XDP sockets.

/// How the kernel runs the XDP program and exchanges frames with the AF_XDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// The fastest that the interface has.
    #[default]
    Any,
    /// The driver runs the program, and reads and writes the frames where they are.
    ZeroCopy,
    /// The driver runs the program, and the kernel copies the frames.
    Driver,
    /// The kernel runs the program after the driver has made a packet of the frame, and copies. All
    /// Ethernet interfaces have it.
    Generic,
}

impl XdpMode {
    /// The name of the `xdp` backend in this mode, as on a command line.
    pub const fn backend_name(self) -> &'static str {
        match self {
            Self::Any => "xdp",
            Self::ZeroCopy => "xdp:zerocopy",
            Self::Driver => "xdp:driver",
            Self::Generic => "xdp:generic",
        }
    }
}
