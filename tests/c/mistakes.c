/*
 * Common mistakes with verbs, one at a time. The first argument is the device, the second names the
 * mistake. Both queue pairs are in this process, except for "two-processes". This program checks what
 * the verbs return; the test that runs it checks the explanations on stderr.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

enum { SIZE = 4096, QKEY = 0x11111111, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						 IBV_ACCESS_REMOTE_READ };

/* The GID indices of the device's first IPv4 address and of an IPv6 address. */
static int v4 = -1, v6 = -1;

static struct ibv_context *context;
static struct ibv_pd *pd;

/* One end: a queue pair with its own completion queue and memory. */
struct end {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
};

static struct end a, b;

/* The attributes of the next connection; each mistake changes some. */
static struct ibv_qp_attr wanted;
static int cqe = 16, region_rights = RIGHTS, psn_of_b = 7, retries = 7;
static enum ibv_qp_type type_of_b = IBV_QPT_RC;

static void open_device(const char *name)
{
	union ibv_gid gid;

	context = open_named(name);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	for (int i = 0; i < 16 && ibv_query_gid(context, 1, i, &gid) == 0; i++) {
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.raw[0] == 0)
			v4 = v4 < 0 ? i : v4;
		else if (gid.global.interface_id != 0 && gid.raw[0] != 0xfe)
			v6 = v6 < 0 ? i : v6;
	}
	CHECK(v4 >= 0 && v6 >= 0 && v4 != v6);
}

static void make(struct end *e, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = { .qp_type = type };

	e->cq = ibv_create_cq(context, cqe, NULL, NULL, 0);
	CHECK(e->cq);
	attr.send_cq = e->cq;
	attr.recv_cq = e->cq;
	attr.cap = (struct ibv_qp_cap){ .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
					.max_recv_sge = 1, .max_inline_data = 64 };
	e->qp = ibv_create_qp(pd, &attr);
	CHECK(e->qp);
	e->memory = calloc(1, SIZE);
	e->mr = ibv_reg_mr(pd, e->memory, SIZE, region_rights);
	CHECK(e->mr);
}

static int to_init(struct ibv_qp *qp)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = wanted.port_num,
				    .qp_access_flags = wanted.qp_access_flags, .qkey = QKEY };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN;
static const int rtr_rc_mask = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

static int to_rtr(struct ibv_qp *qp, uint32_t peer, uint32_t psn)
{
	struct ibv_qp_attr attr = wanted;

	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = peer;
	attr.rq_psn = psn;
	if (qp->qp_type == IBV_QPT_UD)
		return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	return ibv_modify_qp(qp, &attr, rtr_mask | (qp->qp_type == IBV_QPT_RC ? rtr_rc_mask : 0));
}

static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = wanted;
	int rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 7;
	attr.retry_cnt = retries;
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | (qp->qp_type == IBV_QPT_RC ? rc : 0));
}

/* Creates both ends and connects them with `wanted` and the other variables above. */
static void connect_both(void)
{
	make(&a, type_of_b == IBV_QPT_UD ? IBV_QPT_UD : IBV_QPT_RC);
	make(&b, type_of_b);
	CHECK(to_init(a.qp) == 0 && to_init(b.qp) == 0);
	CHECK(to_rtr(a.qp, b.qp->qp_num, 7) == 0 && to_rtr(b.qp, a.qp->qp_num, psn_of_b) == 0);
	CHECK(to_rts(a.qp) == 0 && to_rts(b.qp) == 0);
	printf("a is QP 0x%06x, b is QP 0x%06x\n", a.qp->qp_num, b.qp->qp_num);
	fflush(stdout);
}

static int receive(struct end *e, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->memory, .length = length, .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 0xb, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(e->qp, &wr, &bad);
}

static struct ibv_sge own;
static struct ibv_send_wr request;

/* Prepares a request of `a` with 64 bytes of its memory. Mistakes change it before it is posted. */
static void prepare(enum ibv_wr_opcode opcode)
{
	own = (struct ibv_sge){ .addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey };
	memset(&request, 0, sizeof request);
	request.wr_id = 0xa;
	request.sg_list = &own;
	request.num_sge = 1;
	request.opcode = opcode;
	request.send_flags = IBV_SEND_SIGNALED;
	request.wr.rdma.remote_addr = (uintptr_t)b.memory;
	request.wr.rdma.rkey = b.mr->rkey;
}

static int post(void)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(a.qp, &request, &bad);
}

static void expect(struct end *e, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int found;

	while ((found = ibv_poll_cq(e->cq, 1, &wc)) == 0)
		;
	CHECK(found == 1);
	if (wc.status != status) {
		printf("%s instead of %s\n", ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
		exit(1);
	}
}

static void write_that_fails(enum ibv_wc_status status)
{
	CHECK(post() == 0);
	expect(&a, status);
}

static void null_device(void)
{
	CHECK(ibv_open_device(NULL) == NULL && errno == ENODEV);
	CHECK(ibv_alloc_pd(NULL) == NULL && errno == EINVAL);
	CHECK(ibv_create_cq(NULL, 1, NULL, NULL, 0) == NULL && errno == EINVAL);
	CHECK(ibv_reg_mr(NULL, &own, 8, 0) == NULL && errno == EINVAL);
}

static void port(void)
{
	struct ibv_port_attr attr;

	CHECK(ibv_query_port(context, 0, &attr) == EINVAL);
	make(&a, IBV_QPT_RC);
	wanted.port_num = 2;
	CHECK(to_init(a.qp) == EINVAL);
}

static void no_grh(void)
{
	make(&a, IBV_QPT_RC);
	wanted.ah_attr.is_global = 0;
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, 0x11, 0) == EINVAL);
}

static void gid_index(void)
{
	make(&a, IBV_QPT_RC);
	wanted.ah_attr.grh.sgid_index = 99;
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, 0x11, 0) == EINVAL);
}

static void gid_family(void)
{
	make(&a, IBV_QPT_RC);
	wanted.ah_attr.grh.sgid_index = v6;
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, 0x11, 0) == EINVAL);
}

static void no_dgid(void)
{
	make(&a, IBV_QPT_RC);
	memset(&wanted.ah_attr.grh.dgid, 0, sizeof wanted.ah_attr.grh.dgid);
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, 0x11, 0) == EINVAL);
}

static void mtu(void)
{
	make(&a, IBV_QPT_RC);
	wanted.path_mtu = IBV_MTU_4096;
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, 0x11, 0) == EINVAL);
}

static void missing_bits(void)
{
	struct ibv_qp_attr attr = wanted;

	make(&a, IBV_QPT_RC);
	CHECK(to_init(a.qp) == 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = 0x11;
	CHECK(ibv_modify_qp(a.qp, &attr, rtr_mask) == EINVAL);
}

static void rts_before_rtr(void)
{
	make(&a, IBV_QPT_RC);
	CHECK(to_init(a.qp) == 0 && to_rts(a.qp) == EINVAL);
}

static void reset(void)
{
	make(&a, IBV_QPT_RC);
	make(&b, IBV_QPT_RC);
	prepare(IBV_WR_SEND);
	CHECK(post() == EINVAL && receive(&a, 8) == EINVAL);
}

static void rights_of_region(void)
{
	CHECK(ibv_reg_mr(pd, &own, sizeof own, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
}

static void pd_in_use(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_mr *one = ibv_reg_mr(domain, &own, sizeof own, 0);
	struct ibv_mr *other = ibv_reg_mr(domain, &own, sizeof own, 0);
	struct ibv_srq_init_attr size = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *queue = ibv_create_srq(domain, &size);

	CHECK(ibv_dealloc_pd(domain) == EBUSY);
	CHECK(ibv_dereg_mr(one) == 0 && ibv_dereg_mr(other) == 0 && ibv_destroy_srq(queue) == 0);
	CHECK(ibv_dealloc_pd(domain) == 0);
}

/* Returns a queue pair that is not connected. */
static struct ibv_qp *lone(struct ibv_cq *send, struct ibv_cq *receive, struct ibv_srq *shared)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send, .recv_cq = receive, .srq = shared, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	return qp;
}

static void queues_in_use(void)
{
	struct ibv_xrcd_init_attr unnamed = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *domain = ibv_open_xrcd(context, &unnamed);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *one = ibv_create_cq(context, 4, NULL, channel, 0);
	struct ibv_cq *other = ibv_create_cq(context, 4, NULL, channel, 0);
	struct ibv_srq_init_attr size = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex of_xrc = {
		.attr = { .max_wr = 1, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = domain,
		.cq = one, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *shared = ibv_create_srq(pd, &size), *named = ibv_create_srq_ex(context, &of_xrc);
	struct ibv_qp *first, *second;

	CHECK(domain && channel && one && other && shared && named);
	first = lone(one, one, shared);
	second = lone(one, other, shared);
	CHECK(ibv_destroy_cq(one) == EBUSY && ibv_destroy_srq(shared) == EBUSY);
	CHECK(ibv_close_xrcd(domain) == EBUSY && ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_qp(first) == 0 && ibv_destroy_qp(second) == 0);
	CHECK(ibv_destroy_srq(shared) == 0 && ibv_destroy_srq(named) == 0);
	CHECK(ibv_destroy_cq(one) == 0 && ibv_destroy_cq(other) == 0);
	CHECK(ibv_close_xrcd(domain) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

static void inline_data(void)
{
	connect_both();
	prepare(IBV_WR_SEND);
	own.length = 2000;
	request.send_flags |= IBV_SEND_INLINE;
	CHECK(post() == EINVAL);
}

static void queue_full(void)
{
	int posted = 0, error;

	connect_both();
	prepare(IBV_WR_SEND);
 /* No receive is posted, so none of these SENDs completes. */
	while ((error = post()) == 0)
		posted++;
	CHECK(error == ENOMEM && posted == 4);
}

static void rnr(void)
{
	wanted.rnr_retry = 1;
	connect_both();
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RNR_RETRY_EXC_ERR);
}

/* Waits for a receive that never comes, until it is killed. */
static void rnr_for_ever(void)
{
	connect_both();
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_SUCCESS);
}

static void rkey(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	request.wr.rdma.rkey ^= 0x5a5a5a00;
	CHECK(receive(&b, 8) == 0);
	write_that_fails(IBV_WC_REM_ACCESS_ERR);
 /* The other requests are flushed. */
	CHECK(post() == 0);
	expect(&a, IBV_WC_WR_FLUSH_ERR);
	expect(&b, IBV_WC_WR_FLUSH_ERR);
}

static void rkey_reversed(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	request.wr.rdma.rkey = htonl(request.wr.rdma.rkey);
	write_that_fails(IBV_WC_REM_ACCESS_ERR);
}

static void address(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	request.wr.rdma.remote_addr += SIZE - 8;
	write_that_fails(IBV_WC_REM_ACCESS_ERR);
}

static void address_reversed(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	request.wr.rdma.remote_addr = htobe64(request.wr.rdma.remote_addr);
	write_that_fails(IBV_WC_REM_ACCESS_ERR);
}

static void right(void)
{
	region_rights = IBV_ACCESS_LOCAL_WRITE;
	connect_both();
	prepare(IBV_WR_RDMA_READ);
	write_that_fails(IBV_WC_REM_ACCESS_ERR);
}

static void qp_access(void)
{
	wanted.qp_access_flags = 0;
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	write_that_fails(IBV_WC_REM_INV_REQ_ERR);
}

static void lkey(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	own.lkey = 0;
	write_that_fails(IBV_WC_LOC_PROT_ERR);
}

static void local_range(void)
{
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	own.length = SIZE + 1;
	write_that_fails(IBV_WC_LOC_PROT_ERR);
}

static void no_reads(void)
{
	wanted.max_rd_atomic = 0;
	connect_both();
	prepare(IBV_WR_RDMA_READ);
	write_that_fails(IBV_WC_LOC_QP_OP_ERR);
}

static void cq_small(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;
	int found;

	cqe = 1;
	connect_both();
	prepare(IBV_WR_RDMA_WRITE);
	CHECK(post() == 0 && post() == 0 && post() == 0);
	do {
		CHECK(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_CQ_ERR);
	while ((found = ibv_poll_cq(a.cq, 1, &wc)) > 0)
		;
	CHECK(found < 0);
}

static void receive_small(void)
{
	connect_both();
	CHECK(receive(&b, 8) == 0);
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_REM_INV_REQ_ERR);
	expect(&b, IBV_WC_LOC_LEN_ERR);
}

static void psn(void)
{
	psn_of_b = 1000;
	connect_both();
	CHECK(receive(&b, 64) == 0);
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

static void psn_behind(void)
{
	psn_of_b = 0;
	connect_both();
	CHECK(receive(&b, 64) == 0);
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

static void service(void)
{
	type_of_b = IBV_QPT_UC;
	connect_both();
	CHECK(receive(&b, 64) == 0);
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

static void no_answer(void)
{
 /* An address that no host has. */
	inet_pton(AF_INET6, "::ffff:10.9.0.99", &wanted.ah_attr.grh.dgid);
	connect_both();
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

/* Connects to a number in this process's QPN range that no queue pair has. */
static void dest_qpn(void)
{
	make(&a, IBV_QPT_RC);
	CHECK(to_init(a.qp) == 0);
	CHECK(to_rtr(a.qp, a.qp->qp_num ^ 1, 7) == 0 && to_rts(a.qp) == 0);
	printf("a is QP 0x%06x\n", a.qp->qp_num);
	fflush(stdout);
	b = a;
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

static void not_ready(void)
{
 /* 67 ms: long enough that the peer is not assumed to be just getting ready. */
	wanted.timeout = 14;
	make(&a, IBV_QPT_RC);
	make(&b, IBV_QPT_RC);
	CHECK(to_init(a.qp) == 0 && to_init(b.qp) == 0);
	CHECK(to_rtr(a.qp, b.qp->qp_num, 7) == 0 && to_rts(a.qp) == 0);
	printf("a is QP 0x%06x, b is QP 0x%06x\n", a.qp->qp_num, b.qp->qp_num);
	prepare(IBV_WR_SEND);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

/* b sends before a is ready, then messages arrive in both directions, and then b is gone. */
static void ended(void)
{
	struct ibv_send_wr *bad;

	make(&a, IBV_QPT_RC);
	make(&b, IBV_QPT_RC);
	CHECK(to_init(a.qp) == 0 && to_init(b.qp) == 0 && receive(&a, 64) == 0);
	CHECK(to_rtr(b.qp, a.qp->qp_num, 7) == 0 && to_rts(b.qp) == 0);
	printf("a is QP 0x%06x, b is QP 0x%06x\n", a.qp->qp_num, b.qp->qp_num);
	prepare(IBV_WR_SEND);
	own.lkey = b.mr->lkey;
	own.addr = (uintptr_t)b.memory;
	CHECK(ibv_post_send(b.qp, &request, &bad) == 0);
	usleep(20000);
	retries = 2;
	CHECK(to_rtr(a.qp, b.qp->qp_num, 7) == 0 && to_rts(a.qp) == 0);
	expect(&a, IBV_WC_SUCCESS);
	expect(&b, IBV_WC_SUCCESS);
	CHECK(receive(&b, 64) == 0);
	prepare(IBV_WR_SEND);
	CHECK(post() == 0);
	expect(&a, IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	write_that_fails(IBV_WC_RETRY_EXC_ERR);
}

/* Asks for more inline data than the device supports, once or until a queue pair is created. */
static void too_large(int ends_there)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = NULL;

	attr.send_cq = attr.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	for (uint32_t size = 4096; !qp; size /= 2) {
		attr.cap = (struct ibv_qp_cap){ .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
						.max_recv_sge = 1, .max_inline_data = size };
		CHECK((qp = ibv_create_qp(pd, &attr)) || errno == EINVAL);
		if (ends_there)
			break;
	}
	CHECK((qp == NULL) == ends_there);
}

static void large(void)
{
	too_large(1);
}

static void found_by_trying(void)
{
	too_large(0);
}

static void datagram(uint32_t qkey, uint32_t room, int with_ah)
{
	type_of_b = IBV_QPT_UD;
	connect_both();
	if (room > 0)
		CHECK(receive(&b, room) == 0);
	prepare(IBV_WR_SEND);
	request.wr.ud.ah = with_ah ? ibv_create_ah(pd, &wanted.ah_attr) : NULL;
	request.wr.ud.remote_qpn = b.qp->qp_num;
	request.wr.ud.remote_qkey = qkey;
	if (!with_ah) {
		CHECK(post() == EINVAL);
		return;
	}
	CHECK(post() == 0);
	expect(&a, IBV_WC_SUCCESS);
}

/* Sends datagrams that are lost silently, until it is killed. */
static void wait_for_ever(void)
{
	expect(&b, IBV_WC_SUCCESS);
}

/* Sends a datagram that is longer than one packet. */
static void datagram_long(void)
{
	type_of_b = IBV_QPT_UD;
	connect_both();
	prepare(IBV_WR_SEND);
	own.length = 1025;
	request.wr.ud.ah = ibv_create_ah(pd, &wanted.ah_attr);
	request.wr.ud.remote_qpn = b.qp->qp_num;
	request.wr.ud.remote_qkey = QKEY;
	CHECK(post() == 0);
	expect(&a, IBV_WC_LOC_LEN_ERR);
}

static void qkey(void)
{
	datagram(QKEY + 1, 256, 1);
	wait_for_ever();
}

static void no_datagram_receive(void)
{
	datagram(QKEY, 0, 1);
	wait_for_ever();
}

static void datagram_room(void)
{
	datagram(QKEY, 64, 1);
	expect(&b, IBV_WC_LOC_LEN_ERR);
}

/* Sleeps for an event that it has not asked for, until it is killed. */
static void unarmed(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq;
	void *of;

	CHECK(channel && ibv_create_cq(context, 4, NULL, channel, 0));
	CHECK(ibv_get_cq_event(channel, &cq, &of) == 0);
}

static void no_address_handle(void)
{
	datagram(QKEY, 256, 0);
}

/* The data that one process must know about the other's end. */
struct about {
	uint64_t address;
	uint32_t rkey, qpn;
};

static void told_wrong(int sock, int asks, const char *device)
{
	struct about mine, peer;
	char ready = 0;

	open_device(device);
	CHECK(ibv_query_gid(context, 1, v4, &wanted.ah_attr.grh.dgid) == 0);
	wanted.ah_attr.grh.sgid_index = v4;
	make(&a, IBV_QPT_RC);
	printf("%s is QP 0x%06x\n", asks ? "a" : "b", a.qp->qp_num);
	fflush(stdout);
	mine = (struct about){ (uintptr_t)a.memory, a.mr->rkey, a.qp->qp_num };
	CHECK(write(sock, &mine, sizeof mine) == sizeof mine);
	CHECK(read(sock, &peer, sizeof peer) == sizeof peer);
	CHECK(to_init(a.qp) == 0 && to_rtr(a.qp, peer.qpn, 7) == 0 && to_rts(a.qp) == 0);
	CHECK(receive(&a, 8) == 0);
	CHECK(write(sock, "r", 1) == 1 && read(sock, &ready, 1) == 1);
	if (asks) {
		b = a;
		prepare(IBV_WR_RDMA_WRITE);
		request.wr.rdma.remote_addr = peer.address + SIZE;
		request.wr.rdma.rkey = peer.rkey;
		write_that_fails(IBV_WC_REM_ACCESS_ERR);
	}
	expect(&a, IBV_WC_WR_FLUSH_ERR);
	CHECK(write(sock, "d", 1) == 1 && read(sock, &ready, 1) == 1);
}

/* Uses two processes, because the test checks which of them prints what. No device is open before the fork. */
static int in_two_processes(const char *device)
{
	int ends[2], status;
	pid_t child;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	child = fork();
	CHECK(child >= 0);
	told_wrong(ends[child == 0], child != 0, device);
	if (child == 0)
		return 0;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("made\n");
	return 0;
}

static const struct {
	const char *name;
	void (*make)(void);
} mistakes[] = {
	{ "null-device", null_device },
	{ "port", port },
	{ "no-grh", no_grh },
	{ "gid-index", gid_index },
	{ "gid-family", gid_family },
	{ "no-dgid", no_dgid },
	{ "mtu", mtu },
	{ "missing-bits", missing_bits },
	{ "rts-before-rtr", rts_before_rtr },
	{ "reset", reset },
	{ "rights-of-region", rights_of_region },
	{ "pd-in-use", pd_in_use },
	{ "queues-in-use", queues_in_use },
	{ "inline", inline_data },
	{ "queue-full", queue_full },
	{ "rnr", rnr },
	{ "rnr-for-ever", rnr_for_ever },
	{ "rkey", rkey },
	{ "rkey-reversed", rkey_reversed },
	{ "address", address },
	{ "address-reversed", address_reversed },
	{ "right", right },
	{ "qp-access", qp_access },
	{ "lkey", lkey },
	{ "local-range", local_range },
	{ "no-reads", no_reads },
	{ "cq-small", cq_small },
	{ "receive-small", receive_small },
	{ "psn", psn },
	{ "psn-behind", psn_behind },
	{ "service", service },
	{ "no-answer", no_answer },
	{ "dest-qpn", dest_qpn },
	{ "not-ready", not_ready },
	{ "ended", ended },
	{ "large", large },
	{ "found-by-trying", found_by_trying },
	{ "qkey", qkey },
	{ "no-datagram-receive", no_datagram_receive },
	{ "datagram-room", datagram_room },
	{ "datagram-long", datagram_long },
	{ "no-address-handle", no_address_handle },
	{ "unarmed", unarmed },
};

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	wanted.port_num = 1;
	wanted.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	wanted.path_mtu = IBV_MTU_1024;
	wanted.max_dest_rd_atomic = 1;
	wanted.max_rd_atomic = 1;
	wanted.min_rnr_timer = 12;
	/* 16 ms, so that retries end quickly. */
	wanted.timeout = 12;
	wanted.rnr_retry = 7;
	wanted.ah_attr.is_global = 1;
	wanted.ah_attr.port_num = 1;
	wanted.ah_attr.grh.hop_limit = 64;
	if (strcmp(argv[2], "two-processes") == 0)
		return in_two_processes(argv[1]);
	open_device(argv[1]);
	wanted.ah_attr.grh.sgid_index = v4;
	CHECK(ibv_query_gid(context, 1, v4, &wanted.ah_attr.grh.dgid) == 0);
	for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
		if (strcmp(mistakes[i].name, argv[2]) == 0) {
			mistakes[i].make();
			printf("made\n");
			return 0;
		}
	}
	printf("there is no mistake %s\n", argv[2]);
	return 1;
}
