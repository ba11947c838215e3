//! The part of an endpoint that is no RDMA, by smoltcp: it answers ARP, neighbour discovery and ping,
//! and gets an IPv4 address by DHCP.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_core::types::Time;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use crate::Address;

/// The stack, and the frames between it and the link.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    queues: Queues,
}

/// What a DHCP server has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ip: Ipv4Addr,
    pub(super) prefix_len: u8,
    pub(super) router: Option<Ipv4Addr>,
}

/// Frames to the link that wait, at most.
const MAX_OUTPUT: usize = 64;
const ETHERNET: usize = 14;

impl Stack {
    /// One without addresses.
    pub(super) fn new(mac: [u8; 6], mtu: usize, dhcp: bool, now: Time) -> Self {
        let mut queues = Queues { mtu: mtu + ETHERNET, input: None, output: VecDeque::new() };
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        // Transaction IDs begin with it.
        let mut seed = [0; 8];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        config.random_seed = u64::from_ne_bytes(seed);
        let interface = Interface::new(config, &mut queues, instant(now));
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = dhcp.then(|| sockets.add(dhcpv4::Socket::new()));
        Self { interface, sockets, dhcp, queues }
    }

    /// Answers for these addresses from now on. Its own packets to other networks go to these
    /// gateways.
    pub(super) fn set_addresses(&mut self, addresses: &[Address], gateways: &[IpAddr]) {
        self.interface.update_ip_addrs(|all| {
            all.clear();
            for address in addresses {
                // The configuration holds no more than there is room for.
                let _ = all.push(IpCidr::new(address.ip.into(), address.prefix_len));
            }
        });
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        routes.remove_default_ipv6_route();
        for gateway in gateways {
            let _ = match gateway {
                IpAddr::V4(ip) => routes.add_default_ipv4_route(*ip).map(drop),
                IpAddr::V6(ip) => routes.add_default_ipv6_route(*ip).map(drop),
            };
        }
    }

    /// Processes a frame from the link.
    pub(super) fn input(&mut self, frame: &[u8], now: Time) {
        self.queues.input = Some(frame.to_vec());
        self.poll(now);
        self.queues.input = None;
    }

    /// Does what is due.
    pub(super) fn poll(&mut self, now: Time) {
        self.interface.poll(instant(now), &mut self.queues, &mut self.sockets);
    }

    /// What a DHCP server has changed since this was last asked: a lease, or `None` where it has
    /// ended.
    pub(super) fn take_lease(&mut self) -> Option<Option<Lease>> {
        let socket = self.sockets.get_mut::<dhcpv4::Socket<'_>>(self.dhcp?);
        Some(match socket.poll()? {
            dhcpv4::Event::Deconfigured => None,
            dhcpv4::Event::Configured(config) => Some(Lease {
                ip: config.address.address(),
                prefix_len: config.address.prefix_len(),
                router: config.router,
            }),
        })
    }

    /// The next frame for the link.
    pub(super) fn output(&mut self) -> Option<Vec<u8>> {
        self.queues.output.pop_front()
    }

    /// When [`Stack::poll`] has something to do next.
    pub(super) fn deadline(&mut self, now: Time) -> Option<Time> {
        let delay = self.interface.poll_delay(instant(now), &self.sockets)?;
        Some(now + Duration::from_micros(delay.total_micros()))
    }
}

fn instant(time: Time) -> Instant {
    Instant::from_micros(i64::try_from(time.as_nanos() / 1000).unwrap_or(i64::MAX))
}

struct Queues {
    /// Bytes of the longest frame.
    mtu: usize,
    input: Option<Vec<u8>>,
    output: VecDeque<Vec<u8>>,
}

struct Input(Vec<u8>);

struct Output<'a>(&'a mut VecDeque<Vec<u8>>);

impl Device for Queues {
    type RxToken<'a> = Input;
    type TxToken<'a> = Output<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Input, Output<'_>)> {
        let frame = self.input.take()?;
        Some((Input(frame), Output(&mut self.output)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Output<'_>> {
        (self.output.len() < MAX_OUTPUT).then_some(Output(&mut self.output))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

impl RxToken for Input {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Output<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        // While the link takes nothing, answers are lost, as on any wire.
        if self.0.len() < MAX_OUTPUT {
            self.0.push_back(frame);
        }
        result
    }
}
