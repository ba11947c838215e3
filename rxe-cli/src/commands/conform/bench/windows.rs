//! Memory windows of the peer's program.

use super::super::verdict::Outcome;
use super::{Bench, deviates, done, got};

/// The range of the region, in bytes, that a window is bound to.
pub(in super::super) const WINDOW_AT: u64 = 0x1000;
pub(in super::super) const WINDOW_LEN: u64 = 0x100;

/// The work request ID of requests about windows.
const ABOUT: u64 = 90;

impl Bench<'_> {
    /// Lets the peer allocate a window of type 1 or 2. Returns the unbound window's rkey.
    pub(in super::super) fn window(&mut self, kind: u8) -> Outcome<u32> {
        self.log.push(format!("peer allocates a memory window of type {kind}"));
        Ok(self.peer.ask_for_rkey(&format!("window {kind}"))?)
    }

    /// Lets the peer post a bind of its window to `len` bytes at `at`. Returns the new rkey.
    pub(in super::super) fn post_bind(
        &mut self,
        id: u64,
        at: u64,
        len: u64,
        access: u32,
    ) -> Outcome<u32> {
        self.log.push(format!("peer posts bind {id} to {len} B at +0x{at:x}, rights 0x{access:x}"));
        Ok(self.peer.ask_for_rkey(&format!("bind {id} {at} {len} {access}"))?)
    }

    /// Binds the window to [`WINDOW_LEN`] bytes at [`WINDOW_AT`]. Returns the new rkey.
    pub(in super::super) fn bind(&mut self, access: u32) -> Outcome<u32> {
        let rkey = self.post_bind(ABOUT, WINDOW_AT, WINDOW_LEN, access)?;
        self.completes([done(ABOUT)])?;
        Ok(rkey)
    }

    /// Unbinds the peer's type 1 window by a bind to 0 bytes.
    pub(in super::super) fn unbind(&mut self) -> Outcome {
        self.post_bind(ABOUT, WINDOW_AT, 0, 0)?;
        self.completes([done(ABOUT)])
    }

    /// Requires a message to complete receive `id` and to invalidate `rkey`.
    /// The message has `len` bytes, and the completion must name `rkey`.
    pub(in super::super) fn completes_invalidating(
        &mut self,
        id: u64,
        len: u32,
        rkey: u32,
    ) -> Outcome {
        let found = self.find(self.wait, &[got(id, len)])?;
        match found.first().and_then(|done| done.invalidated) {
            Some(named) if named == rkey => Ok(()),
            Some(_) => {
                deviates("the completion names another key than the one that was invalidated")
            }
            None => deviates("the completion does not say that a key was invalidated"),
        }
    }

    /// Lets the peer invalidate its type 2 window with this rkey.
    pub(in super::super) fn invalidate(&mut self, rkey: u32) -> Outcome {
        self.log.push(format!("peer invalidates 0x{rkey:x}"));
        self.ask(&format!("post local_inv {ABOUT} 0 0 0 {rkey} 0 0"))?;
        self.completes([done(ABOUT)])
    }
}
