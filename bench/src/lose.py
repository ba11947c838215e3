"""Makes an interface of this network namespace lose packets that it sends, chosen by a seed.

Arguments: INTERFACE PERCENT SEED. Replaces the root queueing discipline by netem, which has had a
seed since Linux 6.6. The tc of Debian 12 cannot set it.
"""

import os
import socket
import struct
import sys

RTM_NEWQDISC = 36
REQUEST, ACK, REPLACE, CREATE = 1, 4, 0x100, 0x400
TC_H_ROOT = 0xFFFFFFFF
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_NETEM_PRNG_SEED = 14
QUEUE = 10_000  # packets


def attribute(kind, value):
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


interface, percent, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
# struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter.
options = struct.pack("=6I", 0, QUEUE, round(percent / 100 * 0xFFFFFFFF), 0, 0, 0)
options += attribute(TCA_NETEM_PRNG_SEED, struct.pack("=Q", seed))
body = struct.pack("=BxHiIII", socket.AF_UNSPEC, 0, socket.if_nametoindex(interface), 0, TC_H_ROOT, 0)
body += attribute(TCA_KIND, b"netem\0") + attribute(TCA_OPTIONS, options)
header = struct.pack("=IHHII", 16 + len(body), RTM_NEWQDISC, REQUEST | ACK | REPLACE | CREATE, 1, 0)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
    netlink.send(header + body)
    error = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
if error:
    sys.exit(f"{interface}: {os.strerror(-error)}")
