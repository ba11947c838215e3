"""Writes blocks into InfiniStore, reads them back and compares them.

    infinistore_bytes.py DEVICE            the store
    infinistore_bytes.py DEVICE STORE      the client

The store is that of the wheel without its web server for administration: whoever connects to that port ends it.
"""

import asyncio
import ctypes
import mmap
import os
import random
import socket
import sys

import infinistore

PORT = 4790
BLOCK = 65536
BLOCKS = 64


def settings(device):
    return {"dev_name": device, "link_type": "Ethernet", "service_port": PORT}


def serve(device):
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    config = infinistore.ServerConfig(
        **settings(device), manage_port=PORT + 1, prealloc_size=1, minimal_allocate_size=64
    )
    config.verify()
    # Without the destructors: InfiniStore has none for what it left in the loop.
    loop.run_until_complete(asyncio.start_server(lambda *_: os._exit(0), port=PORT + 1))
    infinistore.register_server(loop, config)
    loop.run_forever()


async def use(device, store):
    config = infinistore.ClientConfig(
        **settings(device), host_addr=store, connection_type=infinistore.TYPE_RDMA
    )
    connection = infinistore.InfinityConnection(config)
    await connection.connect_async()
    size = BLOCK * BLOCKS
    memory = (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))
    address = ctypes.addressof(memory)
    connection.register_mr(address, size)
    content = random.Random(1).randbytes(size)
    memory.raw = content
    blocks = [(f"block {number}", number * BLOCK) for number in range(BLOCKS)]
    await connection.rdma_write_cache_async(blocks, BLOCK, address)
    assert connection.check_exist("block 7") and not connection.check_exist("block 64")
    # Each block comes to the place of another.
    memory.raw = bytes(size)
    names = [name for name, _ in blocks]
    places = [at for _, at in reversed(blocks)]
    await connection.rdma_read_cache_async(list(zip(names, places)), BLOCK, address)
    for (_, at), place in zip(blocks, places):
        assert memory.raw[place : place + BLOCK] == content[at : at + BLOCK], f"{at} differs"
    connection.close()
    socket.create_connection((store, PORT + 1)).close()
    print(f"{size} bytes are the same")


def main():
    device, *store = sys.argv[1:]
    asyncio.run(use(device, *store)) if store else serve(device)


main()
