"""Creates a pool in a cluster of Ceph: ceph_pool.py CONFIGURATION NAME. The program `ceph` needs more of Python."""

import ctypes
import sys

rados = ctypes.CDLL("librados.so.2")
cluster = ctypes.c_void_p()


def must(result):
    if result < 0:
        sys.exit(f"error {result}")


must(rados.rados_create(ctypes.byref(cluster), None))
must(rados.rados_conf_read_file(cluster, sys.argv[1].encode()))
must(rados.rados_connect(cluster))
must(rados.rados_pool_create(cluster, sys.argv[2].encode()))
rados.rados_shutdown(cluster)
