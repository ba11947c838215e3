"""Writes into the memory of another process by NIXL's UCX backend, reads it back and compares it.

    nixl_bytes.py OWN            the process whose memory it is
    nixl_bytes.py OWN OTHER      the one that writes and reads
"""

import ctypes
import mmap
import os
import random
import socket
import struct
import sys
import time

from nixl_cu12 import nixl_agent, nixl_agent_config

PORT = 4790
SIZES = [1, 100, 5000, 300001, 4194304 + 3]
PATIENCE = 40


class Memory:
    """Anonymous memory, registered with an agent."""

    def __init__(self, agent, size):
        self.bytes = (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))
        self.address = ctypes.addressof(self.bytes)
        agent.register_memory([(self.address, size, 0, "")], "DRAM")


def frame(peer, payload):
    peer.sendall(struct.pack("<I", len(payload)) + payload)


def unframe(peer):
    (size,) = struct.unpack("<I", peer.recv(4, socket.MSG_WAITALL))
    return peer.recv(size, socket.MSG_WAITALL)


def offer(agent, own):
    memory = Memory(agent, sum(SIZES))
    peer, _ = socket.create_server((own, PORT)).accept()
    frame(peer, agent.get_agent_metadata())
    frame(peer, struct.pack("<Q", memory.address))
    written = unframe(peer)
    assert memory.bytes.raw == written, "the bytes that were written differ"
    memory.bytes.raw = written[::-1]
    frame(peer, b"")
    unframe(peer)


def transfer(agent, other, operation, here, there):
    local = agent.get_xfer_descs([here], "DRAM")
    remote = agent.get_xfer_descs([there], "DRAM")
    handle = agent.initialize_xfer(operation, local, remote, other)
    state = agent.transfer(handle)
    end = time.monotonic() + PATIENCE
    while state == "PROC":
        assert time.monotonic() < end, "this takes too long"
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    agent.release_xfer_handle(handle)


def all_sizes(agent, other, operation, memory, remote):
    at = 0
    for size in SIZES:
        transfer(agent, other, operation, (memory.address + at, size, 0), (remote + at, size, 0))
        at += size


def use(agent, address):
    peer = socket.create_connection((address, PORT))
    other = agent.add_remote_agent(unframe(peer))
    (remote,) = struct.unpack("<Q", unframe(peer))
    memory = Memory(agent, sum(SIZES))
    content = random.Random(1).randbytes(sum(SIZES))
    memory.bytes.raw = content
    all_sizes(agent, other, "WRITE", memory, remote)
    frame(peer, content)
    unframe(peer)
    all_sizes(agent, other, "READ", memory, remote)
    assert memory.bytes.raw == content[::-1], "the bytes that were read differ"
    frame(peer, b"")
    print(f"{2 * len(content)} bytes are the same")


def main():
    own, *other = sys.argv[1:]
    agent = nixl_agent(own + str(len(other)), nixl_agent_config(backends=["UCX"]))
    assert "UCX" in agent.backends
    use(agent, *other) if other else offer(agent, own)


main()
# Without the destructors: the wheel has a libnl of its own, whose destructor crashes in a process that has loaded the
# system's libefa, and with it the system's libnl.
sys.stdout.flush()
os._exit(0)
