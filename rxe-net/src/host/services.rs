//! The services that a device listens to. It claims each service in the user's directory, once per
//! address ([`super::directory`]).
//!
//! Claims are files. So only [`Services::has`] may be called under a shard's lock.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rxe_core::cm::CLOSED_FOR;
use rxe_core::cm::service::PortSpace;

use super::directory::{Claim, Directory, ListenAddress, ScopedAddr};
use crate::error::NetError;

/// The claims of a device to the services that it listens to.
#[derive(Debug)]
pub(super) struct Services {
    directory: Arc<Directory>,
    scope: u32,
    claims: Mutex<Claims>,
    /// The services and addresses in `claims.claimed`. Only locked briefly, so that a shard can
    /// read it.
    own: Mutex<HashSet<(u64, IpAddr)>>,
}

/// The state that is locked while files are created and removed.
#[derive(Debug, Default)]
struct Claims {
    /// The addresses, with the device's first block on each.
    addresses: Vec<(IpAddr, u8)>,
    /// The services, with the addresses to listen on (see [`covers`]).
    listened: Vec<(u64, Option<IpAddr>)>,
    claimed: Vec<(u64, IpAddr, Claim)>,
    /// The entries of `listened` for ended listeners, the oldest first, with the time when each
    /// expires.
    closed: VecDeque<(Instant, u64, Option<IpAddr>)>,
}

/// The maximum number of ended listeners that keep a claim. Each costs one descriptor per address.
const MAX_CLOSED: usize = 8;

impl Services {
    /// Creates an empty set for the interface with index `scope`.
    pub(super) fn new(directory: Arc<Directory>, scope: u32) -> Self {
        Self { directory, scope, claims: Mutex::default(), own: Mutex::default() }
    }

    /// Returns whether the device listens to a service on an address.
    pub(super) fn has(&self, service: u64, address: IpAddr) -> bool {
        self.own.lock().contains(&(service, address))
    }

    /// Adds an address on which the device has this block, and claims the services on it.
    ///
    /// # Errors
    /// Another process already listens there to a service that the device has on all addresses.
    pub(super) fn enter(&self, address: IpAddr, block: u8) -> Result<(), NetError> {
        let mut claims = self.claims.lock();
        claims.addresses.push((address, block));
        let covered = |(_, at): &&(u64, Option<IpAddr>)| {
            at.is_none_or(|at| at.is_unspecified()) && covers(*at, address)
        };
        let wanted: Vec<_> = claims.listened.iter().filter(covered).copied().collect();
        let mut wanted = wanted.into_iter();
        wanted.try_for_each(|(service, at)| self.claim(&mut claims, service, at, address))
    }

    /// Removes an address and its claims.
    pub(super) fn leave(&self, address: IpAddr) {
        let mut claims = self.claims.lock();
        claims.addresses.retain(|(own, _)| *own != address);
        self.release(&mut claims, |_, at| at == address);
    }

    /// Listens to a service on this address. An unspecified address means all of its family, `None`
    /// all.
    pub(super) fn listen(&self, service: u64, address: Option<IpAddr>) -> Result<(), NetError> {
        let mut claims = self.claims.lock();
        self.add(&mut claims, service, address)?;
        self.forget_closed(&mut claims, |_, closed| closed == closed_service(service));
        Ok(())
    }

    /// Undoes [`Services::listen`].
    pub(super) fn unlisten(&self, service: u64, address: Option<IpAddr>) {
        self.remove(&mut self.claims.lock(), service, address);
    }

    /// Like [`Services::unlisten`], but keeps receiving requests for [`CLOSED_FOR`]. These are
    /// requests that reach other processes, unless another process listens.
    pub(super) fn close(&self, service: u64, address: Option<IpAddr>) {
        let mut claims = self.claims.lock();
        let closed = closed_service(service);
        let before = claims.closed.len();
        claims.closed.retain(|&(_, other, at)| (other, at) != (closed, address));
        let known = claims.closed.len() < before;
        // If another process has claimed the closed service already, requests go there.
        if known || before < MAX_CLOSED && self.add(&mut claims, closed, address).is_ok() {
            claims.closed.push_back((Instant::now() + CLOSED_FOR, closed, address));
        }
        self.remove(&mut claims, service, address);
    }

    /// Releases the claims of ended listeners whose time is over. Returns when to call this again.
    pub(super) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut claims = self.claims.lock();
        self.forget_closed(&mut claims, |until, _| until <= now);
        claims.closed.front().map(|(until, ..)| *until)
    }

    /// Releases all claims.
    pub(super) fn close_all(&self) {
        let mut claims = self.claims.lock();
        self.release(&mut claims, |_, _| true);
        *claims = Claims::default();
    }

    fn add(
        &self,
        claims: &mut Claims,
        service: u64,
        address: Option<IpAddr>,
    ) -> Result<(), NetError> {
        let own = claims.addresses.iter().map(|(own, _)| *own).filter(|own| covers(address, *own));
        let wanted: Vec<_> = own.collect();
        for (done, own) in wanted.iter().enumerate() {
            if let Err(e) = self.claim(claims, service, address, *own) {
                self.release(claims, |claimed, at| {
                    claimed == service && wanted[..done].contains(&at)
                });
                return Err(e);
            }
        }
        claims.listened.push((service, address));
        Ok(())
    }

    fn remove(&self, claims: &mut Claims, service: u64, address: Option<IpAddr>) {
        claims.listened.retain(|listened| *listened != (service, address));
        self.release(claims, |claimed, at| claimed == service && covers(address, at));
    }

    fn forget_closed(&self, claims: &mut Claims, goes: impl Fn(Instant, u64) -> bool) {
        let Claims { closed, .. } = claims;
        let gone: Vec<_> = closed.iter().filter(|c| goes(c.0, c.1)).copied().collect();
        closed.retain(|c| !goes(c.0, c.1));
        for (_, service, address) in gone {
            self.remove(claims, service, address);
        }
    }

    /// Claims a service on one address for a listener `at` that [`covers`] the address.
    fn claim(
        &self,
        claims: &mut Claims,
        service: u64,
        at: Option<IpAddr>,
        address: IpAddr,
    ) -> Result<(), NetError> {
        if self.has(service, address) {
            return Err(NetError::ServiceTaken { service, address });
        }
        let own = claims.addresses.iter().find(|(own, _)| *own == address);
        let Some((_, block)) = own else { return Ok(()) };
        let addr = ScopedAddr::new(address, self.scope);
        let listen = match at {
            None => ListenAddress::All,
            Some(at) if at.is_unspecified() => ListenAddress::Family,
            Some(_) => ListenAddress::This,
        };
        let claim = self.directory.claim(&addr, service, *block, listen);
        let Some(claim) = claim.map_err(|e| NetError::os("claim a service", e))? else {
            let address = match (self.directory.claimed_at(&addr, service), address) {
                (ListenAddress::This, _) => address,
                (ListenAddress::Family, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
                _ => Ipv6Addr::UNSPECIFIED.into(),
            };
            return Err(NetError::ServiceTaken { service, address });
        };
        claims.claimed.push((service, address, claim));
        self.own.lock().insert((service, address));
        Ok(())
    }

    fn release(&self, claims: &mut Claims, goes: impl Fn(u64, IpAddr) -> bool) {
        self.own.lock().retain(|(service, at)| !goes(*service, *at));
        claims.claimed.retain(|(service, at, _)| !goes(*service, *at));
    }
}

/// Returns the service to claim for requests without a listener. The requests are to the port of
/// `service`, in any port space. A process that has ended a listener keeps this claim for a moment,
/// in case it creates the next listener.
pub(super) fn closed_service(service: u64) -> u64 {
    PortSpace::same_port(service) | 1 << 63
}

/// Returns whether a listener `at` receives on the address `own`. `None` covers all addresses, an
/// unspecified address all of its family.
fn covers(at: Option<IpAddr>, own: IpAddr) -> bool {
    at.is_none_or(|at| at == own || (at.is_unspecified() && at.is_ipv4() == own.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: u64 = 0x0106_0007;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    /// Returns two devices that share an address, and a function that reads their claims.
    fn two() -> (tempfile::TempDir, [Services; 2], impl Fn(u64) -> Option<u8>) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::first_of([scratch.path().join("rxe")]));
        let devices = [1, 2].map(|block| {
            let services = Services::new(Arc::clone(&directory), 0);
            services.enter(ip("10.0.0.1"), block).unwrap();
            services
        });
        let addr = ScopedAddr::new(ip("10.0.0.1"), 0);
        (scratch, devices, move |service| directory.claimed_by(&addr, service))
    }

    #[test]
    fn a_service_is_one_device_s_until_it_ends() {
        let (_scratch, [a, b], claimed_by) = two();
        a.listen(SERVICE, None).unwrap();
        assert!(a.has(SERVICE, ip("10.0.0.1")) && !b.has(SERVICE, ip("10.0.0.1")));
        assert_eq!(claimed_by(SERVICE), Some(1));
        for (device, at) in [(&b, Some(ip("10.0.0.1"))), (&a, None), (&b, Some(ip("0.0.0.0")))] {
            assert!(matches!(device.listen(SERVICE, at), Err(NetError::ServiceTaken { .. })));
        }
        assert!(a.has(SERVICE, ip("10.0.0.1")), "a refused listener takes nothing away");
        b.listen(SERVICE, Some(ip("::"))).unwrap();
        a.unlisten(SERVICE, None);
        assert!(!a.has(SERVICE, ip("10.0.0.1")));
        assert_eq!(claimed_by(SERVICE), None);
        b.listen(SERVICE, Some(ip("10.0.0.1"))).unwrap();
        assert_eq!(claimed_by(SERVICE), Some(2));
    }

    #[test]
    fn a_listener_that_is_refused_on_one_address_claims_none() {
        let (_scratch, [a, b], claimed_by) = two();
        b.enter(ip("10.0.0.2"), 2).unwrap();
        b.listen(SERVICE, Some(ip("10.0.0.2"))).unwrap();
        a.enter(ip("10.0.0.2"), 1).unwrap();
        assert!(matches!(a.listen(SERVICE, None), Err(NetError::ServiceTaken { .. })));
        assert!(!a.has(SERVICE, ip("10.0.0.1")) && claimed_by(SERVICE).is_none());
        b.listen(SERVICE, Some(ip("10.0.0.1"))).unwrap();
    }

    #[test]
    fn who_is_refused_is_told_where_the_other_listens() {
        let (_scratch, [a, b], _) = two();
        let own = ip("10.0.0.1");
        for (there, named) in
            [(Some(own), own), (Some(ip("0.0.0.0")), ip("0.0.0.0")), (None, ip("::"))]
        {
            a.listen(SERVICE, there).unwrap();
            for at in [Some(own), Some(ip("0.0.0.0")), None] {
                match b.listen(SERVICE, at) {
                    Err(NetError::ServiceTaken { address, .. }) => assert_eq!(address, named),
                    other => panic!("{other:?}"),
                }
            }
            a.unlisten(SERVICE, there);
        }
    }

    #[test]
    fn addresses_come_with_what_is_listened_to_and_go() {
        let (_scratch, [a, b], _) = two();
        a.listen(SERVICE, None).unwrap();
        a.listen(SERVICE + 1, Some(ip("10.0.0.1"))).unwrap();
        b.listen(SERVICE, Some(ip("10.0.0.2"))).unwrap();
        b.enter(ip("10.0.0.3"), 2).unwrap();
        b.listen(SERVICE, Some(ip("10.0.0.3"))).unwrap();
        a.enter(ip("10.0.0.2"), 1).unwrap();
        assert!(a.has(SERVICE, ip("10.0.0.2")) && !a.has(SERVICE + 1, ip("10.0.0.2")));
        assert!(matches!(a.enter(ip("10.0.0.3"), 1), Err(NetError::ServiceTaken { .. })));
        a.leave(ip("10.0.0.1"));
        b.listen(SERVICE, Some(ip("10.0.0.1"))).unwrap();
        a.listen(SERVICE + 1, Some(ip("10.0.0.2"))).unwrap();
        a.close(SERVICE + 1, Some(ip("10.0.0.2")));
        assert!(a.expire(Instant::now()).is_some());
        a.listen(SERVICE + 2, None).unwrap();
        a.close_all();
        assert!(!a.has(SERVICE + 2, ip("10.0.0.2")));
        assert_eq!(a.expire(Instant::now()), None, "nothing that has ended is kept either");
        a.enter(ip("10.0.0.4"), 1).unwrap();
        assert!(!a.has(SERVICE + 2, ip("10.0.0.4")), "and nothing is listened to");
    }

    #[test]
    fn a_listener_on_one_address_ends_without_the_one_on_another() {
        let (_scratch, [a, _], _) = two();
        a.enter(ip("10.0.0.2"), 1).unwrap();
        let (one, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
        a.listen(SERVICE, Some(one)).unwrap();
        a.listen(SERVICE, Some(other)).unwrap();
        a.unlisten(SERVICE, Some(one));
        assert!(!a.has(SERVICE, one) && a.has(SERVICE, other));
    }

    #[test]
    fn what_has_ended_is_kept_for_a_while_or_until_the_next() {
        let (_scratch, [a, b], claimed_by) = two();
        let closed = closed_service(SERVICE);
        a.listen(SERVICE, None).unwrap();
        a.close(SERVICE, None);
        assert_eq!((claimed_by(SERVICE), claimed_by(closed)), (None, Some(1)));
        // The other process listens and ends too, but the first one keeps the claim.
        b.listen(SERVICE, None).unwrap();
        b.close(SERVICE, None);
        assert_eq!(b.expire(Instant::now()), None);
        let until = a.expire(Instant::now()).unwrap();
        assert_eq!((a.expire(until), claimed_by(closed)), (None, None));
        a.listen(SERVICE, None).unwrap();
        a.close(SERVICE, None);
        a.listen(SERVICE, None).unwrap();
        assert_eq!((claimed_by(SERVICE), claimed_by(closed)), (Some(1), None));
        for service in 0..2 * MAX_CLOSED as u64 {
            a.listen(service, None).unwrap();
            a.close(service, None);
        }
        assert_eq!(a.claims.lock().closed.len(), MAX_CLOSED);
    }
}
