//! Listens for rings that other processes offer, accepts them, and drops ended ones.

use std::io;

use super::link::{Incoming, Offered, is_gone};
use super::registered::Registered;
use super::{CONTROL, Destination, Route, Shm, WAKE};
use crate::backend::Backend;
use crate::host::sharing::Sharing;

/// The maximum number of incoming rings. Each takes two descriptors and 4 MiB of address space.
/// Further senders use the network.
pub(super) const MAX_INCOMING: usize = 256;
/// The number of polls without listeners, until there may be descriptors or room for rings again.
pub(super) const LISTEN_AGAIN_AFTER: u32 = 4096;
/// The maximum number of callers that have not offered a ring yet. A caller offers one immediately
/// or never.
pub(super) const MAX_CALLERS: usize = 256;

/// The number of bursts that go onto the wire before a process that has refused a ring is offered
/// the next one. The packets in the refused ring are lost.
const OFFER_AGAIN: u32 = 1 << 16;

impl<B: Backend + Sharing> Shm<B> {
    /// Listens for offers for all blocks on all addresses.
    pub(super) fn listen(&mut self) {
        let Some(groups) = self.inner.port_groups() else { return };
        let blocks = groups.blocks();
        let all = self.addresses.iter().flat_map(|a| blocks.iter().map(|b| (*a, *b)));
        // On an address that could not be entered, another process may have the block.
        let listens = |own: &Destination| self.listeners.listens_for(*own);
        let missing = all.filter(|own| groups.has(own.0, own.1) && !listens(own));
        let missing = missing.collect::<Vec<_>>();
        for (address, block) in missing {
            let Some(path) = groups.memory(address, block) else { continue };
            // Fails if the previous holder of the block has not closed its socket yet. Senders then
            // use the wire.
            let _ = self.listeners.add((address, block), &path);
        }
    }

    /// Accepts offers and drops ended rings. Returns whether there was any event of that kind.
    pub(super) fn poll_control(&mut self) -> bool {
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
                        && self.has_wakeups()
                        && let Ok(wake) = Registered::new(wake, &self.epoll, WAKE)
                    {
                        self.incoming.push(Incoming::new(ring, wake, line));
                        self.since_ring = 0;
                        self.wire.restart(true);
                    } else {
                        has_room = false;
                    }
                }
                Err(e) if is_exhausted(&e) => has_room = false,
                // The caller sent no valid offer.
                Err(_) => {}
            }
        }
        self.incoming.retain_mut(|link| !link.is_over());
        if !has_room || self.is_full() {
            // A sender that is not accepted would wait indefinitely, and a refused one would offer
            // the next ring immediately. Without a listener both use the network.
            self.stop_listening();
        }
        self.routes.retain(|_, route| match route {
            Route::Ring(index) => match &mut self.rings[*index] {
                Some(link) if !is_gone(&link.line) => true,
                ring => {
                    // A process that refuses a ring, for example because of its version, would
                    // refuse the next one too.
                    let refused = ring.take().is_some_and(|mut link| link.is_untouched());
                    if refused {
                        *route = Route::Wire(OFFER_AGAIN);
                    }
                    refused
                }
            },
            Route::Loopback | Route::Wire(_) => true,
        });
        self.last = None;
        true
    }

    /// Accepts waiting callers of this user. Returns `false` if no descriptors are left for them.
    fn take_callers(&mut self) -> bool {
        let mut has_room = true;
        for listener in self.listeners.sockets() {
            // Other users may connect as fast as they are turned away, so the loop is bounded.
            for _ in 0..MAX_CALLERS {
                match listener.accept() {
                    Ok(caller) => {
                        if let Ok(caller) = Registered::new(caller, &self.epoll, CONTROL) {
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

    /// Returns whether the maximum number of rings is reached.
    fn is_full(&self) -> bool {
        self.incoming.len() >= MAX_INCOMING
    }

    /// Stops listening, so that senders use the network for a while.
    fn stop_listening(&mut self) {
        self.listeners.close();
        self.listen_again_in = LISTEN_AGAIN_AFTER;
    }
}

/// Returns whether this process or the host has no descriptors or no memory left.
fn is_exhausted(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}
