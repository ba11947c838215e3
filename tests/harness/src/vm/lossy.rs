//! A link of two VMs that loses specified packets, and captures the packets at either end.
//!
//! Each VM's card is a unix socket ([`Net::socket`]); two threads carry the frames between the
//! sockets. Therefore the loss is on the link, the lost packets do not depend on time, and no
//! privilege is needed.

use super::{Error, Net, Result};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum size of a frame in bytes.
const MAX_FRAME: usize = 1 << 16;

/// Two links for one VM each, and the state shared by the threads that carry frames.
#[derive(Debug)]
pub struct Lossy {
    nets: [Net; 2],
    state: Arc<Mutex<State>>,
}

/// A RoCEv2 frame that one of the ends has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The time in nanoseconds since 1970.
    pub at: u128,
    /// The index of the sender.
    pub from: usize,
    /// Whether the link lost it.
    pub is_lost: bool,
    /// The bytes of the frame.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// The RoCEv2 frames of each end to lose, counted from 0 since the last [`Lossy::lose`].
    lose: [Vec<usize>; 2],
    count: [usize; 2],
    passed: Vec<Passed>,
}

impl Lossy {
    /// Creates a link without VMs.
    ///
    /// # Errors
    /// No directory for the sockets can be created.
    pub fn new(mtu: u32) -> Result<Self> {
        let nets = [Net::socket(mtu)?, Net::numbered_socket(mtu, 1)?];
        Ok(Self { nets, state: Arc::default() })
    }

    /// Returns the link of each VM, for [`Vm::boot`](super::Vm::boot).
    pub fn nets(&self) -> &[Net; 2] {
        &self.nets
    }

    /// Connects the two links, once their VMs have booted.
    ///
    /// # Errors
    /// A VM is gone.
    pub fn join(&self) -> Result<()> {
        let failed = |e: io::Error| Error::Failed(format!("a VM's socket: {e}"));
        let connect = |net: &Net| UnixStream::connect(net.socket_path().unwrap_or_default());
        let [a, b] =
            [connect(&self.nets[0]).map_err(failed)?, connect(&self.nets[1]).map_err(failed)?];
        for (from, here, there) in [(0, &a, &b), (1, &b, &a)] {
            let (here, mut there) =
                (here.try_clone().map_err(failed)?, there.try_clone().map_err(failed)?);
            let state = Arc::clone(&self.state);
            // The thread ends with the VM.
            thread::spawn(move || carry(from, BufReader::new(here), &mut there, &state));
        }
        Ok(())
    }

    /// Makes the link lose these RoCEv2 frames of each end, counted from 0 and from now.
    pub fn lose(&self, frames: [Vec<usize>; 2]) {
        *lock(&self.state) = State { lose: frames, ..State::default() };
    }

    /// Returns the frames that have passed since [`Lossy::lose`] was called, in order.
    pub fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut lock(&self.state).passed)
    }
}

/// Carries frames, each prefixed by its length as QEMU sends them, until an end is gone.
fn carry(
    from: usize,
    mut here: impl Read,
    there: &mut impl Write,
    state: &Mutex<State>,
) -> Option<()> {
    loop {
        let mut length = [0; 4];
        here.read_exact(&mut length).ok()?;
        let len =
            usize::try_from(u32::from_be_bytes(length)).ok().filter(|len| *len <= MAX_FRAME)?;
        let mut bytes = vec![0; len];
        here.read_exact(&mut bytes).ok()?;
        if is_roce(&bytes) && lock(state).is_lost(from, &bytes) {
            continue;
        }
        there.write_all(&[&length[..], &bytes].concat()).ok()?;
    }
}

impl State {
    fn is_lost(&mut self, from: usize, bytes: &[u8]) -> bool {
        let is_lost = self.lose[from].contains(&self.count[from]);
        self.count[from] += 1;
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.passed.push(Passed { at, from, is_lost, bytes: bytes.to_vec() });
        is_lost
    }
}

/// Returns whether this is a UDP datagram over IPv4 to port 4791. The kernels' IP headers have no
/// options.
fn is_roce(frame: &[u8]) -> bool {
    let word = |at: usize| frame.get(at..at + 2);
    word(12) == Some(&[8, 0]) && frame.get(23) == Some(&17) && word(36) == Some(&[0x12, 0xb7])
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
