/*
 * The peer of `rxe conform`, `rxe send` and `rxe replay`: it executes commands that come over TCP on an
 * RDMA device.
 *
 *     cc peer.c -o peer -libverbs && ./peer [-d DEVICE] [-g GID_INDEX] [-p PORT] [-1]
 *
 * With librdmacm it can also connect with the communication manager, which some cases need:
 *
 *     cc -DWITH_CM peer.c -o peer -libverbs -lrdmacm
 *
 * Without -g it uses the RoCEv2 GID of the address to which the client has connected. It serves one client
 * after the other; with -1 it exits after the first. Every host that reaches the port may use it: run it
 * on a test network only. A client can access only one queue pair and 64 KiB of memory that belong to its
 * connection (with librdmacm, also a port of rdma_cm to listen on or to connect to); compiled with
 * `cc -DMEMORY=1048576u ...` the memory is 1 MiB.
 *
 * A request is a line of words, an answer is a line "ok ..." or "err TEXT". Numbers are decimal, or
 * hexadecimal with 0x.
 *
 *   open TYPE ACCESS [srq] [atomic_write] [flush]
 *                         creates a region with these rights (IBV_ACCESS_*), filled with 0x11, and a queue
 *                         pair: rc, uc, ud, xrc_send or xrc_recv. With srq it takes its receives from a
 *                         shared receive queue, as xrc_recv always does; with atomic_write or flush it can
 *                         post these. Answer: QPN ADDRESS RKEY LENGTH SRQN (0 without XRC). With cm as the
 *                         type there is no queue pair (QPN 0) until "accept" or "dial" creates one
 *   close                 destroys all objects that "open" created
 *   connect GID QPN RQ_PSN SQ_PSN MTU ACCESS TIMEOUT RETRY RNR_RETRY MIN_RNR MAX_DEST_RD MAX_RD
 *                         brings the queue pair to RTS
 *   ready QKEY            brings a UD queue pair to RTS
 *   reset                 moves the queue pair to RESET; it can be connected again
 *   recv ID OFFSET LENGTH LKEY_DIFFERENCE
 *   post OP ID OFFSET LENGTH REMOTE_ADDRESS RKEY OPERAND COMPARE [REMOTE_SRQN]
 *                         OP: send, write, read, add, swap, send_inv or local_inv (which invalidate RKEY),
 *                         atomic_write, or flush (OPERAND is the placement type, COMPARE the selectivity)
 *   poll COUNT MILLISECONDS
 *                         waits for COUNT completions. Answer: their number, and ID:STATUS:OPCODE:LENGTH of
 *                         each, followed by :RKEY if it has invalidated a key
 *   window TYPE           creates a memory window of type 1 or 2, and destroys the last one. Answer: RKEY
 *   bind ID OFFSET LENGTH ACCESS
 *                         posts a bind of the window to this range of the region. Answer: the new RKEY
 *   state                 reports the state of the queue pair
 *   limit NUMBER          arms the limit of the shared receive queue
 *   async MILLISECONDS    waits for an asynchronous event. Answer: nothing if none comes; else its number
 *                         (IBV_EVENT_*)
 *   fill OFFSET LENGTH BYTE
 *   read OFFSET LENGTH    reads memory. Answer: the bytes in hexadecimal
 *   write OFFSET BYTES    writes memory; the bytes are in hexadecimal
 *
 * After "open cm". DATA is private data in hexadecimal, or "-" for none; SPACE is tcp (connections) or
 * udp (datagrams):
 *
 *   listen SPACE PORT     listens for connection requests
 *   dial SPACE GID PORT DATA
 *                         sends a connection request. Answer: QPN
 *   event MILLISECONDS    waits for an event. Answer: nothing if none comes; else its number
 *                         (RDMA_CM_EVENT_*), status, responder resources, initiator depth, private data
 *   accept DATA           accepts the last request. Answer: QPN. A request that cannot be accepted is
 *                         rejected
 *   reject DATA
 *   disconnect
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#ifdef WITH_CM
#include <rdma/rdma_cma.h>
#endif

#define PROTOCOL 2
#ifndef MEMORY
#define MEMORY 65536u
#endif
#define MAX_WORDS 16
#define MAX_LINE 256
#define MAX_POLL 32u
#define MAX_WAIT_MS 20000u
#define MAX_READ 2048u
#define MAX_DATA 100u
#define DEPTH 32u
#ifdef WITH_CM
#define NOTE ""
#else
#define NOTE "peer: has no librdmacm, so cases of the communication manager are not testable;\n" \
	     "      for these: cc -DWITH_CM peer.c -o peer -libverbs -lrdmacm\n"
#endif

#ifdef WITH_CM
/* The objects of the communication manager. librdmacm opens the device itself, so its objects need a
 * separate protection domain. */
struct cm {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
};
#endif

/* Operations that a queue pair is created for (IBV_QP_EX_WITH_*), and the functions that post them, which
 * follow wr_abort in struct ibv_qp_ex. Headers before rdma-core 44 and 49 do not declare them; a library
 * or a device without one of them refuses the queue pair. */
#define OPS_FLUSH (1u << 11)
#define OPS_ATOMIC_WRITE (1u << 12)

struct late_ops {
	void (*atomic_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, const void *value);
	void (*flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, size_t length, uint8_t type,
		      uint8_t level);
};

/* The objects of a connection. */
struct peer {
	struct ibv_context *context;
	uint8_t port;
	int gid_index;
	union ibv_gid gid;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	uint32_t srqn;
	struct ibv_qp *qp;
	uint64_t ops;
	unsigned char *memory;
	FILE *out;
#ifdef WITH_CM
	struct cm cm;
#endif
};

static int fail(struct peer *p, const char *what, int error)
{
	fprintf(p->out, "err %s: %s\n", what, strerror(error));
	return 0;
}

static int refuse(struct peer *p, const char *what)
{
	fprintf(p->out, "err %s\n", what);
	return 0;
}

/* Reads a number that is at most `max`. */
static int number(const char *word, uint64_t max, uint64_t *value)
{
	char *end;

	if (*word < '0' || *word > '9')
		return 0;
	errno = 0;
	*value = strtoull(word, &end, 0);
	return !errno && !*end && *value <= max;
}

/* Reads `count` numbers with these bounds. */
static int numbers(char **words, int count, const uint64_t *max, uint64_t *values)
{
	for (int i = 0; i < count; i++)
		if (!number(words[i], max[i], &values[i]))
			return 0;
	return 1;
}

static int inside(uint64_t offset, uint64_t length)
{
	return offset <= MEMORY && length <= MEMORY - offset;
}

#ifdef WITH_CM
static void release_ids(struct peer *p);
static int open_cm(struct peer *p, uint64_t access);
#else
static int open_cm(struct peer *p, uint64_t access)
{
	(void)access;
	return refuse(p, "the peer has no librdmacm: cc -DWITH_CM peer.c -o peer -libverbs -lrdmacm");
}
#endif

static void release(struct peer *p)
{
#ifdef WITH_CM
	release_ids(p);
#endif
	/* The window first: a queue pair to which a type 2 window is bound may be in use. */
	if (p->mw)
		ibv_dealloc_mw(p->mw);
	if (p->qp)
		ibv_destroy_qp(p->qp);
	if (p->srq)
		ibv_destroy_srq(p->srq);
	if (p->xrcd)
		ibv_close_xrcd(p->xrcd);
	if (p->mr)
		ibv_dereg_mr(p->mr);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	p->qp = NULL;
	p->srq = NULL;
	p->xrcd = NULL;
	p->srqn = 0;
	p->mw = NULL;
	p->mr = NULL;
	p->cq = NULL;
#ifdef WITH_CM
	if (p->cm.pd)
		ibv_dealloc_pd(p->cm.pd);
	p->cm.pd = NULL;
#endif
}

/* Creates the completion queue and the region. */
static int make_memory(struct peer *p, struct ibv_pd *pd, uint64_t access)
{
	memset(p->memory, 0x11, MEMORY);
	p->cq = ibv_create_cq(pd->context, 2 * DEPTH, NULL, NULL, 0);
	if (!p->cq) {
		fail(p, "ibv_create_cq", errno);
		return 0;
	}
	p->mr = ibv_reg_mr(pd, p->memory, MEMORY, (int)access);
	if (!p->mr)
		fail(p, "ibv_reg_mr", errno);
	return p->mr != NULL;
}

static int opened(struct peer *p)
{
	fprintf(p->out, "ok 0x%x 0x%" PRIxPTR " 0x%x %u 0x%x\n", p->qp ? p->qp->qp_num : 0,
		(uintptr_t)p->memory, p->mr->rkey, MEMORY, p->srqn);
	return 0;
}

/* Creates the shared receive queue. */
static int make_srq(struct peer *p)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 1}};

	p->srq = ibv_create_srq(p->pd, &init);
	if (!p->srq)
		fail(p, "ibv_create_srq", errno);
	return p->srq != NULL;
}

/* Creates an XRC domain and a shared receive queue in it. */
static int make_xrc_srq(struct peer *p)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = DEPTH, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = p->pd, .cq = p->cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
	};

	p->xrcd = ibv_open_xrcd(p->context, &domain);
	if (!p->xrcd) {
		fail(p, "ibv_open_xrcd", errno);
		return 0;
	}
	init.xrcd = p->xrcd;
	p->srq = ibv_create_srq_ex(p->context, &init);
	if (!p->srq || ibv_get_srq_num(p->srq, &p->srqn)) {
		fail(p, "ibv_create_srq_ex", errno);
		return 0;
	}
	return 1;
}

/* Creates the XRC target, which receives requests for the shared receive queues of the domain. */
static int make_xrc_target(struct peer *p)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = p->xrcd,
	};

	p->qp = ibv_create_qp_ex(p->context, &init);
	if (!p->qp)
		fail(p, "ibv_create_qp_ex", errno);
	return p->qp != NULL;
}

/* Creates the queue pair. */
static int make_pair(struct peer *p, enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = type, .sq_sig_all = 1, .send_cq = p->cq, .recv_cq = p->cq, .srq = p->srq,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = p->pd, .send_ops_flags = ops,
	};

	if (ops)
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	p->ops = ops;
	p->qp = ibv_create_qp_ex(p->context, &init);
	if (!p->qp)
		fail(p, ops ? "ibv_create_qp_ex with send_ops_flags" : "ibv_create_qp", errno);
	return p->qp != NULL;
}

/* Reads the words of "open" after the rights. */
static int features(char **words, int count, int *srq, uint64_t *ops)
{
	for (int i = 0; i < count; i++) {
		if (!strcmp(words[i], "srq"))
			*srq = 1;
		else if (!strcmp(words[i], "atomic_write"))
			*ops |= OPS_ATOMIC_WRITE;
		else if (!strcmp(words[i], "flush"))
			*ops |= OPS_FLUSH;
		else
			return 0;
	}
	return 1;
}

static int do_open(struct peer *p, char **words, int count)
{
	static const struct {
		const char *name;
		enum ibv_qp_type type;
	} types[] = {
		{"rc", IBV_QPT_RC}, {"uc", IBV_QPT_UC}, {"ud", IBV_QPT_UD},
		{"xrc_send", IBV_QPT_XRC_SEND}, {"xrc_recv", IBV_QPT_XRC_RECV}, {0},
	};
	uint64_t access, ops = 0;
	int type, srq = 0;

	if (count < 3 || !number(words[2], 0xffff, &access) || !features(words + 3, count - 3, &srq, &ops))
		return refuse(p, "open TYPE ACCESS [srq] [atomic_write] [flush] is expected");
	if (!strcmp(words[1], "cm"))
		return count > 3 ? refuse(p, "cm has no more words") : open_cm(p, access);
	for (type = 0; types[type].name && strcmp(words[1], types[type].name); type++)
		;
	if (!types[type].name)
		return refuse(p, "the type is none of rc, uc, ud, xrc_send, xrc_recv, cm");
	release(p);
	if (!make_memory(p, p->pd, access))
		return 0;
	if (types[type].type == IBV_QPT_XRC_RECV)
		return make_xrc_srq(p) && make_xrc_target(p) ? opened(p) : 0;
	return (!srq || make_srq(p)) && make_pair(p, types[type].type, ops) ? opened(p) : 0;
}

static int do_close(struct peer *p)
{
	release(p);
	fprintf(p->out, "ok\n");
	return 0;
}

/* Moves the queue pair from RESET to INIT. `key`: the access rights of RC and UC, or the Q_Key of UD. */
static int to_init(struct peer *p, uint32_t key)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = p->port};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (p->qp->qp_type == IBV_QPT_UD) {
		attr.qkey = key;
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = (int)key;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	return ibv_modify_qp(p->qp, &attr, mask);
}

static int do_connect(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {0xffffff, 0xffffff, 0xffffff, 4096, 0xffff, 31, 7, 7, 31, 255, 255};
	uint64_t v[11];
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int requests, responds, error, mtu;

	if (count != 13 || !numbers(words + 2, 11, max, v) ||
	    inet_pton(AF_INET6, words[1], attr.ah_attr.grh.dgid.raw) != 1)
		return refuse(p, "connect has wrong arguments");
	if (!p->qp || p->qp->qp_type == IBV_QPT_UD)
		return refuse(p, "there is no queue pair to connect");
	requests = p->qp->qp_type == IBV_QPT_RC || p->qp->qp_type == IBV_QPT_XRC_SEND;
	responds = p->qp->qp_type == IBV_QPT_RC || p->qp->qp_type == IBV_QPT_XRC_RECV;
	for (mtu = IBV_MTU_256; mtu < IBV_MTU_4096 && 128u << mtu < v[3]; mtu++)
		;
	error = to_init(p, (uint32_t)v[4]);
	if (error)
		return fail(p, "ibv_modify_qp to INIT", error);
	attr.dest_qp_num = (uint32_t)v[0];
	attr.rq_psn = (uint32_t)v[1];
	attr.path_mtu = mtu;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = p->port;
	attr.ah_attr.grh.sgid_index = (uint8_t)p->gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	if (responds) {
		attr.min_rnr_timer = (uint8_t)v[8];
		attr.max_dest_rd_atomic = (uint8_t)v[9];
		mask |= IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC;
	}
	error = ibv_modify_qp(p->qp, &attr, mask);
	if (error)
		return fail(p, "ibv_modify_qp to RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = (uint32_t)v[2];
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (requests || responds) {
		attr.timeout = (uint8_t)v[5];
		mask |= IBV_QP_TIMEOUT;
	}
	if (requests) {
		attr.retry_cnt = (uint8_t)v[6];
		attr.rnr_retry = (uint8_t)v[7];
		attr.max_rd_atomic = (uint8_t)v[10];
		mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	error = ibv_modify_qp(p->qp, &attr, mask);
	if (error)
		return fail(p, "ibv_modify_qp to RTS", error);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_ready(struct peer *p, char **words, int count)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	uint64_t qkey;
	int error;

	if (count != 2 || !number(words[1], 0xffffffff, &qkey))
		return refuse(p, "ready QKEY is expected");
	if (!p->qp || p->qp->qp_type != IBV_QPT_UD)
		return refuse(p, "there is no queue pair of UD");
	error = to_init(p, (uint32_t)qkey);
	if (error)
		return fail(p, "ibv_modify_qp to INIT", error);
	error = ibv_modify_qp(p->qp, &attr, IBV_QP_STATE);
	if (error)
		return fail(p, "ibv_modify_qp to RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	error = ibv_modify_qp(p->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (error)
		return fail(p, "ibv_modify_qp to RTS", error);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_reset(struct peer *p)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	int error;

	if (!p->qp)
		return refuse(p, "there is no queue pair");
	error = ibv_modify_qp(p->qp, &attr, IBV_QP_STATE);
	if (error)
		return fail(p, "ibv_modify_qp to RESET", error);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_recv(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {UINT64_MAX, MEMORY, MEMORY, 0xffffffff};
	uint64_t v[4];
	struct ibv_sge sge;
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	int error;

	if (count != 5 || !numbers(words + 1, 4, max, v) || !inside(v[1], v[2]))
		return refuse(p, "recv has wrong arguments");
	if (!p->qp)
		return refuse(p, "there is no queue pair");
	sge.addr = (uintptr_t)p->memory + v[1];
	sge.length = (uint32_t)v[2];
	sge.lkey = p->mr->lkey ^ (uint32_t)v[3];
	wr.wr_id = v[0];
	error = p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(p->qp, &wr, &bad);
	if (error)
		return fail(p, p->srq ? "ibv_post_srq_recv" : "ibv_post_recv", error);
	fprintf(p->out, "ok\n");
	return 0;
}

/* Posts an operation that only the extended interface offers. */
static int post_late(struct peer *p, const char *op, const uint64_t *v)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p->qp);
	const struct late_ops *late;

	if (!(p->ops & (strcmp(op, "flush") ? OPS_ATOMIC_WRITE : OPS_FLUSH)))
		return EOPNOTSUPP;
	late = (const void *)((const char *)qp + offsetof(struct ibv_qp_ex, wr_abort) + sizeof(qp->wr_abort));
	ibv_wr_start(qp);
	qp->wr_id = v[0];
	qp->wr_flags = IBV_SEND_SIGNALED;
	if (strcmp(op, "flush"))
		late->atomic_write(qp, (uint32_t)v[4], v[3], p->memory + v[1]);
	else
		late->flush(qp, (uint32_t)v[4], v[3], v[2], (uint8_t)v[5], (uint8_t)v[6]);
	return ibv_wr_complete(qp);
}

static int do_post(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {UINT64_MAX, MEMORY, MEMORY, UINT64_MAX,
				       0xffffffff, UINT64_MAX, UINT64_MAX, 0xffffff};
	uint64_t v[8] = {0};
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	int error;

	if (count < 9 || count > 10 || !numbers(words + 2, count - 2, max, v) || !inside(v[1], v[2]))
		return refuse(p, "post has wrong arguments");
	if (!p->qp)
		return refuse(p, "there is no queue pair");
	if (!strcmp(words[1], "atomic_write") || !strcmp(words[1], "flush")) {
		error = post_late(p, words[1], v);
		if (error)
			return fail(p, "ibv_wr_complete", error);
		fprintf(p->out, "ok\n");
		return 0;
	}
	wr.wr_id = v[0];
	wr.send_flags = IBV_SEND_SIGNALED;
	sge.addr = (uintptr_t)p->memory + v[1];
	sge.length = (uint32_t)v[2];
	sge.lkey = p->mr->lkey;
	wr.qp_type.xrc.remote_srqn = (uint32_t)v[7];
	wr.wr.rdma.remote_addr = v[3];
	wr.wr.rdma.rkey = (uint32_t)v[4];
	if (!strcmp(words[1], "send")) {
		wr.opcode = IBV_WR_SEND;
	} else if (!strcmp(words[1], "write")) {
		wr.opcode = IBV_WR_RDMA_WRITE;
	} else if (!strcmp(words[1], "read")) {
		wr.opcode = IBV_WR_RDMA_READ;
	} else if (!strcmp(words[1], "add") || !strcmp(words[1], "swap")) {
		wr.opcode = words[1][0] == 'a' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = v[3];
		wr.wr.atomic.rkey = (uint32_t)v[4];
		wr.wr.atomic.swap = v[5];
		wr.wr.atomic.compare_add = words[1][0] == 'a' ? v[5] : v[6];
	} else if (!strcmp(words[1], "send_inv")) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = (uint32_t)v[4];
	} else if (!strcmp(words[1], "local_inv")) {
		wr.opcode = IBV_WR_LOCAL_INV;
		wr.invalidate_rkey = (uint32_t)v[4];
		wr.num_sge = 0;
	} else {
		return refuse(p, "the operation is none that this peer posts");
	}
	error = ibv_post_send(p->qp, &wr, &bad);
	if (error)
		return fail(p, "ibv_post_send", error);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_window(struct peer *p, char **words, int count)
{
	uint64_t type;

	if (count != 2 || !number(words[1], 2, &type) || !type)
		return refuse(p, "window 1 or window 2 is expected");
	if (!p->qp)
		return refuse(p, "there is no queue pair");
	if (p->mw)
		ibv_dealloc_mw(p->mw);
	p->mw = ibv_alloc_mw(p->qp->pd, type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	if (!p->mw)
		return fail(p, "ibv_alloc_mw", errno);
	fprintf(p->out, "ok 0x%x\n", p->mw->rkey);
	return 0;
}

/* Posts a bind. A type 1 window is bound by ibv_bind_mw, which renews the key. */
static int post_bind(struct peer *p, uint64_t id, const struct ibv_mw_bind_info *info)
{
	struct ibv_mw_bind bind = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = *info};
	struct ibv_send_wr wr = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_BIND_MW};
	struct ibv_send_wr *bad;
	int error;

	if (p->mw->type == IBV_MW_TYPE_1)
		return ibv_bind_mw(p->qp, p->mw, &bind);
	wr.bind_mw.mw = p->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(p->mw->rkey);
	wr.bind_mw.bind_info = *info;
	error = ibv_post_send(p->qp, &wr, &bad);
	if (!error)
		p->mw->rkey = wr.bind_mw.rkey;
	return error;
}

static int do_bind(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {UINT64_MAX, MEMORY, 2 * MEMORY, 0xffff};
	struct ibv_mw_bind_info info = {.mr = p->mr};
	uint64_t v[4];
	int error;

	if (count != 5 || !numbers(words + 1, 4, max, v))
		return refuse(p, "bind has wrong arguments");
	if (!p->qp || !p->mw)
		return refuse(p, "there is no memory window");
	info.addr = (uintptr_t)p->memory + v[1];
	info.length = v[2];
	info.mw_access_flags = (unsigned)v[3];
	error = post_bind(p, v[0], &info);
	if (error)
		return fail(p, "binding the window", error);
	fprintf(p->out, "ok 0x%x\n", p->mw->rkey);
	return 0;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int do_poll(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {MAX_POLL, MAX_WAIT_MS};
	uint64_t v[2], end;
	struct ibv_wc wc[MAX_POLL];
	uint64_t found = 0;

	if (count != 3 || !numbers(words + 1, 2, max, v))
		return refuse(p, "poll has wrong arguments");
	if (!p->cq)
		return refuse(p, "there is no queue pair");
	end = now_ms() + v[1];
	while (found < v[0]) {
		int n = ibv_poll_cq(p->cq, (int)(v[0] - found), wc + found);

		if (n < 0)
			return refuse(p, "ibv_poll_cq failed");
		found += (uint64_t)n;
		if (!n) {
			if (now_ms() >= end)
				break;
			usleep(200);
		}
	}
	fprintf(p->out, "ok %" PRIu64, found);
	for (uint64_t i = 0; i < found; i++) {
		fprintf(p->out, " %" PRIu64 ":%d:%d:%u", wc[i].wr_id, wc[i].status, wc[i].opcode,
			wc[i].byte_len);
		if (!wc[i].status && wc[i].wc_flags & IBV_WC_WITH_INV)
			fprintf(p->out, ":%u", wc[i].invalidated_rkey);
	}
	fprintf(p->out, "\n");
	return 0;
}

static int do_state(struct peer *p)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int error;

	if (!p->qp)
		return refuse(p, "there is no queue pair");
	error = ibv_query_qp(p->qp, &attr, IBV_QP_STATE, &init);
	if (error)
		return fail(p, "ibv_query_qp", error);
	fprintf(p->out, "ok %s\n", (unsigned)attr.qp_state < 7 ? names[attr.qp_state] : "unknown");
	return 0;
}

static int do_limit(struct peer *p, char **words, int count)
{
	struct ibv_srq_attr attr = {0};
	uint64_t limit;
	int error;

	if (count != 2 || !number(words[1], DEPTH, &limit))
		return refuse(p, "limit NUMBER is expected");
	if (!p->srq)
		return refuse(p, "there is no shared receive queue");
	attr.srq_limit = (uint32_t)limit;
	error = ibv_modify_srq(p->srq, &attr, IBV_SRQ_LIMIT);
	if (error)
		return fail(p, "ibv_modify_srq", error);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_async(struct peer *p, char **words, int count)
{
	struct pollfd ready = {.fd = p->context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	uint64_t wait;

	if (count != 2 || !number(words[1], MAX_WAIT_MS, &wait))
		return refuse(p, "async MILLISECONDS is expected");
	/* The descriptor does not block, so the call fails if the object of a pending event was destroyed. */
	if (poll(&ready, 1, (int)wait) != 1 || ibv_get_async_event(p->context, &event)) {
		fprintf(p->out, "ok\n");
		return 0;
	}
	fprintf(p->out, "ok %d\n", (int)event.event_type);
	ibv_ack_async_event(&event);
	return 0;
}

static int do_fill(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {MEMORY, MEMORY, 0xff};
	uint64_t v[3];

	if (count != 4 || !numbers(words + 1, 3, max, v) || !inside(v[0], v[1]))
		return refuse(p, "fill has wrong arguments");
	memset(p->memory + v[0], (int)v[2], v[1]);
	fprintf(p->out, "ok\n");
	return 0;
}

static int do_read(struct peer *p, char **words, int count)
{
	static const uint64_t max[] = {MEMORY, MAX_READ};
	uint64_t v[2];

	if (count != 3 || !numbers(words + 1, 2, max, v) || !inside(v[0], v[1]))
		return refuse(p, "read has wrong arguments");
	fprintf(p->out, "ok ");
	for (uint64_t i = 0; i < v[1]; i++)
		fprintf(p->out, "%02x", ((volatile unsigned char *)p->memory)[v[0] + i]);
	fprintf(p->out, "\n");
	return 0;
}

static int digit(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

static int do_write(struct peer *p, char **words, int count)
{
	uint64_t offset, length;

	if (count != 3 || !number(words[1], MEMORY, &offset))
		return refuse(p, "write has wrong arguments");
	length = strlen(words[2]) / 2;
	if (strlen(words[2]) % 2 || !inside(offset, length))
		return refuse(p, "write has wrong arguments");
	for (uint64_t i = 0; i < length; i++) {
		int high = digit(words[2][2 * i]), low = digit(words[2][2 * i + 1]);

		if (high < 0 || low < 0)
			return refuse(p, "write has wrong arguments");
		((volatile unsigned char *)p->memory)[offset + i] = (unsigned char)(high << 4 | low);
	}
	fprintf(p->out, "ok\n");
	return 0;
}

#ifdef WITH_CM
static void release_ids(struct peer *p)
{
	struct cm *c = &p->cm;

	if (c->id) {
		if (c->id->qp)
			rdma_destroy_qp(c->id);
		rdma_destroy_id(c->id);
		p->qp = NULL;
	}
	if (c->listener)
		rdma_destroy_id(c->listener);
	if (c->channel)
		rdma_destroy_event_channel(c->channel);
	c->id = NULL;
	c->listener = NULL;
	c->channel = NULL;
}

/* Returns the socket address of a GID. */
static struct sockaddr_storage address_of(const unsigned char *gid, uint64_t port)
{
	struct sockaddr_storage address = {0};
	struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;

	memcpy(&v6->sin6_addr, gid, 16);
	if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		memset(&address, 0, sizeof(address));
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		memcpy(&v4->sin_addr, gid + 12, 4);
	} else {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
	}
	return address;
}

/* Returns a new identifier that is bound to the own address. */
static struct rdma_cm_id *bound_id(struct peer *p, const char *space, uint64_t port)
{
	struct sockaddr_storage own = address_of(p->gid.raw, port);
	struct rdma_cm_id *id = NULL;

	if (rdma_create_id(p->cm.channel, &id, NULL, strcmp(space, "udp") ? RDMA_PS_TCP : RDMA_PS_UDP)) {
		fail(p, "rdma_create_id", errno);
		return NULL;
	}
	if (rdma_bind_addr(id, (struct sockaddr *)&own))
		fail(p, "rdma_bind_addr", errno);
	else if (!id->verbs)
		refuse(p, "rdma_cm has no device for this address");
	else
		return id;
	rdma_destroy_id(id);
	return NULL;
}

static int open_cm(struct peer *p, uint64_t access)
{
	struct cm *c = &p->cm;

	release(p);
	c->channel = rdma_create_event_channel();
	if (!c->channel)
		return fail(p, "rdma_create_event_channel", errno);
	c->listener = bound_id(p, "tcp", 0);
	if (!c->listener)
		return 0;
	c->pd = ibv_alloc_pd(c->listener->verbs);
	if (!c->pd)
		return fail(p, "ibv_alloc_pd", errno);
	return make_memory(p, c->pd, access) ? opened(p) : 0;
}

/* Gives the identifier a queue pair. */
static int make_qp(struct peer *p)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p->cq, .recv_cq = p->cq, .sq_sig_all = 1, .qp_type = p->cm.id->qp_type,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
	};

	if (rdma_create_qp(p->cm.id, p->cm.pd, &init)) {
		fail(p, "rdma_create_qp", errno);
		return 0;
	}
	p->qp = p->cm.id->qp;
	return 1;
}

/* Reads private data. */
static int private_data(const char *word, unsigned char *data, uint8_t *length)
{
	size_t bytes = strlen(word) / 2;

	*length = 0;
	if (!strcmp(word, "-"))
		return 1;
	if (strlen(word) % 2 || bytes > MAX_DATA)
		return 0;
	for (; *length < bytes; (*length)++) {
		int high = digit(word[2 * *length]), low = digit(word[2 * *length + 1]);

		if (high < 0 || low < 0)
			return 0;
		data[*length] = (unsigned char)(high << 4 | low);
	}
	return 1;
}

/* Returns the next event, which must be acknowledged; NULL if none comes. */
static struct rdma_cm_event *next_event(struct peer *p, uint64_t milliseconds)
{
	struct pollfd wait = {.fd = p->cm.channel->fd, .events = POLLIN};
	struct rdma_cm_event *event = NULL;

	if (poll(&wait, 1, (int)milliseconds) != 1 || rdma_get_cm_event(p->cm.channel, &event))
		return NULL;
	return event;
}

static int do_listen(struct peer *p, char **words, int count)
{
	struct cm *c = &p->cm;
	uint64_t port;

	if (count != 3 || !number(words[2], 65535, &port) || !port)
		return refuse(p, "listen SPACE PORT is expected");
	if (c->listener)
		rdma_destroy_id(c->listener);
	c->listener = bound_id(p, words[1], port);
	if (!c->listener)
		return 0;
	if (rdma_listen(c->listener, 0))
		return fail(p, "rdma_listen", errno);
	fprintf(p->out, "ok\n");
	return 0;
}

/* Waits for this event of the identifier. */
static int reaches(struct peer *p, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(p, 5000);
	int kind = event ? (int)event->event : -1;

	if (event)
		rdma_ack_cm_event(event);
	if (kind != (int)wanted)
		refuse(p, "the address or the route cannot be resolved");
	return kind == (int)wanted;
}

static struct rdma_conn_param parameters(const unsigned char *data, uint8_t length)
{
	return (struct rdma_conn_param) {
		.private_data = data, .private_data_len = length, .retry_count = 7, .rnr_retry_count = 7,
		.responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH,
	};
}

static int do_dial(struct peer *p, char **words, int count)
{
	unsigned char gid[16], data[MAX_DATA];
	struct rdma_conn_param param;
	struct sockaddr_storage to;
	uint64_t port;
	uint8_t length;

	if (count != 5 || inet_pton(AF_INET6, words[2], gid) != 1 || !number(words[3], 65535, &port) ||
	    !private_data(words[4], data, &length))
		return refuse(p, "dial SPACE GID PORT DATA is expected");
	if (p->cm.id)
		return refuse(p, "there is a connection already");
	p->cm.id = bound_id(p, words[1], 0);
	if (!p->cm.id)
		return 0;
	to = address_of(gid, port);
	param = parameters(data, length);
	if (rdma_resolve_addr(p->cm.id, NULL, (struct sockaddr *)&to, 2000))
		return fail(p, "rdma_resolve_addr", errno);
	if (!reaches(p, RDMA_CM_EVENT_ADDR_RESOLVED))
		return 0;
	if (rdma_resolve_route(p->cm.id, 2000))
		return fail(p, "rdma_resolve_route", errno);
	if (!reaches(p, RDMA_CM_EVENT_ROUTE_RESOLVED) || !make_qp(p))
		return 0;
	if (rdma_connect(p->cm.id, &param))
		return fail(p, "rdma_connect", errno);
	fprintf(p->out, "ok 0x%x\n", p->qp->qp_num);
	return 0;
}

static int do_event(struct peer *p, char **words, int count)
{
	struct rdma_cm_id *refused = NULL;
	struct rdma_cm_event *event;
	const struct rdma_conn_param *conn;
	uint64_t wait;

	if (count != 2 || !number(words[1], MAX_WAIT_MS, &wait))
		return refuse(p, "event MILLISECONDS is expected");
	event = next_event(p, wait);
	if (!event) {
		fprintf(p->out, "ok\n");
		return 0;
	}
	/* Events of datagrams have the private data in the same place, and no other printed field. */
	conn = &event->param.conn;
	fprintf(p->out, "ok %d %d %u %u ", (int)event->event, event->status,
		conn->responder_resources, conn->initiator_depth);
	for (int i = 0; conn->private_data && i < conn->private_data_len; i++)
		fprintf(p->out, "%02x", ((const unsigned char *)conn->private_data)[i]);
	fprintf(p->out, conn->private_data && conn->private_data_len ? "\n" : "-\n");
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		/* Only one connection can exist. */
		if (p->cm.id)
			refused = event->id;
		else
			p->cm.id = event->id;
	}
	rdma_ack_cm_event(event);
	if (refused)
		rdma_destroy_id(refused);
	return 0;
}

static int do_answer(struct peer *p, char **words, int count)
{
	unsigned char data[MAX_DATA];
	struct rdma_conn_param param;
	uint8_t length;

	if (count != 2 || !private_data(words[1], data, &length))
		return refuse(p, "accept and reject have DATA");
	if (!p->cm.id)
		return refuse(p, "there is no request");
	if (!strcmp(words[0], "reject")) {
		if (rdma_reject(p->cm.id, data, length))
			return fail(p, "rdma_reject", errno);
		fprintf(p->out, "ok\n");
		return 0;
	}
	if (p->qp)
		return refuse(p, "it is accepted already");
	param = parameters(data, length);
	if (!make_qp(p)) {
		rdma_reject(p->cm.id, NULL, 0);
		return 0;
	}
	param.qp_num = p->qp->qp_num;
	if (rdma_accept(p->cm.id, &param)) {
		fail(p, "rdma_accept", errno);
		rdma_reject(p->cm.id, NULL, 0);
		return 0;
	}
	fprintf(p->out, "ok 0x%x\n", p->qp->qp_num);
	return 0;
}

static int do_disconnect(struct peer *p)
{
	if (!p->cm.id || !p->qp)
		return refuse(p, "there is no connection");
	if (rdma_disconnect(p->cm.id))
		return fail(p, "rdma_disconnect", errno);
	fprintf(p->out, "ok\n");
	return 0;
}

/* Runs a command of the communication manager. Returns whether it was one. */
static int request_cm(struct peer *p, char **words, int count)
{
	if (!p->cm.channel || !p->cm.pd)
		return 0;
	if (!strcmp(words[0], "listen"))
		do_listen(p, words, count);
	else if (!strcmp(words[0], "dial"))
		do_dial(p, words, count);
	else if (!strcmp(words[0], "event"))
		do_event(p, words, count);
	else if (!strcmp(words[0], "accept") || !strcmp(words[0], "reject"))
		do_answer(p, words, count);
	else if (!strcmp(words[0], "disconnect"))
		do_disconnect(p);
	else
		return 0;
	return 1;
}
#endif

static int request(struct peer *p, char **words, int count)
{
#ifdef WITH_CM
	if (request_cm(p, words, count))
		return 0;
#endif
	if (!strcmp(words[0], "open"))
		return do_open(p, words, count);
	if (!strcmp(words[0], "close"))
		return do_close(p);
	if (!strcmp(words[0], "connect"))
		return do_connect(p, words, count);
	if (!strcmp(words[0], "ready"))
		return do_ready(p, words, count);
	if (!strcmp(words[0], "reset"))
		return do_reset(p);
	if (!strcmp(words[0], "recv"))
		return do_recv(p, words, count);
	if (!strcmp(words[0], "post"))
		return do_post(p, words, count);
	if (!strcmp(words[0], "window"))
		return do_window(p, words, count);
	if (!strcmp(words[0], "bind"))
		return do_bind(p, words, count);
	if (!strcmp(words[0], "poll"))
		return do_poll(p, words, count);
	if (!strcmp(words[0], "state"))
		return do_state(p);
	if (!strcmp(words[0], "limit"))
		return do_limit(p, words, count);
	if (!strcmp(words[0], "async"))
		return do_async(p, words, count);
	if (!strcmp(words[0], "fill"))
		return do_fill(p, words, count);
	if (!strcmp(words[0], "read"))
		return do_read(p, words, count);
	if (!strcmp(words[0], "write"))
		return do_write(p, words, count);
	return refuse(p, "there is no such request");
}

/* Finds the RoCEv2 GID `wanted` on a port of an open device. */
static int find_gid(struct peer *p, const struct in6_addr *wanted)
{
	struct ibv_device_attr device;

	if (ibv_query_device(p->context, &device))
		return 0;
	for (uint8_t port = 1; port <= device.phys_port_cnt; port++) {
		struct ibv_port_attr attr;

		if (ibv_query_port(p->context, port, &attr))
			continue;
		for (int i = 0; i < attr.gid_tbl_len; i++) {
			struct ibv_gid_entry entry;

			if (ibv_query_gid_ex(p->context, port, (uint32_t)i, &entry, 0) ||
			    entry.gid_type != IBV_GID_TYPE_ROCE_V2 ||
			    memcmp(entry.gid.raw, wanted, sizeof(*wanted)))
				continue;
			p->port = port;
			p->gid_index = i;
			p->gid = entry.gid;
			return 1;
		}
	}
	return 0;
}

/* Opens the device `name`, or the first one with the GID `wanted`. With `index` >= 0 that GID index is used. */
static int open_device(struct peer *p, const char *name, int index, const struct in6_addr *wanted)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++) {
		if (name && strcmp(ibv_get_device_name(list[i]), name))
			continue;
		p->context = ibv_open_device(list[i]);
		if (!p->context)
			continue;
		p->port = 1;
		p->gid_index = index;
		if (index >= 0 ? !ibv_query_gid(p->context, 1, index, &p->gid) : find_gid(p, wanted))
			break;
		ibv_close_device(p->context);
		p->context = NULL;
	}
	if (list)
		ibv_free_device_list(list);
	return p->context != NULL;
}

static void greet(struct peer *p)
{
	char text[INET6_ADDRSTRLEN] = "";
	struct ibv_port_attr port = {0};
	struct ibv_device_attr device = {0};
	struct ibv_device_attr_ex extended = {0};
	uint64_t capabilities;

	inet_ntop(AF_INET6, p->gid.raw, text, sizeof(text));
	ibv_query_port(p->context, p->port, &port);
	ibv_query_device(p->context, &device);
	ibv_query_device_ex(p->context, NULL, &extended);
	capabilities = device.device_cap_flags | extended.device_cap_flags_ex;
	fprintf(p->out, "ok %d %s %d %s %u %d %d 0x%" PRIx64 "\n", PROTOCOL, ibv_get_device_name(p->context->device),
		p->gid_index, text, 128u << port.active_mtu, device.max_qp_rd_atom,
		device.atomic_cap != IBV_ATOMIC_NONE, capabilities);
}

/* Serves a client until it disconnects, is silent for a minute, or sends data that is not a line. */
static void serve(int fd, const char *name, int index)
{
	struct timeval idle = {.tv_sec = 60};
	struct sockaddr_in6 own = {0};
	socklen_t length = sizeof(own);
	struct peer p = {0};
	char line[MAX_LINE];
	int one = 1;
	FILE *in;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof(idle));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	in = fdopen(fd, "r");
	p.out = fdopen(dup(fd), "w");
	if (!in || !p.out || getsockname(fd, (struct sockaddr *)&own, &length)) {
		perror("peer: a connection");
		exit(1);
	}
	if (!open_device(&p, name, index, &own.sin6_addr)) {
		char text[INET6_ADDRSTRLEN] = "";

		inet_ntop(AF_INET6, &own.sin6_addr, text, sizeof(text));
		fprintf(p.out, "err no device has %s as a RoCEv2 GID: start the peer with -d DEVICE "
			"-g INDEX (ibv_devinfo -v shows them)\n", text);
		goto out;
	}
	fcntl(p.context->async_fd, F_SETFL, fcntl(p.context->async_fd, F_GETFL) | O_NONBLOCK);
	p.pd = ibv_alloc_pd(p.context);
	p.memory = aligned_alloc(4096, MEMORY);
	if (!p.pd || !p.memory) {
		refuse(&p, "the device has no protection domain left, or the host no memory");
		goto out;
	}
	greet(&p);
	for (;;) {
		char *words[MAX_WORDS], *rest = NULL;
		int count = 0;

		if (fflush(p.out) || !fgets(line, sizeof(line), in))
			break;
		if (!strchr(line, '\n')) {
			refuse(&p, "a request has at most 254 bytes");
			break;
		}
		for (char *word = strtok_r(line, " \r\n", &rest); word && count < MAX_WORDS;
		     word = strtok_r(NULL, " \r\n", &rest))
			words[count++] = word;
		if (!count)
			refuse(&p, "an empty line is no request");
		else
			request(&p, words, count);
	}
out:
	release(&p);
	if (p.pd)
		ibv_dealloc_pd(p.pd);
	if (p.context)
		ibv_close_device(p.context);
	free(p.memory);
	fclose(p.out);
	fclose(in);
}

/* Returns a socket that listens on all IPv6 and IPv4 addresses. */
static int listen_on(uint16_t port)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	int fd = socket(AF_INET6, SOCK_STREAM, 0), on = 1, off = 0;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 1)) {
		close(fd);
		return -1;
	}
	return fd;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"gid", required_argument, NULL, 'g'},
		{"port", required_argument, NULL, 'p'},   {"once", no_argument, NULL, '1'},
		{"help", no_argument, NULL, 'h'},         {0},
	};
	const char *device = NULL;
	uint64_t value, port = 18520;
	int option, index = -1, once = 0, listener;

	while ((option = getopt_long(argc, argv, "d:g:p:1h", options, NULL)) != -1) {
		if (option == 'd') {
			device = optarg;
		} else if (option == 'g' && number(optarg, 255, &value)) {
			index = (int)value;
		} else if (option == 'p' && number(optarg, 65535, &value) && value) {
			port = value;
		} else if (option == '1') {
			once = 1;
		} else {
			fprintf(stderr, "usage: peer [-d DEVICE] [-g GID_INDEX] [-p PORT] [-1]\n" NOTE);
			return option == 'h' ? 0 : 2;
		}
	}
	signal(SIGPIPE, SIG_IGN);
	listener = listen_on((uint16_t)port);
	if (listener < 0) {
		fprintf(stderr, "peer: cannot listen on TCP port %u: %s: name another with -p\n",
			(unsigned)port, strerror(errno));
		return 1;
	}
	printf(NOTE "peer: listens on TCP port %u\n", (unsigned)port);
	fflush(stdout);
	do {
		int fd = accept(listener, NULL, NULL);

		if (fd >= 0)
			serve(fd, device, index);
	} while (!once);
	return 0;
}
