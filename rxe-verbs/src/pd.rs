//! Protection domains: what is in one can be used together. IBTA 11.2.1.5.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::VerbsError;
use rxe_core::mem::PdId;

use crate::device::{Device, Permit, closed};
use crate::error::Result;
use crate::os::random_u64;

/// A protection domain. Queue pairs reach the memory regions of their own domain, no others.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    device: Device,
    id: PdId,
    /// How many there are of each [`Kind`].
    members: [AtomicU32; Kind::ALL.len()],
    _permit: Permit,
}

/// What is made in a protection domain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    MemoryRegion,
    MemoryWindow,
    QueuePair,
    SharedReceiveQueue,
    AddressHandle,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::MemoryRegion,
        Self::MemoryWindow,
        Self::QueuePair,
        Self::SharedReceiveQueue,
        Self::AddressHandle,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::MemoryRegion => "memory region",
            Self::MemoryWindow => "memory window",
            Self::QueuePair => "queue pair",
            Self::SharedReceiveQueue => "shared receive queue",
            Self::AddressHandle => "address handle",
        }
    }
}

/// The domain as held by what was made in it, which is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    pd: ProtectionDomain,
    kind: Kind,
}

impl Member {
    fn count(&self) -> &AtomicU32 {
        &self.pd.inner.members[self.kind as usize]
    }
}

impl Deref for Member {
    type Target = ProtectionDomain;

    fn deref(&self) -> &ProtectionDomain {
        &self.pd
    }
}

impl Clone for Member {
    fn clone(&self) -> Self {
        self.pd.member(self.kind)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many things of each kind were made in a protection domain and still exist. Prints as in "2 memory
/// regions and 1 queue pair".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PdContents([u32; Kind::ALL.len()]);

impl PdContents {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}

impl fmt::Display for PdContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Kind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0);
        let all = all.map(|(kind, count)| {
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {}{plural}", kind.name())
        });
        let mut all: Vec<_> = all.collect();
        match (all.pop(), all.is_empty()) {
            (None, _) => f.write_str("nothing"),
            (Some(last), true) => f.write_str(&last),
            (Some(last), false) => write!(f, "{} and {last}", all.join(", ")),
        }
    }
}

impl ProtectionDomain {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// How many others have it: handles, memory regions and windows, queue pairs, address handles.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// What was made in it and still exists.
    pub fn contents(&self) -> PdContents {
        PdContents(self.inner.members.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        let contents = self.contents();
        if contents.is_empty() {
            return closed(self.users(), "the protection domain");
        }
        let what =
            format!("the protection domain is in use by {contents}: drop or close these first");
        Err(VerbsError::Busy { what }.into())
    }

    /// The domain, for something that is made in it.
    pub(crate) fn member(&self, kind: Kind) -> Member {
        let member = Member { pd: self.clone(), kind };
        member.count().fetch_add(1, Ordering::Relaxed);
        member
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }
}

impl Device {
    /// Makes a protection domain: what is in one can be used together. IBTA 11.2.1.5.
    ///
    /// # Errors
    /// There are as many as the device allows, or it has failed.
    pub fn create_pd(&self) -> Result<ProtectionDomain> {
        self.shard().check()?;
        let (device, id, permit) = (self.clone(), self.next_pd(), self.quotas().pds.take()?);
        Ok(ProtectionDomain {
            inner: Arc::new(PdInner { device, id, members: Default::default(), _permit: permit }),
        })
    }
}

/// Keys that a stranger cannot guess.
pub(crate) fn keys() -> Result<impl FnMut() -> u32> {
    let mut random = random_u64()?;
    Ok(move || {
        let [a, b, c, d, ..] = random.to_le_bytes();
        // Further ones only where a key is taken.
        random = random.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        u32::from_le_bytes([a, b, c, d])
    })
}
