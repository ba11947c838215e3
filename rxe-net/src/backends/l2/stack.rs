//! The part of an endpoint that is not RDMA, by smoltcp. It answers ARP, neighbour discovery and
//! ping, and obtains an IPv4 address by DHCP.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_core::types::Time;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress,
    EthernetProtocol, HardwareAddress, IpAddress, IpCidr, IpProtocol, Ipv4Packet, Ipv4Repr,
    UdpPacket, UdpRepr,
};

use super::discovery::ethernet;
use crate::interface::{Address, Scope};

/// The smoltcp stack, and the frames between it and the link.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    queues: Queues,
}

/// A lease from a DHCP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ip: Ipv4Addr,
    pub(super) prefix_len: u8,
    pub(super) router: Option<Ipv4Addr>,
    /// The identifier of the server.
    pub(super) server: Ipv4Addr,
}

impl Lease {
    /// Returns the leased address.
    pub(super) fn address(&self) -> Address {
        Address {
            ip: self.ip.into(),
            prefix_len: self.prefix_len,
            scope: Scope::Global,
            tentative: false,
            duplicate: false,
        }
    }

    /// Returns the DHCPDECLINE frame, which tells the server that another host has the address. RFC
    /// 2131, section 4.4.1. smoltcp does not send it.
    pub(super) fn decline(&self, mac: [u8; 6]) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut number = [0; 4];
        let _ = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
        let message = DhcpRepr {
            message_type: DhcpMessageType::Decline,
            transaction_id: u32::from_ne_bytes(number),
            secs: 0,
            client_hardware_address: EthernetAddress(mac),
            client_ip: none,
            your_ip: none,
            server_ip: none,
            router: None,
            subnet_mask: None,
            relay_agent_ip: none,
            broadcast: false,
            requested_ip: Some(self.ip),
            client_identifier: Some(EthernetAddress(mac)),
            server_identifier: Some(self.server),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        };
        let udp = UdpRepr { src_port: DHCP_CLIENT_PORT, dst_port: DHCP_SERVER_PORT };
        let (len, all) = (message.buffer_len(), Ipv4Addr::BROADCAST);
        let ip = Ipv4Repr {
            src_addr: none,
            dst_addr: all,
            next_header: IpProtocol::Udp,
            payload_len: udp.header_len() + len,
            hop_limit: 64,
        };
        let sums = ChecksumCapabilities::default();
        let whole = ip.buffer_len() + ip.payload_len;
        ethernet(mac, [0xff; 6], EthernetProtocol::Ipv4, whole, |payload| {
            let mut packet = Ipv4Packet::new_unchecked(payload);
            ip.emit(&mut packet, &sums);
            let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
            let [from, to] = [none, all].map(IpAddress::Ipv4);
            // The buffer has the length that `buffer_len` returns, so this does not fail.
            let write = |bytes: &mut [u8]| _ = message.emit(&mut DhcpPacket::new_unchecked(bytes));
            udp.emit(&mut datagram, &from, &to, len, write, &sums);
        })
    }
}

/// The maximum number of frames that wait for the link.
const MAX_OUTPUT: usize = 64;
const ETHERNET: usize = 14;

impl Stack {
    /// Creates a stack without addresses.
    pub(super) fn new(mac: [u8; 6], mtu: usize, dhcp: bool, now: Time) -> Self {
        let mut queues = Queues { mtu: mtu + ETHERNET, input: None, output: VecDeque::new() };
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        // The seed determines the transaction IDs.
        let mut seed = [0; 8];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        config.random_seed = u64::from_ne_bytes(seed);
        let interface = Interface::new(config, &mut queues, instant(now));
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = dhcp.then(|| sockets.add(dhcpv4::Socket::new()));
        Self { interface, sockets, dhcp, queues }
    }

    /// Replaces the addresses that the stack answers for, and its gateways. The gateways are for
    /// the stack's own packets to other networks.
    pub(super) fn set_addresses(&mut self, addresses: &[Address], gateways: &[IpAddr]) {
        self.interface.update_ip_addrs(|all| {
            all.clear();
            for address in addresses {
                // Does not fail: the configuration has no more addresses than there is room for.
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

    /// Does the work that is due.
    pub(super) fn poll(&mut self, now: Time) {
        self.interface.poll(instant(now), &mut self.queues, &mut self.sockets);
    }

    /// Returns the DHCP change since the last call. It is a new lease, or `Some(None)` if the lease
    /// has ended.
    pub(super) fn take_lease(&mut self) -> Option<Option<Lease>> {
        let socket = self.sockets.get_mut::<dhcpv4::Socket<'_>>(self.dhcp?);
        Some(match socket.poll()? {
            dhcpv4::Event::Deconfigured => None,
            dhcpv4::Event::Configured(config) => Some(Lease {
                ip: config.address.address(),
                prefix_len: config.address.prefix_len(),
                router: config.router,
                server: config.server.identifier,
            }),
        })
    }

    /// Returns the next frame for the link.
    pub(super) fn output(&mut self) -> Option<Vec<u8>> {
        self.queues.output.pop_front()
    }

    /// Returns when [`Stack::poll`] has work next.
    pub(super) fn deadline(&mut self, now: Time) -> Option<Time> {
        let delay = self.interface.poll_delay(instant(now), &self.sockets)?;
        Some(now + Duration::from_micros(delay.total_micros()))
    }
}

fn instant(time: Time) -> Instant {
    Instant::from_micros(i64::try_from(time.as_nanos() / 1000).unwrap_or(i64::MAX))
}

struct Queues {
    /// The maximum length of a frame in bytes.
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
        // While the link accepts nothing, answers are lost, as on any wire.
        if self.0.len() < MAX_OUTPUT {
            self.0.push_back(frame);
        }
        result
    }
}
