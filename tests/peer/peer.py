#!/usr/bin/python3
"""A scriptable verbs endpoint: one half of a conversation between two RDMA devices.

A test starts one of these on each end and tells both what to do. This one drives libibverbs (by
Debian's python3-pyverbs) and so the kernel's rdma_rxe; its twin in Rust drives rxe-verbs. Both speak
the protocol in `protocol.md`, so a test can put either at either end. It makes no decisions: every
attribute of a queue pair, every work request and every byte of memory is the test's.
"""

import errno
import json
import os
import socket
import struct
import sys
import time
import zlib

import beneath
import pyverbs.enums as e
from pyverbs.addr import GID, AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR


class Wrong(Exception):
    """The request itself is wrong."""


ACCESS = {
    "local_write": e.IBV_ACCESS_LOCAL_WRITE,
    "remote_write": e.IBV_ACCESS_REMOTE_WRITE,
    "remote_read": e.IBV_ACCESS_REMOTE_READ,
    "remote_atomic": e.IBV_ACCESS_REMOTE_ATOMIC,
    "mw_bind": e.IBV_ACCESS_MW_BIND,
    "flush_global": 1 << 8,
    "flush_persistent": 1 << 9,
}
# The access rights if the request names none.
USUAL = ("local_write", "remote_write", "remote_read", "remote_atomic")
FLAGS = {
    "signaled": e.IBV_SEND_SIGNALED,
    "solicited": e.IBV_SEND_SOLICITED,
    "fence": e.IBV_SEND_FENCE,
    "inline": e.IBV_SEND_INLINE,
}
OPS = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "cas": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "send_inv": e.IBV_WR_SEND_WITH_INV,
    "local_inv": e.IBV_WR_LOCAL_INV,
}
# More operations, which only an extended queue pair can send.
EXTENDED = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_ATOMIC_WRITE
PLACEMENTS = {"global": 1, "persistent": 2}
LEVELS = {"range": 0, "mr": 1}
STATES = {
    "RESET": e.IBV_QPS_RESET,
    "INIT": e.IBV_QPS_INIT,
    "RTR": e.IBV_QPS_RTR,
    "RTS": e.IBV_QPS_RTS,
    "SQD": e.IBV_QPS_SQD,
    "SQE": e.IBV_QPS_SQE,
    "ERR": e.IBV_QPS_ERR,
}
TYPES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
PORT_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
# Names and numbers of enum ibv_wc_status and ibv_wc_opcode.
STATUS = (
    "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR "
    "BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR "
    "RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR "
    "INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE"
).split()
OPCODES = {
    0: "SEND",
    1: "RDMA_WRITE",
    2: "RDMA_READ",
    3: "COMP_SWAP",
    4: "FETCH_ADD",
    5: "BIND_MW",
    6: "LOCAL_INV",
    8: "FLUSH",
    9: "ATOMIC_WRITE",
    128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
}
# Field of "modify": the attribute of QPAttr and the bit of the mask.
ATTRS = {
    "state": ("qp_state", 1 << 0),
    "cur_state": ("cur_qp_state", 1 << 1),
    "access": ("qp_access_flags", 1 << 3),
    "pkey_index": ("pkey_index", 1 << 4),
    "port": ("port_num", 1 << 5),
    "qkey": ("qkey", 1 << 6),
    "av": ("ah_attr", 1 << 7),
    "path_mtu": ("path_mtu", 1 << 8),
    "timeout": ("timeout", 1 << 9),
    "retry_cnt": ("retry_cnt", 1 << 10),
    "rnr_retry": ("rnr_retry", 1 << 11),
    "rq_psn": ("rq_psn", 1 << 12),
    "max_rd_atomic": ("max_rd_atomic", 1 << 13),
    "min_rnr_timer": ("min_rnr_timer", 1 << 15),
    "sq_psn": ("sq_psn", 1 << 16),
    "max_dest_rd_atomic": ("max_dest_rd_atomic", 1 << 17),
    "dest_qpn": ("dest_qp_num", 1 << 20),
}


def pattern(seed, at, length):
    """The bytes [at, at + length) of the pattern of seed."""
    table = bytes(range(256)) * 2
    first, last = at // 64, (at + length + 63) // 64
    rows = []
    for r in range(first, last):
        s = (seed + r) & 0xFF
        rows.append(struct.pack("<II", seed & 0xFFFFFFFF, r & 0xFFFFFFFF) + table[s : s + 56])
    skip = at - first * 64
    return b"".join(rows)[skip : skip + length]


def bits(names, table):
    try:
        return sum(table[n] for n in set(names))
    except KeyError as x:
        raise Wrong(f"unknown name {x}")


def name_of(names, value):
    return names[value] if value < len(names) else f"UNKNOWN_{value}"


def one(table, key, what):
    if key not in table:
        raise Wrong(f"unknown {what} {key!r}")
    return table[key]


def sysfs(*parts):
    with open(os.path.join("/sys/class/infiniband", *parts)) as f:
        return f.read().strip()


def gid_table(device, port):
    base = f"ports/{port}"
    out = []
    for index in range(1024):
        try:
            gid = socket.inet_pton(socket.AF_INET6, sysfs(device, base, f"gids/{index}"))
            kind = sysfs(device, base, f"gid_attrs/types/{index}")
            netdev = sysfs(device, base, f"gid_attrs/ndevs/{index}")
        except OSError:
            # An unused entry's attributes cannot be read; used ones can come after it.
            if index >= 16:
                break
            continue
        text = socket.inet_ntop(socket.AF_INET6, gid)
        out.append({"index": index, "gid": text, "type": kind, "netdev": netdev})
    return out


class Peer:
    """Holds what has been made and runs commands, each a method cmd_NAME(fields...)."""

    def __init__(self):
        self.made = {kind: {} for kind in ("ctx", "pd", "cq", "mr", "qp", "ah", "srq", "mw")}
        self.next = dict.fromkeys(self.made, 1)
        # By handle: a domain's device, a queue pair's queues and groups, the last receive of a
        # completion queue.
        self.contexts, self.queues, self.groups, self.received = {}, {}, {}, {}
        # The interface of the device that was opened.
        self.netdev = None

    def run(self, request):
        fields = dict(request)
        cmd = fields.pop("cmd", None)
        fields.pop("id", None)
        method = getattr(self, f"cmd_{cmd}", None)
        if method is None:
            raise Wrong(f"unknown command {cmd!r}")
        code = method.__code__
        known = code.co_varnames[1 : code.co_argcount]
        needed = known[: len(known) - len(method.__defaults__ or ())]
        wrong = [f for f in fields if f not in known] + [f for f in needed if f not in fields]
        if wrong and not code.co_flags & 0x08:
            raise Wrong(f"{cmd}: unknown or missing field {', '.join(wrong)}")
        return method(**fields) or {}

    def keep(self, kind, thing):
        handle = self.next[kind]
        self.next[kind] += 1
        self.made[kind][handle] = thing
        return handle

    def get(self, kind, handle):
        return one(self.made[kind], handle, kind)

    def cmd_hello(self):
        return {"proto": 1, "impl": "kernel", "version": os.uname().release}

    def cmd_devices(self):
        return {"devices": [d.name.decode() for d in get_device_list()]}

    def cmd_open(self, device=None):
        if device is None:
            names = self.cmd_devices()["devices"]
            if not names:
                raise Wrong("no RDMA device")
            device = names[0]
        ctx = Context(name=device)
        port = ctx.query_port(1)
        sizes = {code: size for size, code in MTUS.items()}
        gids = gid_table(device, 1)
        self.netdev = gids[0]["netdev"] if gids else None
        return {
            "ctx": self.keep("ctx", ctx),
            "device": device,
            "node_guid": sysfs(device, "node_guid"),
            "state": PORT_STATES.get(port.state, str(port.state)),
            "max_mtu": sizes.get(port.max_mtu, 0),
            "active_mtu": sizes.get(port.active_mtu, 0),
            "gids": gids,
        }

    def cmd_pd(self, ctx):
        handle = self.keep("pd", PD(self.get("ctx", ctx)))
        self.contexts[handle] = self.get("ctx", ctx)
        return {"pd": handle}

    def cmd_cq(self, ctx, cqe=256):
        return {"cq": self.keep("cq", CQ(self.get("ctx", ctx), cqe))}

    def cmd_mr(self, pd, size, access=USUAL):
        mr = MR(self.get("pd", pd), size, bits(access, ACCESS))
        handle = self.keep("mr", mr)
        return {"mr": handle, "addr": mr.buf, "lkey": mr.lkey, "rkey": mr.rkey, "size": size}

    def cmd_qp(
        self, pd, send_cq, recv_cq, type="rc", max_send_wr=128, max_recv_wr=128,
        max_send_sge=4, max_recv_sge=4, max_inline=64, sq_sig_all=False, srq=None, extended=False,
    ):
        init = {
            "qp_type": one(TYPES, type, "type"), "scq": self.get("cq", send_cq),
            "rcq": self.get("cq", recv_cq), "sq_sig_all": int(sq_sig_all),
            "cap": QPCap(max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline),
            "srq": None if srq is None else self.get("srq", srq),
        }
        ctx, pd = self.contexts.get(pd), self.get("pd", pd)
        if not extended:
            qp = QP(pd, QPInitAttr(**init))
            return {"qp": self.keep("qp", qp), "qpn": qp.qp_num}
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        before = beneath.queues()
        qp = QPEx(ctx, QPInitAttrEx(**init, pd=pd, comp_mask=mask, send_ops_flags=EXTENDED))
        handle = self.keep("qp", qp)
        self.queues[handle] = beneath.queues() - before
        return {"qp": handle, "qpn": qp.qp_num}

    def cmd_srq(self, pd, max_wr=128, max_sge=4):
        srq = SRQ(self.get("pd", pd), SrqInitAttr(SrqAttr(max_wr, max_sge)))
        return {"srq": self.keep("srq", srq)}

    def cmd_srq_limit(self, srq, limit):
        self.get("srq", srq).modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)

    def cmd_mw(self, pd, type=2):
        mw = MW(self.get("pd", pd), type)
        return {"mw": self.keep("mw", mw), "rkey": mw.rkey}

    def ah_attr(self, gid_index, dgid, port=1, hop_limit=64, traffic_class=0, flow_label=0, sl=0):
        # pyverbs reads only the long form.
        words = struct.unpack(">8H", socket.inet_pton(socket.AF_INET6, dgid))
        route = GlobalRoute(
            dgid=GID(":".join(f"{w:04x}" for w in words)), sgid_index=gid_index, hop_limit=hop_limit,
            traffic_class=traffic_class, flow_label=flow_label,
        )
        return AHAttr(gr=route, is_global=1, port_num=port, sl=sl)

    def cmd_modify(self, qp, **fields):
        attr, mask = QPAttr(), 0
        for field, value in fields.items():
            name, bit = one(ATTRS, field, "field")
            if field in ("state", "cur_state"):
                value = one(STATES, value, "state")
            elif field == "access":
                value = bits(value, ACCESS)
            elif field == "path_mtu":
                value = one(MTUS, value, "path_mtu")
            elif field == "av":
                value = self.ah_attr(**value)
            setattr(attr, name, value)
            mask |= bit
        self.get("qp", qp).modify(attr, mask)

    def cmd_connect(
        self, qp, gid_index, dgid, dest_qpn, sq_psn, rq_psn, access=USUAL, path_mtu=1024,
        max_rd_atomic=16, max_dest_rd_atomic=16, min_rnr_timer=12, timeout=14, retry_cnt=7,
        rnr_retry=7, port=1, hop_limit=64, traffic_class=0, flow_label=0, sl=0, until="RTS",
    ):
        if until not in ("INIT", "RTR", "RTS"):
            raise Wrong(f"unknown state {until!r} in until")
        rc = self.get("qp", qp).qp_type == e.IBV_QPT_RC
        self.cmd_modify(qp, state="INIT", pkey_index=0, port=port, access=access)
        if until == "INIT":
            return
        av = {
            "gid_index": gid_index, "dgid": dgid, "port": port, "hop_limit": hop_limit,
            "traffic_class": traffic_class, "flow_label": flow_label, "sl": sl,
        }
        rtr = {"state": "RTR", "av": av, "path_mtu": path_mtu, "dest_qpn": dest_qpn, "rq_psn": rq_psn}
        if rc:
            rtr.update(max_dest_rd_atomic=max_dest_rd_atomic, min_rnr_timer=min_rnr_timer)
        self.cmd_modify(qp, **rtr)
        if until == "RTR":
            return
        rts = {"state": "RTS", "sq_psn": sq_psn}
        if rc:
            rts.update(
                timeout=timeout, retry_cnt=retry_cnt, rnr_retry=rnr_retry,
                max_rd_atomic=max_rd_atomic,
            )
        self.cmd_modify(qp, **rts)

    def cmd_ready(self, qp, qkey, sq_psn=0):
        self.cmd_modify(qp, state="INIT", pkey_index=0, port=1, qkey=qkey)
        self.cmd_modify(qp, state="RTR")
        self.cmd_modify(qp, state="RTS", sq_psn=sq_psn)

    def cmd_attach(self, qp, gid):
        self.groups.setdefault(qp, {})[gid] = beneath.Group(self.get("qp", qp), gid, self.netdev)

    def cmd_detach(self, qp, gid):
        one(self.groups.get(qp, {}), gid, "group").leave()
        del self.groups[qp][gid]

    def cmd_query_qp(self, qp):
        mask = 0
        for _, bit in ATTRS.values():
            mask |= bit
        attr, _ = self.get("qp", qp).query(mask)
        sizes = {code: size for size, code in MTUS.items()}
        names = {code: name for name, code in STATES.items()}
        out = {
            field: getattr(attr, ATTRS[field][0])
            for field in (
                "sq_psn", "rq_psn", "dest_qpn", "timeout", "retry_cnt", "rnr_retry",
                "min_rnr_timer", "max_rd_atomic", "max_dest_rd_atomic",
            )
        }
        out["state"] = names.get(attr.qp_state, str(attr.qp_state))
        out["path_mtu"] = sizes.get(attr.path_mtu, 0)
        out["access"] = [n for n, bit in ACCESS.items() if attr.qp_access_flags & bit]
        return out

    def cmd_ah(self, pd, gid_index, dgid, port=1, hop_limit=64, traffic_class=0, flow_label=0, sl=0):
        attr = self.ah_attr(gid_index, dgid, port, hop_limit, traffic_class, flow_label, sl)
        return {"ah": self.keep("ah", AH(self.get("pd", pd), attr=attr))}

    def cmd_ah_from_recv(self, pd, cq, mr, offset=0):
        wc = one(self.received, cq, "receive of cq")
        grh = self.get("mr", mr).buf + offset
        return {"ah": self.keep("ah", AH(self.get("pd", pd), wc=wc, grh=grh, port_num=1))}

    def cmd_bind(
        self, qp, mw, mr, len, offset=0, access=USUAL, wr_id=0, flags=("signaled",),
    ):
        qp, mw, mr = self.get("qp", qp), self.get("mw", mw), self.get("mr", mr)
        info = MWBindInfo(mr, mr.buf + offset, len, bits(access, ACCESS))
        if mw.type == e.IBV_MW_TYPE_1:
            qp.bind_mw(mw, MWBind(info, bits(flags, FLAGS), wr_id))
            return {"rkey": mw.rkey}
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, send_flags=bits(flags, FLAGS))
        wr.set_bind_wr(mw, info)
        qp.post_send(wr)
        # The program says which key is next, and so remembers it.
        beneath.set_rkey(mw, wr.rkey)
        return {"rkey": mw.rkey}

    def sges(self, sge):
        out = []
        for s in sge:
            if "mr" in s:
                mr = self.get("mr", s["mr"])
                out.append(SGE(mr.buf + s.get("offset", 0), s["len"], mr.lkey))
            else:
                out.append(SGE(s["addr"], s["len"], s["lkey"]))
        return out

    def cmd_post_recv(self, qp=None, srq=None, wr_id=0, sge=(), count=1):
        queue = self.get("qp", qp) if srq is None else self.get("srq", srq)
        for i in range(count):
            # pyverbs refuses to make a request without an SGE; it does not refuse to post one.
            list_ = self.sges(sge) or [SGE(0, 0, 0)]
            wr = RecvWR(wr_id=wr_id + i, num_sge=len(list_), sg=list_)
            wr.num_sge = len(sge)
            queue.post_recv(wr)

    def cmd_post_send(
        self, qp, op, wr_id=0, sge=(), flags=("signaled",), imm=None, remote_addr=0, rkey=0,
        compare=0, swap=0, add=0, ah=None, remote_qpn=0, remote_qkey=0, invalidate=0, length=0,
        placement=(), level="range",
    ):
        list_ = self.sges(sge) or [SGE(0, 0, 0)]
        if op in ("atomic_write", "flush"):
            queues, qp = one(self.queues, qp, "extended qp"), self.get("qp", qp)
            qp.wr_start()
            qp.wr_id, qp.wr_flags = wr_id, bits(flags, FLAGS)
            if op == "flush":
                qp.wr_rdma_write(rkey, remote_addr)
                placement = bits(placement, PLACEMENTS)
                level = one(LEVELS, level, "level")
                begin = (wr_id, qp.wr_flags, remote_addr)
                beneath.make_flush(queues, begin, length, rkey, placement, level)
            else:
                qp.wr_atomic_write(rkey, remote_addr, beneath.word(list_[0].addr))
            qp.wr_complete()
            return
        wr = SendWR(
            wr_id=wr_id, opcode=one(OPS, op, "op"), num_sge=len(list_), sg=list_,
            send_flags=bits(flags, FLAGS), imm_data=socket.htonl(imm or 0),
        )
        if op in ("send_inv", "local_inv"):
            # The same field; a key has no byte order.
            wr.imm_data = invalidate
        wr.num_sge = len(sge)
        if op in ("write", "write_imm", "read"):
            wr.set_wr_rdma(rkey, remote_addr)
        elif op == "cas":
            wr.set_wr_atomic(rkey, remote_addr, compare, swap)
        elif op == "fetch_add":
            wr.set_wr_atomic(rkey, remote_addr, add, 0)
        elif ah is not None:
            wr.set_wr_ud(self.get("ah", ah), remote_qpn, remote_qkey)
        self.get("qp", qp).post_send(wr)

    def cmd_post_list(self, qp, wrs):
        for i, wr in enumerate(wrs):
            try:
                self.run({"cmd": "post_send", "qp": qp, **wr})
            except (PyverbsError, Wrong) as x:
                x.where = {"index": i}
                raise

    def cmd_poll(self, cq, count=1, timeout_ms=10000):
        handle, cq = cq, self.get("cq", cq)
        end = time.monotonic() + timeout_ms / 1000
        out = []
        while len(out) < count:
            n, wcs = cq.poll(count - len(out))
            for w in wcs[:n]:
                out.append(self.wc(w))
                if w.opcode >= 128:
                    self.received[handle] = w
            if not n:
                if time.monotonic() >= end:
                    break
                time.sleep(0.0002)
        return {"wcs": out}

    def wc(self, w):
        out = {
            "wr_id": w.wr_id, "status": name_of(STATUS, w.status), "qpn": w.qp_num,
            "vendor_err": w.vendor_err,
        }
        if w.status:
            return out
        out["opcode"] = OPCODES.get(w.opcode, f"UNKNOWN_{w.opcode}")
        out["byte_len"] = w.byte_len
        if w.opcode < 128:
            return out
        out["src_qp"] = w.src_qp
        out["flags"] = []
        if w.wc_flags & e.IBV_WC_WITH_IMM:
            out["flags"].append("with_imm")
            out["imm"] = socket.ntohl(w.imm_data)
        if w.wc_flags & e.IBV_WC_WITH_INV:
            out["flags"].append("with_inv")
            out["invalidated"] = w.imm_data
        elif w.wc_flags & e.IBV_WC_IP_CSUM_OK:
            # The number that the kernel's own verbs have for "with_inv". rdma_rxe writes it there.
            out["flags"].append("ip_csum_ok")
            out["invalidated"] = w.imm_data
        if w.wc_flags & e.IBV_WC_GRH:
            out["flags"].append("grh")
        return out

    def cmd_events(self, ctx, count=1, timeout_ms=10000):
        ctx, out = self.get("ctx", ctx), []
        end = time.monotonic() + timeout_ms / 1000
        while len(out) < count:
            event = beneath.wait_event(ctx, max(0, end - time.monotonic()))
            if event is None:
                break
            out.append(event)
        return {"events": out}

    def range(self, mr, offset, length):
        mr = self.get("mr", mr)
        if length is None:
            length = mr.length - offset
        if offset < 0 or length < 0 or offset + length > mr.length:
            raise Wrong(f"bytes {offset}..{offset + length} are outside the memory")
        return mr, length

    def cmd_fill(self, mr, seed, offset=0, len=None, at=0):
        mr, length = self.range(mr, offset, len)
        if length:
            mr.write(pattern(seed, at, length), length, offset)

    def cmd_check(self, mr, seed, offset=0, len=None, at=0):
        mr, length = self.range(mr, offset, len)
        have, want = mr.read(length, offset), pattern(seed, at, length)
        if have == want:
            return {"equal": True, "first_diff": None}
        return {"equal": False, "first_diff": next(i for i in range(length) if have[i] != want[i])}

    def cmd_write(self, mr, hex, offset=0):
        data = bytes.fromhex(hex)
        mr, length = self.range(mr, offset, len(data))
        if length:
            mr.write(data, length, offset)

    def cmd_read(self, mr, len, offset=0):
        mr, length = self.range(mr, offset, len)
        return {"hex": mr.read(length, offset).hex()}

    def cmd_crc(self, mr, offset=0, len=None):
        mr, length = self.range(mr, offset, len)
        return {"crc32": zlib.crc32(mr.read(length, offset))}

    def cmd_close(self, **what):
        for kind, handle in what.items():
            thing = self.get(kind, handle) if kind in self.made else one(self.made, kind, "kind")
            thing.close()
            del self.made[kind][handle]
            if kind == "qp":
                self.queues.pop(handle, None)
                self.groups.pop(handle, None)

    def cmd_exit(self):
        return {}


def answer(peer, line):
    """The answer to one line, and whether to go on."""
    out, request = {}, None
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise Wrong("not an object")
        if "id" in request:
            out["id"] = request["id"]
        result = peer.run(request)
        out["ok"] = True
        out.update(result)
    except PyverbsError as x:
        code = getattr(x, "error_code", None)
        out.update(ok=False, error=errno.errorcode.get(code, "EINVAL"), message=str(x))
        out.update(getattr(x, "where", {}))
    except OSError as x:
        out.update(ok=False, error=errno.errorcode.get(x.errno, "EIO"), message=str(x))
    except (Wrong, ValueError, TypeError, KeyError, OverflowError) as x:
        out.update(ok=False, error="PROTOCOL", message=f"{type(x).__name__}: {x}")
        out.update(getattr(x, "where", {}))
    else:
        return out, request.get("cmd") != "exit"
    return out, True


def main():
    peer = Peer()
    for line in sys.stdin:
        if line.strip():
            out, more = answer(peer, line)
            sys.stdout.write(json.dumps(out) + "\n")
            sys.stdout.flush()
            if not more:
                break
    # The kernel closes what is open; pyverbs' own destructors complain about their order.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
