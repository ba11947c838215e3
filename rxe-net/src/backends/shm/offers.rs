//! Rings that others offer: listening for offers, taking them, and forgetting who is gone.

use std::io;

use super::link::{Incoming, Offered, is_gone};
use super::watched::Watched;
use super::{CONTROL, Destination, Route, Shm, WAKE};
use crate::backend::Backend;
use crate::host::sharing::Sharing;

/// Rings that others may send through at once: each takes two descriptors and 4 MiB of addresses. Whoever
/// comes after these uses the network.
pub(super) const MAX_INCOMING: usize = 256;
/// Looks without listeners, until there may be descriptors or room for rings again.
pub(super) const LISTEN_AGAIN_AFTER: u32 = 4096;
/// Those waited for who have connected and offered nothing yet; they do so at once, or never.
pub(super) const MAX_CALLERS: usize = 256;

/// Bursts that go onto the wire before somebody who has refused a ring is offered the next: what was in
/// that one is lost.
const OFFER_AGAIN: u32 = 1 << 16;

impl<B: Backend + Sharing> Shm<B> {
    /// Listens for offers for all blocks on all addresses.
    pub(super) fn listen(&mut self) {
        let Some(groups) = self.inner.port_groups() else { return };
        let blocks = groups.blocks();
        let all = self.addresses.iter().flat_map(|a| blocks.iter().map(|b| (*a, *b)));
        // On an address that could not be entered, a block may be another's.
        let listens = |own: &Destination| self.listeners.listens_for(*own);
        let missing = all.filter(|own| groups.has(own.0, own.1) && !listens(own));
        let missing = missing.collect::<Vec<_>>();
        for (address, block) in missing {
            let Some(path) = groups.memory(address, block) else { continue };
            // Who had the block before may still be about to go. Then others use the wire.
            let _ = self.listeners.add((address, block), &path);
        }
    }

    /// Takes offers, and forgets who is gone. Returns whether there was anything of the kind.
    pub(super) fn look_around(&mut self) -> bool {
        if self.listen_again_in > 0 {
            self.listen_again_in -= 1;
            if self.listen_again_in == 0 && !self.is_full() {
                self.listen();
            } else if self.listen_again_in == 0 {
                self.listen_again_in = LISTEN_AGAIN_AFTER;
            }
        }
        if !self.epoll.has(CONTROL) {
            return false;
        }
        let mut has_room = self.take_callers();
        for line in std::mem::take(&mut self.callers) {
            match Incoming::accept(&line) {
                Ok(None) => self.callers.push(line),
                Ok(Some(Offered { ring, wake })) => {
                    if !self.is_full()
                        && self.has_alarm()
                        && let Ok(wake) = Watched::new(wake, &self.epoll, WAKE)
                    {
                        self.incoming.push(Incoming::new(ring, wake, line));
                        self.since_ring = 0;
                        self.wire.begin(true);
                    } else {
                        has_room = false;
                    }
                }
                Err(e) if is_exhausted(&e) => has_room = false,
                // Nobody that one could do anything with.
                Err(_) => {}
            }
        }
        self.incoming.retain_mut(|link| !link.is_over());
        if !has_room || self.is_full() {
            // Whoever is not accepted would wait for ever, and whoever is refused would offer the next
            // ring at once. Without a listener both use the network.
            self.stop_listening();
        }
        self.routes.retain(|_, route| match route {
            Route::Ring(index) => match &mut self.rings[*index] {
                Some(link) if !is_gone(&link.line) => true,
                ring => {
                    // Who takes no ring, say because its version is another, would not take the next.
                    let refused = ring.take().is_some_and(|mut link| link.is_untouched());
                    if refused {
                        *route = Route::Wire(OFFER_AGAIN);
                    }
                    refused
                }
            },
            Route::Own | Route::Wire(_) => true,
        });
        self.last = None;
        true
    }

    /// Lets those in who have connected and are of this user. `false` if there are no descriptors left for
    /// them.
    fn take_callers(&mut self) -> bool {
        let mut has_room = true;
        for listener in self.listeners.sockets() {
            // Others than this user may connect as fast as they are turned away: not for ever.
            for _ in 0..MAX_CALLERS {
                match listener.accept() {
                    Ok(caller) => {
                        if let Ok(caller) = Watched::new(caller, &self.epoll, CONTROL) {
                            self.callers.push(caller);
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(e) => {
                        has_room &= !is_exhausted(&e);
                        break;
                    }
                }
            }
        }
        let surplus = self.callers.len().saturating_sub(MAX_CALLERS);
        self.callers.drain(..surplus);
        has_room
    }

    fn is_full(&self) -> bool {
        self.incoming.len() >= MAX_INCOMING
    }

    /// Callers use the network for a while.
    fn stop_listening(&mut self) {
        self.listeners.close();
        self.listen_again_in = LISTEN_AGAIN_AFTER;
    }
}

/// Whether this process or the system has no descriptors or no memory left.
fn is_exhausted(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}
