"""Bytes through Mooncake's transfer engine: a client writes them into the memory of a server, reads them
back from there and compares them. Of several sizes, and more than one transfer at a time.

    mooncake_bytes.py DEVICE ADDRESS            server, on TCP port 4790
    mooncake_bytes.py DEVICE ADDRESS SERVER     client
"""

import ctypes
import socket
import sys

from mooncake.engine import TransferEngine

SIZES = [1, 8, 1000, 4096, 65537, 1 << 20, 3 << 20]
ROOM = 8 << 20
PORT = 4790


def memory(engine):
    """Registered memory."""
    room = ctypes.create_string_buffer(ROOM)
    if engine.register_memory(ctypes.addressof(room), ROOM) != 0:
        sys.exit("the memory cannot be registered")
    return room


def compared(engine, server, remote):
    """Writes and reads back; says what differs."""
    source, sink = memory(engine), memory(engine)
    for turn, size in enumerate(SIZES):
        data = bytes((at * 7 + turn) % 251 for at in range(size))
        ctypes.memmove(source, data, size)
        ctypes.memset(sink, 0xEE, ROOM)
        here, back = ctypes.addressof(source), ctypes.addressof(sink)
        # Two pieces, which make the whole.
        half = size // 2
        pieces = [(0, half), (half, size - half)] if half else [(0, size)]
        starts, lengths = [at for at, _ in pieces], [length for _, length in pieces]
        there = [remote + 100 + at for at in starts]
        if engine.batch_transfer_sync_write(server, [here + at for at in starts], there, lengths) != 0:
            sys.exit(f"{size} bytes cannot be written")
        if engine.transfer_sync_read(server, back, remote + 100, size) != 0:
            sys.exit(f"{size} bytes cannot be read")
        if sink.raw[: size + 1] != data + b"\xee":
            sys.exit(f"{size} bytes came back changed")
    print(f"{sum(SIZES)} bytes are the same")


def main():
    device, address, *rest = sys.argv[1:]
    engine = TransferEngine()
    if engine.initialize(address, "P2PHANDSHAKE", "rdma", device) != 0:
        sys.exit("the engine does not start")
    if rest:
        with socket.create_connection((rest[0], PORT)) as peer:
            server, remote = peer.makefile().readline().split()
            return compared(engine, server, int(remote))
    room = memory(engine)
    with socket.create_server(("", PORT)) as listener, listener.accept()[0] as peer:
        peer.sendall(f"{address}:{engine.get_rpc_port()} {ctypes.addressof(room)}\n".encode())
        # The client closes its end when it has finished.
        peer.recv(1)


main()
