"""Sends bytes by NCCL's InfiniBand transport from host memory to host memory, without a GPU.

    nccl_bytes.py LIBRARY OWN            the receiver, which compares them
    nccl_bytes.py LIBRARY OWN RECEIVER   the sender

NCCL's communicators need a GPU, its transport does not. The transport is a table of functions, `ncclNetIb`. That
is a local symbol of libnccl.so.2, so it is looked up in the file's symbol table. Its layout is that of version 12
of the interface of NCCL's network plugins.
"""

import ctypes
import mmap
import random
import socket
import struct
import sys
import time

FUNCTIONS = (
    "init devices getProperties listen connect accept regMr regMrDmaBuf deregMr isend irecv iflush test closeSend"
    " closeRecv closeListen getDeviceMr irecvConsumed makeVDevice finalize setNetAttr"
).split()
HANDLE_BYTES = 128
HOST_MEMORY = 1
SIZES = [1, 100, 5000, 300001, 4194304 + 3, 0]
AT_ONCE = 8
PORT = 4790
PATIENCE = 50


def symbols(path):
    """The symbols of an ELF file, by name."""
    with open(path, "rb") as file:
        elf = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (sections,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + i * size) for i in range(count)]
    table = next(header for header in headers if header[1] == 2)
    names = headers[table[6]][4]
    found = {}
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
        found[elf[names + name : elf.find(b"\0", names + name)]] = value
    return found


LOGGER = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p
)


@LOGGER
def log(level, _flags, _file, line, text):
    # Warnings, without what their format takes.
    if level <= 2:
        print(f"NCCL: {line}: {text.decode()}")


class Transport:
    """The table of functions."""

    def __init__(self, path):
        library = ctypes.CDLL(path)
        of_file = symbols(path)
        known = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value
        table = known - of_file[b"ncclGetVersion"] + of_file[b"ncclNetIb"]
        pointers = (ctypes.c_void_p * (len(FUNCTIONS) + 1)).from_address(table)
        assert ctypes.string_at(pointers[0]) == b"IB"
        for name, pointer in zip(FUNCTIONS, pointers[1:]):
            if pointer:
                function = ctypes.CFUNCTYPE(ctypes.c_int)(pointer)
                setattr(self, name, lambda *args, f=function, n=name: self.call(n, f, *args))
        self.context = ctypes.c_void_p()
        config = ctypes.c_int(-1)
        self.init(ctypes.byref(self.context), ctypes.c_uint64(1), ctypes.byref(config), log, None)
        count = ctypes.c_int()
        self.devices(ctypes.byref(count))
        assert count.value == 1, f"{count.value} devices"

    @staticmethod
    def call(name, function, *args):
        result = function(*args)
        if result:
            sys.exit(f"{name}: error {result}")


def until(step):
    """Repeats a step that gives nothing until it gives something."""
    end = time.monotonic() + PATIENCE
    while True:
        found = step()
        if found:
            return found
        assert time.monotonic() < end, "this takes too long"


def pointer_of(step):
    """Repeats a call that fills a pointer."""
    pointer = ctypes.c_void_p()

    def filled():
        step(ctypes.byref(pointer))
        return pointer.value and pointer

    return until(filled)


def wait(net, request):
    done, size = ctypes.c_int(), (ctypes.c_int * 8)()

    def ended():
        net.test(request, ctypes.byref(done), size)
        return done.value

    until(ended)
    return size[0]


def registered(net, comm, size):
    buffer = mmap.mmap(-1, max(size, 1))
    memory = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    handle = ctypes.c_void_p()
    net.regMr(comm, memory, ctypes.c_size_t(len(buffer)), HOST_MEMORY, ctypes.byref(handle))
    return memory, handle


def content(size, number):
    return random.Random(size * 100 + number).randbytes(size)


def post_receive(net, comm, memory, handle, size, tag):
    args = [
        (ctypes.c_void_p * 1)(ctypes.addressof(memory)),
        (ctypes.c_size_t * 1)(size),
        (ctypes.c_int * 1)(tag),
        (ctypes.c_void_p * 1)(handle),
        (ctypes.c_void_p * 1)(),
    ]
    return pointer_of(lambda out: net.irecv(comm, 1, *args, out))


def receive(net, own):
    handle, listening = ctypes.create_string_buffer(HANDLE_BYTES), ctypes.c_void_p()
    net.listen(net.context, 0, handle, ctypes.byref(listening))
    server = socket.create_server((own, PORT))
    peer, _ = server.accept()
    peer.sendall(handle.raw)
    comm = pointer_of(lambda out: net.accept(listening, out, None))
    total = 0
    for size in SIZES:
        there = [registered(net, comm, size) for _ in range(AT_ONCE)]
        requests = [
            post_receive(net, comm, *one, size, number) for number, one in enumerate(there)
        ]
        for number, request in enumerate(requests):
            got = wait(net, request)
            assert got == size, f"{got} bytes instead of {size}"
            assert there[number][0].raw[:size] == content(size, number), f"{size} bytes differ"
            total += size
        for _, region in there:
            net.deregMr(comm, region)
    peer.sendall(b".")
    net.closeRecv(comm)
    net.closeListen(listening)
    print(f"{total} bytes are the same")


def send(net, receiver):
    peer = socket.create_connection((receiver, PORT))
    handle = ctypes.create_string_buffer(peer.recv(HANDLE_BYTES, socket.MSG_WAITALL), HANDLE_BYTES)
    comm = pointer_of(lambda out: net.connect(net.context, 0, handle, out, None))
    for size in SIZES:
        here = [registered(net, comm, size) for _ in range(AT_ONCE)]
        requests = []
        for number, (memory, region) in enumerate(here):
            memory[:size] = content(size, number)
            args = (comm, memory, ctypes.c_size_t(size), number, region, None)
            requests.append(pointer_of(lambda out: net.isend(*args, out)))
        for request in requests:
            wait(net, request)
        for _, region in here:
            net.deregMr(comm, region)
    # The receiver has all of it.
    assert peer.recv(1) == b"."
    net.closeSend(comm)


def main():
    library, own, *receiver = sys.argv[1:]
    net = Transport(library)
    send(net, *receiver) if receiver else receive(net, own)
    net.finalize(net.context)


main()
