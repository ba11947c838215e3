//! Rights to memory, of regions, windows and queue pairs, and why memory is refused. IBTA 10.6.3.

use bitflags::bitflags;

bitflags! {
    /// What may be done to a memory region, or through a QP. The bits are those of
    /// `ibv_access_flags`. Local read is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The own adapter may write: needed for receives, and for the data of READ and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 at the region's start.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging: pages of the region may be mapped, unmapped and protected while it is
        /// registered. A page is needed only while it is used.
        const ON_DEMAND = 1 << 6;
        /// Peers may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Accepted and without effect, as for an adapter that always orders.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Why memory may not be used as asked. The same reasons serve local keys (a completion with
/// `LocalProtection`) and remote ones (a NAK "remote access error").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key: never registered, or deregistered since.
    UnknownKey,
    /// The region belongs to another protection domain than the QP.
    OtherPd,
    /// Some of the bytes lie outside the region.
    OutOfBounds,
    /// The region was not registered for this kind of access.
    NotPermitted,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
    /// The region is registered, but the memory behind it is not there any more.
    Faulted(MemoryFault),
}

impl From<MemoryFault> for AccessError {
    fn from(fault: MemoryFault) -> Self {
        Self::Faulted(fault)
    }
}

impl AccessError {
    /// The reason as part of a sentence.
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

/// A part of the program's memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryFault {
    /// The address at which it happened.
    pub addr: u64,
    /// What is wrong with the memory there.
    pub cause: FaultCause,
}

/// What is wrong with memory that faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum FaultCause {
    /// Nothing is mapped at the address.
    Unmapped = 1,
    /// The page's protection does not allow the access.
    Protected = 2,
    /// The page lies behind the end of the file that is mapped.
    BeyondFile = 3,
    /// Another reason, such as a memory error.
    Other = 4,
}
