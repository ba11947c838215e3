//! Finds the owner of a socket or lock in `/proc`, as far as an ordinary user can read it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::PortOwner;
use rxe_sys::may_block;

/// The tables of the UDP sockets in this thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];

/// Returns the owner of a UDP socket that conflicts with one on this address and port. Returns
/// `None` if `/proc` shows no such socket (or there is no `/proc`).
pub(crate) fn of(address: IpAddr, port: u16) -> Option<PortOwner> {
    may_block("searching /proc");
    let bound = TABLES.into_iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| in_the_way(line, address, port))
    })?;
    let process = (bound.inode != 0).then(|| process_with_socket(bound.inode)).flatten();
    Some(process.unwrap_or_else(|| bound.hidden()))
}

/// Returns the owner of a Unix socket bound to this path. Returns `None` if there is no such socket
/// (or no `/proc`).
pub(crate) fn of_unix(path: &Path) -> Option<PortOwner> {
    may_block("searching /proc");
    let table = fs::read("/proc/thread-self/net/unix").ok()?;
    unix_inode(&table, path).map(of_inode)
}

/// Finds the inode of the socket bound to this path. Other names in the table may contain any
/// bytes.
fn unix_inode(table: &[u8], path: &Path) -> Option<u64> {
    let path = [b" ", path.as_os_str().as_bytes()].concat();
    let here = table.split(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(&path[..]));
    let mut inodes = here.filter_map(|line| {
        str::from_utf8(line).ok()?.split_ascii_whitespace().nth(6)?.parse().ok()
    });
    // Connections that are not accepted yet have the same path and inode 0.
    inodes.find(|inode| *inode != 0)
}

/// A UDP socket in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) inode: u64,
    /// The user ID of the owner.
    pub(crate) uid: u32,
}

impl Bound {
    /// Returns the owner if no visible process has the socket. The kernel's own sockets belong to
    /// root.
    fn hidden(self) -> PortOwner {
        /// The user ID in a user namespace for all users that are not mapped, including root of the
        /// host.
        const UNKNOWN: u32 = 65534;
        match self.uid {
            0 | UNKNOWN => PortOwner::Hidden,
            uid => PortOwner::User { uid },
        }
    }
}

/// Returns the sockets bound to exactly this address and port.
pub(crate) fn bound(address: IpAddr, port: u16) -> impl Iterator<Item = Bound> {
    may_block("searching /proc");
    TABLES.into_iter().filter_map(|table| fs::read_to_string(table).ok()).flat_map(move |table| {
        let lines = table.lines().skip(1).filter_map(parse_line);
        let here = lines.filter(|(ip, p, _)| (*ip, *p) == (address, port));
        here.map(|(_, _, bound)| bound).collect::<Vec<_>>()
    })
}

/// Returns the process that has locked a file with flock(2).
pub(crate) fn of_flock(device: u64, inode: u64) -> Option<PortOwner> {
    may_block("searching /proc");
    let table = fs::read_to_string("/proc/locks").ok()?;
    of_pid(table.lines().find_map(|line| flock_pid(line, device, inode))?)
}

/// Parses the process ID in a line such as `1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF`.
fn flock_pid(line: &str, device: u64, inode: u64) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if fields.next()? != "FLOCK" {
        return None;
    }
    let (pid, file) = (fields.nth(2)?, fields.next()?);
    let mut numbers = file.split(':');
    let mut hex = || u32::from_str_radix(numbers.next()?, 16).ok();
    let named = rustix::fs::makedev(hex()?, hex()?);
    let same = named == device && numbers.next()?.parse() == Ok(inode);
    pid.parse().ok().filter(|_| same)
}

/// Returns the process with this ID, or `None` if it is not visible here.
pub(crate) fn of_pid(pid: u32) -> Option<PortOwner> {
    process_name(pid).map(|name| PortOwner::Process { pid, name })
}

/// Returns the name of a process, with control characters replaced. Returns `None` if the process
/// is not visible here.
pub fn process_name(pid: u32) -> Option<String> {
    may_block("searching /proc");
    Some(printable(&fs::read(format!("/proc/{pid}/comm")).ok()?))
}

/// Returns whether a signal or a debugger has stopped a process, or `None` if it is not visible
/// here.
pub fn process_is_stopped(pid: u32) -> Option<bool> {
    Some(matches!(stat(pid)?.as_bytes().first(), Some(b'T' | b't')))
}

/// Returns the process ID of the parent of a process, or `None` if the process is not visible here.
/// The parent is 0 if it is not visible here.
pub fn process_parent(pid: u32) -> Option<u32> {
    stat(pid)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the fields of `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<String> {
    may_block("searching /proc");
    let mut stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name before the state may contain anything, even part of a character.
    let name_ends = stat.windows(2).rposition(|end| end == b") ")?;
    String::from_utf8(stat.split_off(name_ends + 2)).ok()
}

/// Returns whether the owner is a process that is known to be stopped.
pub(crate) fn is_stopped(owner: &PortOwner) -> bool {
    matches!(owner, PortOwner::Process { pid, .. } if process_is_stopped(*pid) == Some(true))
}

/// Converts a name to text. A program may choose any bytes, and the kernel truncates the name to 15
/// bytes, possibly within a character.
fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns the owner of a socket.
pub(crate) fn of_inode(inode: u64) -> PortOwner {
    process_with_socket(inode).unwrap_or(PortOwner::Hidden)
}

/// Parses a line of `/proc/net/udp` or `udp6`. Returns the socket if it is bound to this port and
/// to this address or to all addresses.
fn in_the_way(line: &str, address: IpAddr, port: u16) -> Option<Bound> {
    let (ip, line_port, bound) = parse_line(line)?;
    let same = ip == address
        || ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        || (ip == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && address.is_ipv4());
    (line_port == port && same).then_some(bound)
}

/// Parses address, port and socket in a line of `/proc/net/udp` or `udp6`.
fn parse_line(line: &str) -> Option<(IpAddr, u16, Bound)> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((parse_address(ip)?, port, Bound { inode, uid }))
}

/// Parses an address of `/proc/net`: hexadecimal 32-bit words, each in the machine's byte order.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let word = |i: usize| {
        let digits = hex.get(i * 8..i * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (i, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(i)?);
            }
            // An IPv6 socket may be bound to a mapped IPv4 address.
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

/// Returns the process that has a descriptor of this socket, if this process may inspect it.
fn process_with_socket(inode: u64) -> Option<PortOwner> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        let has = fds
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()));
        if has {
            return of_pid(pid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_locks_are_understood() {
        let device = rustix::fs::makedev(0, 0x1a);
        let line = "1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF";
        assert_eq!(flock_pid(line, device, 42), Some(4711));
        assert_eq!(flock_pid(line, device, 43), None);
        assert_eq!(flock_pid(&line.replace("1a", "1b"), device, 42), None);
        assert_eq!(flock_pid(&line.replace("FLOCK", "POSIX"), device, 42), None);
        assert_eq!(flock_pid("1: FLOCK", device, 42), None);
    }

    #[test]
    fn names_of_sockets_and_programs_may_have_any_bytes() {
        let line = |inode: u64, path: &str| {
            format!("0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {path}\n")
        };
        let mut table = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
        table.extend(b"0000000000000000: 00000002 00000000 00010000 0001 01 5 /tmp/\xff\n");
        let lines = [line(0, "/tmp/a/1"), line(6, "/b/tmp/a/1"), line(7, "/tmp/a/1")];
        table.extend(lines.concat().bytes());
        assert_eq!(unix_inode(&table, Path::new("/tmp/a/1")), Some(7));
        assert_eq!(unix_inode(&table, Path::new("/tmp/a/2")), None);

        assert_eq!(printable("中文程序\n".as_bytes()), "中文程序");
        assert_eq!(printable(b"\x1b[2J cut \xe4\xb8\n"), "?[2J cut \u{fffd}");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_proc_net_udp_are_understood() {
        let line = "  96: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    1000        0 4711 2 0000000000000000 0";
        let at = |a: &str| in_the_way(line, a.parse().unwrap(), 4791);
        let bound = Bound { inode: 4711, uid: 1000 };
        assert_eq!(at("127.0.0.1"), Some(bound));
        assert_eq!(at("127.0.0.2"), None);
        assert_eq!(in_the_way(line, "127.0.0.1".parse().unwrap(), 53), None);
        assert_eq!(parse_address("00000000000000000000000001000000"), Some("::1".parse().unwrap()));
        assert_eq!(parse_address("nonsense"), None);
    }

    #[test]
    fn a_socket_of_both_families_is_in_the_way_of_its_ipv4_address() {
        let socket = std::net::UdpSocket::bind("[::ffff:127.0.0.1]:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = of_pid(std::process::id());
        assert!(own.is_some());
        assert_eq!(of(Ipv4Addr::LOCALHOST.into(), port), own);
        assert_eq!(of(Ipv6Addr::LOCALHOST.into(), port), None);
    }

    #[test]
    fn a_socket_without_a_visible_process_has_a_user_unless_it_may_be_the_kernels() {
        let hidden = |uid| Bound { inode: 4711, uid }.hidden();
        assert_eq!(hidden(1000), PortOwner::User { uid: 1000 });
        assert_eq!([hidden(0), hidden(65534)], [PortOwner::Hidden, PortOwner::Hidden]);
    }
}
