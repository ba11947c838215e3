//! How the kernel runs the XDP program and exchanges frames with AF_XDP sockets.

/// How the kernel runs the XDP program and exchanges frames with AF_XDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// The fastest mode that the interface supports.
    #[default]
    Any,
    /// The driver runs the program, and reads and writes the frames in place.
    ZeroCopy,
    /// The driver runs the program, and the kernel copies the frames.
    Driver,
    /// The kernel runs the program after the driver has created a socket buffer for the frame, and
    /// copies the frames. All Ethernet interfaces support this mode.
    Generic,
}

impl XdpMode {
    /// Returns the name of the `xdp` backend in this mode, as on a command line.
    pub const fn backend_name(self) -> &'static str {
        match self {
            Self::Any => "xdp",
            Self::ZeroCopy => "xdp:zerocopy",
            Self::Driver => "xdp:driver",
            Self::Generic => "xdp:generic",
        }
    }
}
