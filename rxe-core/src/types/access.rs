//! Access rights of memory regions, windows and queue pairs, and the reasons to refuse an access.
//! IBTA 10.6.3.

use bitflags::bitflags;

bitflags! {
    /// The access rights of a memory region or a QP. The bits are those of `ibv_access_flags`.
    /// Local read is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write to the region. Receives and the results of READs and atomics
        /// need this right.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// The region's addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging: pages of the region may be mapped, unmapped and protected while it is
        /// registered. A page must be mapped only while the device uses it.
        const ON_DEMAND = 1 << 6;
        /// Peers may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Accepted without effect: accesses are always ordered.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// The reason why an access to memory is refused. Local keys report it as a completion with
/// `LocalProtection`, remote keys as a NAK "remote access error".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key: it was never registered, or is deregistered.
    UnknownKey,
    /// The region belongs to another protection domain than the QP.
    OtherPd,
    /// Some of the bytes lie outside the region.
    OutOfBounds,
    /// The region was not registered with the required access right.
    NotPermitted,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
    /// The region is registered, but its memory cannot be accessed.
    Faulted(MemoryFault),
}

impl From<MemoryFault> for AccessError {
    fn from(fault: MemoryFault) -> Self {
        Self::Faulted(fault)
    }
}

impl AccessError {
    /// Returns the reason as part of a sentence.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::UnknownKey => "no memory region has this key (wrong key, or deregistered)",
            Self::OtherPd => "the memory region belongs to another protection domain than the QP",
            Self::OutOfBounds => "the address range reaches outside the memory region",
            Self::NotPermitted => "the memory region was not registered with this access right",
            Self::Misaligned => "the address of an atomic must be a multiple of 8",
            Self::Faulted(fault) => match fault.cause {
                FaultCause::Unmapped => "the registered memory is not mapped",
                FaultCause::Protected => {
                    "the protection of the registered memory forbids the access"
                }
                FaultCause::BeyondFile => "the file that is mapped as registered memory was cut",
                FaultCause::Other => "the registered memory cannot be accessed",
            },
        }
    }
}

/// A failed read or write of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryFault {
    /// The address of the failed access.
    pub addr: u64,
    /// The cause.
    pub cause: FaultCause,
}

/// The cause of a memory fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum FaultCause {
    /// Nothing is mapped at the address.
    Unmapped = 1,
    /// The protection of the page does not allow the access.
    Protected = 2,
    /// The page lies beyond the end of the mapped file.
    BeyondFile = 3,
    /// Another cause, such as a memory error of the hardware.
    Other = 4,
}
