//! The XDP program, which selects the frames for this process's AF_XDP sockets. All other frames
//! continue to the kernel (XDP_PASS), as if there were no program. Instruction set: RFC 9669.
//!
//! A frame is redirected if it is for the interface's Ethernet address, has no VLAN tag or up to
//! two of VLAN 0 (which only carry a priority), and holds a whole UDP datagram to port 4791, to one
//! of the addresses and QPN blocks in the maps. It goes to the socket that the block's shard has on
//! the queue that the frame arrived on: the kernel cannot redirect frames to a socket on another
//! queue. IPv4 headers with options, fragments and IPv6 extension headers go to the kernel, whose
//! UDP socket delivers them to this process too. So do frames of other VLANs, which belong to other
//! interfaces, and packets to QP1 and to other processes' blocks. (A tag that the network card has
//! removed from a frame is not visible here.)
//!
//! In generic mode the kernel may pass the program several datagrams merged into one (GRO, and GSO
//! of a virtual interface), without saying so. Merged datagrams have a UDP checksum, and RoCEv2
//! needs none: in this mode, only datagrams without a checksum are redirected.

use rxe_core::wire::{QPN_BLOCK, UDP_PORT};

use rxe_sys::bpf::Instruction;

/// The parameters of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// The Ethernet address of the interface.
    pub(super) mac: [u8; 6],
    /// The maximum length in bytes: longer frames are passed to the kernel.
    pub(super) longest: i32,
    /// The kernel may pass a frame in several buffers.
    pub(super) frags: bool,
    /// Datagrams with a UDP checksum are passed to the kernel.
    pub(super) generic: bool,
    pub(super) maps: MapFds,
    /// The verdict for a frame of ours on a queue without a socket.
    pub(super) no_socket: Verdict,
}

/// The descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapFds {
    /// An array: for each block, the index of its shard plus 1, or 0 if it has none.
    pub(super) blocks: i32,
    /// A hash table. The keys are IPv6 addresses, and IPv4 addresses after 12 bytes of ones.
    pub(super) addresses: i32,
    /// The sockets by queue and shard, with [`MAX_SHARDS`] entries for each queue.
    pub(super) sockets: i32,
}

/// The maximum number of queues of an interface that sockets are opened on.
pub(super) const MAX_QUEUES: u32 = 64;
/// The maximum number of shards that receive from an interface.
pub(super) const MAX_SHARDS: u32 = 1 << SHARD_BITS;
const SHARD_BITS: i32 = 5;

/// `enum xdp_action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Drops the frame. Only for tests.
    #[cfg(test)]
    Drop = 1,
    /// Passes the frame to the kernel's network stack.
    Pass = 2,
}

/// Registers: R0 holds results and R1 to R5 arguments, which calls overwrite. R6 to R9 are
/// preserved.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
/// The context: `struct xdp_md`.
const CONTEXT: u8 = 6;
/// The start of the IP header.
const IP: u8 = 7;
/// The block of the destination QPN, and later its entry in the map.
const BLOCK: u8 = 8;
/// The end of the frame, while it is parsed.
const END: u8 = 9;
const STACK: u8 = 10;

const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const XDP_GET_BUFF_LEN: i32 = 188;

/// Offsets in an Ethernet header, and the length of a VLAN tag.
const ETHERTYPE: i16 = 12;
const ETHERNET: i16 = 14;
const TAG: i16 = 4;
/// The offset of the destination QPN's high 8 bits after the IP header: UDP, then BTH.
#[expect(clippy::cast_possible_truncation, reason = "a place in a header")]
const QPN: i16 = 8 + QPN_BLOCK as i16;
const UDP: i32 = 17;

/// The stack offsets of the address's key and of the block's key.
const KEY: i16 = -16;
const BLOCK_KEY: i16 = -20;

/// Returns the program for this setup.
pub(super) fn program(setup: &Setup) -> Vec<Instruction> {
    let mut p = Assembler::default();
    p.copy(CONTEXT, R1);
    p.check_length(setup);
    p.load(Size::Word, R2, CONTEXT, DATA);
    p.load(Size::Word, END, CONTEXT, DATA_END);
    p.within(R2, ETHERNET);
    for (at, pair) in (0..).step_by(2).zip(setup.mac.chunks_exact(2)) {
        p.load(Size::Half, R4, R2, at);
        p.unless_equal(R4, i32::from(u16::from_ne_bytes([pair[0], pair[1]])));
    }
    p.load(Size::Half, R4, R2, ETHERTYPE);
    p.copy(IP, R2);
    p.add(IP, ETHERNET.into());
    let untagged = [p.tag(ETHERNET), p.tag(ETHERNET + TAG)];
    untagged.into_iter().flatten().for_each(|jump| p.land(jump));
    let v6 = p.jump_unless_equal(R4, network(0x0800));
    p.v4(setup);
    let found = p.jump();
    p.land(v6);
    p.unless_equal(R4, network(0x86dd));
    p.v6(setup);
    p.land(found);
    p.lookup(setup);
    p.redirect(setup);
    p.finish()
}

/// Builds the program instruction by instruction.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    /// Jumps to the end of the program, where the frame passes.
    pass: Vec<Jump>,
}

/// A forward jump whose target is not known yet, by the index of its instruction.
#[derive(Clone, Copy)]
struct Jump(usize);

#[derive(Clone, Copy)]
enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

impl Assembler {
    /// Passes frames that are longer than `longest`.
    fn check_length(&mut self, setup: &Setup) {
        let longer = if setup.frags {
            self.copy(R1, CONTEXT);
            self.call(XDP_GET_BUFF_LEN);
            // JGT
            self.forward(0x25, R0, 0, setup.longest)
        } else {
            // Computing the difference of two pointers would need CAP_PERFMON.
            self.load(Size::Word, R3, CONTEXT, DATA);
            self.load(Size::Word, END, CONTEXT, DATA_END);
            self.add(R3, setup.longest + 1);
            // JLE with a register.
            self.forward(0xbd, R3, END, 0)
        };
        self.pass.push(longer);
    }

    /// Skips a VLAN tag at `at` (an offset in the frame), if there is one. Returns the jump that is
    /// taken if there is none.
    fn tag(&mut self, at: i16) -> Option<Jump> {
        let customer = self.forward(0x16, R4, 0, network(0x8100));
        let none = self.jump_unless_equal(R4, network(0x88a8));
        self.land(customer);
        self.within(R2, at + TAG);
        self.load(Size::Half, R5, R2, at);
        // The number of the VLAN. ALU32 AND.
        self.emit(0x54, R5, 0, 0, network(0x0fff));
        self.unless_equal(R5, 0);
        self.load(Size::Half, R4, R2, at + 2);
        self.add(IP, TAG.into());
        Some(none)
    }

    fn v4(&mut self, setup: &Setup) {
        const HEADER: i16 = 20;
        self.within(IP, HEADER + QPN + 1);
        self.load(Size::Byte, R4, IP, 0);
        self.unless_equal(R4, 0x45);
        self.load(Size::Half, R4, IP, 6);
        self.emit(0x54, R4, 0, 0, network(0x3fff));
        self.unless_equal(R4, 0);
        self.load(Size::Byte, R4, IP, 9);
        self.unless_equal(R4, UDP);
        self.udp(setup, HEADER);
        // The key of an IPv4 address, as in `maps::key`.
        for at in [0, 4, 8] {
            self.store(Size::Word, KEY + at, -1);
        }
        self.load(Size::Word, R4, IP, 16);
        self.store_register(KEY + 12, R4);
    }

    fn v6(&mut self, setup: &Setup) {
        const HEADER: i16 = 40;
        self.within(IP, HEADER + QPN + 1);
        self.load(Size::Byte, R4, IP, 0);
        self.emit(0x54, R4, 0, 0, 0xf0);
        self.unless_equal(R4, 0x60);
        self.load(Size::Byte, R4, IP, 6);
        self.unless_equal(R4, UDP);
        self.udp(setup, HEADER);
        for at in (0..16).step_by(4) {
            self.load(Size::Word, R4, IP, 24 + at);
            self.store_register(KEY + at, R4);
        }
    }

    /// Checks the UDP header at this offset from the IP header, and loads the block from the BTH
    /// after it.
    fn udp(&mut self, setup: &Setup, at: i16) {
        self.load(Size::Half, R4, IP, at + 2);
        self.unless_equal(R4, network(UDP_PORT));
        if setup.generic {
            self.load(Size::Half, R4, IP, at + 6);
            self.unless_equal(R4, 0);
        }
        self.load(Size::Byte, BLOCK, IP, at + QPN);
    }

    fn lookup(&mut self, setup: &Setup) {
        self.store_register(BLOCK_KEY, BLOCK);
        self.load_map(R1, setup.maps.blocks);
        self.stack_address(R2, BLOCK_KEY);
        self.call(MAP_LOOKUP_ELEM);
        self.unless_found();
        self.load(Size::Word, BLOCK, R0, 0);
        let others = self.forward(0x16, BLOCK, 0, 0);
        self.pass.push(others);
        self.load_map(R1, setup.maps.addresses);
        self.stack_address(R2, KEY);
        self.call(MAP_LOOKUP_ELEM);
        self.unless_found();
    }

    fn redirect(&mut self, setup: &Setup) {
        self.load_map(R1, setup.maps.sockets);
        self.load(Size::Word, R2, CONTEXT, RX_QUEUE_INDEX);
        // LSH. A queue without entries in the map yields an index beyond its end, and so the
        // verdict below.
        self.emit(0x67, R2, 0, 0, SHARD_BITS);
        // ADD with a register. The map of blocks holds the index of the shard plus 1.
        self.emit(0x0f, R2, BLOCK, 0, 0);
        self.add(R2, -1);
        self.set(R3, setup.no_socket as i32);
        self.call(REDIRECT_MAP);
        self.exit();
    }

    fn finish(mut self) -> Vec<Instruction> {
        for jump in std::mem::take(&mut self.pass) {
            self.land(jump);
        }
        self.set(R0, Verdict::Pass as i32);
        self.exit();
        self.code
    }

    /// Passes the frame unless it has `len` bytes from the address in register `from` on.
    fn within(&mut self, from: u8, len: i16) {
        self.copy(R3, from);
        self.add(R3, len.into());
        // JGT with a register.
        let beyond = self.forward(0x2d, R3, END, 0);
        self.pass.push(beyond);
    }

    /// Passes the frame unless the low 32 bits of a register have this value.
    fn unless_equal(&mut self, register: u8, value: i32) {
        let other = self.jump_unless_equal(register, value);
        self.pass.push(other);
    }

    fn unless_found(&mut self) {
        // JEQ, 64 bits: a null pointer is not found.
        let none = self.forward(0x15, R0, 0, 0);
        self.pass.push(none);
    }

    /// Emits JNE, 32 bits.
    fn jump_unless_equal(&mut self, register: u8, value: i32) -> Jump {
        self.forward(0x56, register, 0, value)
    }

    fn jump(&mut self) -> Jump {
        self.forward(0x05, 0, 0, 0)
    }

    fn forward(&mut self, code: u8, dst: u8, src: u8, immediate: i32) -> Jump {
        self.emit(code, dst, src, 0, immediate);
        Jump(self.code.len() - 1)
    }

    /// Makes a jump lead to the next instruction.
    fn land(&mut self, jump: Jump) {
        let over = self.code.len() - jump.0 - 1;
        self.code[jump.0].offset = i16::try_from(over).expect("the program is short");
    }

    fn copy(&mut self, dst: u8, src: u8) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    fn set(&mut self, dst: u8, value: i32) {
        self.emit(0xb7, dst, 0, 0, value);
    }

    fn add(&mut self, dst: u8, value: i32) {
        self.emit(0x07, dst, 0, 0, value);
    }

    fn load(&mut self, size: Size, dst: u8, src: u8, offset: i16) {
        self.emit(0x61 | size as u8, dst, src, offset, 0);
    }

    /// Stores a constant on the stack.
    fn store(&mut self, size: Size, offset: i16, value: i32) {
        self.emit(0x62 | size as u8, STACK, 0, offset, value);
    }

    /// Stores the low 32 bits of a register on the stack.
    fn store_register(&mut self, offset: i16, src: u8) {
        self.emit(0x63, STACK, src, offset, 0);
    }

    fn stack_address(&mut self, dst: u8, offset: i16) {
        self.copy(dst, STACK);
        self.add(dst, offset.into());
    }

    /// Loads a map by its descriptor: one instruction in two slots. BPF_PSEUDO_MAP_FD.
    fn load_map(&mut self, dst: u8, fd: i32) {
        self.emit(0x18, dst, 1, 0, fd);
        self.code.push(Instruction::default());
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.emit(0x95, 0, 0, 0, 0);
    }

    fn emit(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.code.push(Instruction { code, registers, offset, immediate });
    }
}

/// Returns a 16-bit number in network byte order as a native load from the frame yields it.
fn network(value: u16) -> i32 {
    value.to_be().into()
}

#[cfg(test)]
mod tests;
