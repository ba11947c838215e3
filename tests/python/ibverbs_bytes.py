"""Bytes through the PyPI package ibverbs, which loads libibverbs by itself: a client sends them to a server,
writes them into its memory, reads them back, and compares them.

    ibverbs_bytes.py DEVICE                 server, on TCP port 4790
    ibverbs_bytes.py DEVICE SERVER          client
"""

import ctypes
import socket
import struct
import sys

import ibverbs as ib

PORT, GID_INDEX, ROOM, SIZE = 1, 1, 1 << 20, 300_001
RIGHTS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
MEMORY = struct.Struct("!QI")


class End:
    """A queue pair with its memory."""

    def __init__(self, name):
        self.context = next(d for d in ib.get_device_list() if d.name == name).open()
        self.pd = self.context.alloc_pd()
        self.cq = self.context.create_cq(16)
        self.room = ctypes.create_string_buffer(ROOM)
        self.mr = self.pd.reg_mr(ctypes.addressof(self.room), ROOM, RIGHTS)
        self.qp = self.pd.create_qp(ib.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=ib.QPType.RC))

    def connect(self, stream):
        """Tells the peer the queue pair and the memory; returns the peer's memory."""
        attr, gid = self.context.query_port(PORT), self.context.query_gid(PORT, GID_INDEX)
        own = ib.local_qp_info(self.qp, attr, gid, port=PORT).to_bytes()
        stream.write(own + MEMORY.pack(self.mr.addr, self.mr.rkey))
        stream.flush()
        peer = ib.QPInfo.from_bytes(stream.read(len(own)))
        memory = MEMORY.unpack(stream.read(MEMORY.size))
        ib.connect_rc(self.qp, peer, port=PORT, sgid_index=GID_INDEX, access=RIGHTS)
        return memory

    def request(self, opcode, at, memory):
        """A request with SIZE bytes of the own memory at `at`, and those of the peer at 64."""
        address, rkey = memory
        self.qp.post_send(
            ib.SendWR(
                wr_id=1,
                sg_list=[ib.SGE(self.mr.addr + at, SIZE, self.mr.lkey)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=address + 64,
                rkey=rkey,
            )
        )
        return self.completion()

    def completion(self):
        """Waits for one."""
        while not (completions := self.cq.poll(1)):
            pass
        completions[0].raise_for_status()
        return completions[0]


def data(turn):
    return bytes((at * 7 + turn) % 251 for at in range(SIZE))


def server(end, stream):
    end.connect(stream)
    end.qp.post_recv(ib.RecvWR(wr_id=2, sg_list=[ib.SGE(end.mr.addr, SIZE, end.mr.lkey)]))
    stream.write(b"!")
    stream.flush()
    received = end.completion()
    assert received.byte_len == SIZE and end.room.raw[:SIZE] == data(1)
    stream.write(b"!")
    stream.flush()
    assert stream.read(1) == b"!" and end.room.raw[64 : 64 + SIZE] == data(2)


def client(end, stream, address):
    memory = end.connect(stream)
    stream.read(1)
    ctypes.memmove(end.room, data(1), SIZE)
    end.request(ib.WROpcode.SEND, 0, memory)
    stream.read(1)
    ctypes.memmove(end.room, data(2), SIZE)
    end.request(ib.WROpcode.RDMA_WRITE, 0, memory)
    end.request(ib.WROpcode.RDMA_READ, ROOM // 2, memory)
    assert end.room.raw[ROOM // 2 : ROOM // 2 + SIZE] == data(2)
    stream.write(b"!")
    stream.flush()
    # librdmacm is loaded too, when it is first needed.
    endpoint = ib.CMID.resolve(address, 4791)
    assert endpoint.context.name == end.context.name
    endpoint.close()
    print(f"{SIZE} bytes are the same")


def main():
    end = End(sys.argv[1])
    if len(sys.argv) > 2:
        with socket.create_connection((sys.argv[2], 4790)) as peer:
            return client(end, peer.makefile("rwb"), sys.argv[2])
    with socket.create_server(("", 4790)) as listener, listener.accept()[0] as peer:
        return server(end, peer.makefile("rwb"))


main()
