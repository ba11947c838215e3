"""Writes into the memory of another process by DLSlime, reads it back and sends it, and compares the bytes.

    dlslime_bytes.py DEVICE OWN            the process whose memory it is
    dlslime_bytes.py DEVICE OWN OTHER      the one that writes, reads and sends
"""

import ctypes
import json
import mmap
import random
import socket
import struct
import sys

from dlslime import RDMAEndpoint

PORT = 4790
SIZES = [1, 100, 5000, 300001, 4194304 + 3]
TOTAL = sum(SIZES)
QUEUE_PAIRS = 4
IMMEDIATE = 4711


class End:
    """An endpoint with memory of `TOTAL` bytes, connected to that of the other process."""

    def __init__(self, device, peer):
        self.peer = peer
        self.bytes = (ctypes.c_char * TOTAL).from_buffer(mmap.mmap(-1, TOTAL))
        self.endpoint = RDMAEndpoint(device_name=device, link_type="RoCE", num_qp=QUEUE_PAIRS)
        self.address = ctypes.addressof(self.bytes)
        self.here = self.endpoint.register_memory_region("memory", self.address, 0, TOTAL)
        self.frame(json.dumps(self.endpoint.endpoint_info()).encode())
        other = json.loads(self.unframe())
        region = other["mr_info"]["memory"]
        self.there = self.endpoint.register_remote_memory_region("memory", region)
        self.endpoint.connect(other)
        self.meet()

    def frame(self, payload):
        self.peer.sendall(struct.pack("<I", len(payload)) + payload)

    def unframe(self):
        (size,) = struct.unpack("<I", self.peer.recv(4, socket.MSG_WAITALL))
        return self.peer.recv(size, socket.MSG_WAITALL)

    def meet(self):
        """Returns when the other process calls it too."""
        self.frame(b"")
        self.unframe()

    def parts(self):
        at = 0
        for size in SIZES:
            yield self.here, self.there, at, at, size
            at += size


def done(future):
    result = future.wait()
    assert result == 0, f"error {result}"


def offer(end, content):
    number = end.endpoint.imm_recv()
    end.meet()
    # The last write brought a number.
    done(number)
    assert number.imm_data() == IMMEDIATE
    end.meet()
    assert end.bytes.raw == content, "the bytes that were written differ"
    end.bytes.raw = content[::-1]
    end.meet()
    end.meet()
    received = end.endpoint.recv((end.address, 0, TOTAL))
    end.meet()
    done(received)
    assert end.bytes.raw == content, "the bytes that were sent differ"


def use(end, content):
    endpoint = end.endpoint
    end.bytes.raw = content
    end.meet()
    for part in end.parts():
        done(endpoint.write([part]))
    done(endpoint.write_with_imm([(end.here, end.there, 0, 0, 100)], IMMEDIATE))
    end.meet()
    end.meet()
    done(endpoint.read(list(end.parts())))
    assert end.bytes.raw == content[::-1], "the bytes that were read differ"
    end.bytes.raw = content
    end.meet()
    end.meet()
    done(endpoint.send((end.address, 0, TOTAL)))
    print(f"{3 * TOTAL} bytes are the same")


def main():
    device, own, *other = sys.argv[1:]
    content = random.Random(1).randbytes(TOTAL)
    if other:
        end = End(device, socket.create_connection((*other, PORT)))
        use(end, content)
    else:
        end = End(device, socket.create_server((own, PORT)).accept()[0])
        offer(end, content)
    end.meet()


main()
