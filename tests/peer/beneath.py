"""What `peer.py` needs of libibverbs and rdma_rxe and pyverbs 44 does not have: multicast groups,
waiting for asynchronous events, and FLUSH, which came to rdma-core with version 46.

pyverbs keeps the C structures to itself. In its version 44 the pointer to a queue pair is the sixth
word of the Python object; whether it is one shows in the queue pair's number.
"""

import ctypes
import re
import select
import socket
import struct

LIB = ctypes.CDLL("libibverbs.so.1", use_errno=True)
# Offsets in struct ibv_qp, struct ibv_mw and struct ibv_context.
QP_NUM, MW_RKEY = 52, 16
CONTEXT_FDS = 8 + 32 * 8

EVENTS = (
    "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR "
    "DEVICE_FATAL PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED "
    "QP_LAST_WQE_REACHED CLIENT_REREGISTER GID_CHANGE"
).split()


def qp_pointer(qp):
    """The struct ibv_qp of a pyverbs QP."""
    return pointer(qp, 40, QP_NUM, qp.qp_num)


def pointer(thing, at, offset, value):
    """The pointer at a place in a Python object, to a structure with this number in it."""
    found = ctypes.c_void_p.from_address(id(thing) + at).value
    if ctypes.c_uint32.from_address(found + offset).value != value:
        raise OSError(38, "this pyverbs keeps its pointers elsewhere")
    return found


def set_rkey(mw, rkey):
    """Has a type 2 window's structure say its key, as its program is asked to."""
    ctypes.c_uint32.from_address(pointer(mw, 48, MW_RKEY, mw.rkey) + MW_RKEY).value = rkey


def word(address):
    """Eight bytes of memory."""
    return ctypes.string_at(address, 8)


class Group:
    """A queue pair's place in a multicast group.

    The interface joins too, as rdma_cm has it do: rdma_rxe itself asks the interface for the MAC
    address of IPv6 only, and the IP layer takes no IPv4 datagram of a group that nobody joined.
    """

    def __init__(self, qp, gid, netdev):
        self.qp, self.gid = qp, socket.inet_pton(socket.AF_INET6, gid)
        index = socket.if_nametoindex(netdev)
        if self.gid[:12] == bytes(10) + b"\xff\xff":
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            request = self.gid[12:] + struct.pack("=4xi", index)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        else:
            self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            request = self.gid + struct.pack("=i", index)
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
        self.call("ibv_attach_mcast")

    def leave(self):
        self.call("ibv_detach_mcast")
        self.socket.close()

    def call(self, name):
        code = getattr(LIB, name)(ctypes.c_void_p(qp_pointer(self.qp)), self.gid, 0)
        if code:
            raise OSError(code, f"{name} failed")


def wait_event(ctx, seconds):
    """The name of the next asynchronous event, or None."""
    fd = pointer(ctx, 40, CONTEXT_FDS, ctx.cmd_fd) + CONTEXT_FDS + 4
    fd = ctypes.c_int.from_address(fd).value
    if not select.select([fd], [], [], seconds)[0]:
        return None
    event = ctx.get_async_event()
    kind = event.event_type
    event.ack()
    return EVENTS[kind] if kind < len(EVENTS) else f"UNKNOWN_{kind}"


def queues():
    """Where this process has queues of rdma_rxe mapped."""
    out = set()
    with open("/proc/self/maps") as f:
        for line in f:
            found = re.match(r"(\w+)-\w+ rw-s .*/uverbs", line)
            if found:
                out.add(int(found[1], 16))
    return out


# struct rxe_queue_buf and struct rxe_send_wqe.
PRODUCER, DATA = 128, 384
OPCODE, FLUSH, DMA_LENGTH = 12, 24, 184


def make_flush(of_qp, begin, length, rkey, placement, level):
    """Makes a FLUSH of the WRITE that QPEx has put into a send queue and not yet handed over.

    of_qp are the queues of the queue pair: the other one is that of its receives. begin is what the
    WRITE was made of: wr_id, flags and remote address.
    """
    wr_id, flags, remote_addr = begin
    write = struct.pack("=QIIIIQI", wr_id, 0, 0, flags, 0, remote_addr, rkey)
    for queue in of_qp:
        log2, mask = struct.unpack("=II", ctypes.string_at(queue, 8))
        (producer,) = struct.unpack("=I", ctypes.string_at(queue + PRODUCER, 4))
        wqe = queue + DATA + ((producer & mask) << log2)
        if ctypes.string_at(wqe, len(write)) == write:
            break
    else:
        raise OSError(38, "this libibverbs keeps its send queue elsewhere")
    ctypes.memmove(wqe + OPCODE, struct.pack("=I", 14), 4)
    ctypes.memmove(wqe + FLUSH, struct.pack("=QIIBB", remote_addr, length, rkey, placement, level), 18)
    ctypes.memmove(wqe + DMA_LENGTH, struct.pack("=II", length, length), 8)
