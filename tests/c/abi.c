/*
 * Calls of libibverbs that the pingpongs and perftest do not make, one function for each topic: extended
 * queue pairs and completion queues, memory windows, re-registration, events, cancelled threads, forks,
 * and the errors for misuse. Both queue pairs are in this process, on the device that the first argument
 * names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

enum { SIZE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_qp *a, *b;
static struct ibv_mr *mr;
static char *memory;

static uint64_t address(int offset)
{
	return (uintptr_t)memory + offset;
}

/* Waits for one completion, by the extended interface. */
static enum ibv_wc_status next(uint64_t *id, enum ibv_wc_opcode *opcode)
{
	struct ibv_poll_cq_attr attr = { 0 };
	enum ibv_wc_status status;
	int result;

	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(result == 0);
	status = cq->status;
	*id = cq->wr_id;
	*opcode = status == IBV_WC_SUCCESS ? ibv_wc_read_opcode(cq) : 0;
	if (status == IBV_WC_SUCCESS) {
		CHECK(ibv_wc_read_completion_ts(cq) != 0);
		CHECK(ibv_wc_read_completion_wallclock_ns(cq) > 1000000000);
		CHECK(ibv_wc_read_qp_num(cq) == a->qp_num || ibv_wc_read_qp_num(cq) == b->qp_num);
	}
	ibv_end_poll(cq);
	return status;
}

static void expect(uint64_t id, enum ibv_wc_opcode opcode)
{
	uint64_t found;
	enum ibv_wc_opcode kind;

	CHECK(next(&found, &kind) == IBV_WC_SUCCESS);
	CHECK(found == id && kind == opcode);
}

static void describe(void)
{
	struct ibv_device_attr_ex device;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, table[64];
	/* perftest calls this function, but no header declares it. */
	int (*query_type)(struct ibv_context *, uint8_t, unsigned int, unsigned int *) =
		dlsym(RTLD_DEFAULT, "ibv_query_gid_type");
	struct ibv_ah_attr sender;
	struct ibv_wc sent = { 0 };
	union ibv_gid gid;
	unsigned int type;
	__be16 pkey;
	ssize_t entries;

	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.orig_attr.vendor_id == 0xffffff && device.orig_attr.max_sge >= 32);
	CHECK(device.orig_attr.node_guid == ibv_get_device_guid(context->device));
	CHECK(device.completion_timestamp_mask != 0 && device.hca_core_clock != 0);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.state == IBV_PORT_ACTIVE);
	CHECK(port.flags & IBV_QPF_GRH_REQUIRED);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	entries = ibv_query_gid_table(context, table, 64, 0);
	CHECK(entries > 0);
	CHECK(ibv_query_gid_table(context, table, entries, 0) == entries);
 /* A table that is too small is refused, and not partly filled. */
	CHECK(ibv_query_gid_table(context, table, entries - 1, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
	/* Programs duplicate the command descriptor and set its flags. */
	CHECK(fcntl(context->cmd_fd, F_SETFD, FD_CLOEXEC) == 0);
	CHECK(ibv_query_gid_ex(context, 1, table[0].gid_index, &entry, 0) == 0);
	CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex > 0);
	CHECK(memcmp(&entry, &table[0], sizeof entry) == 0);
	CHECK(ibv_query_gid(context, 1, 1000, &gid) == 0 && gid.global.interface_id == 0);
	CHECK(ibv_query_gid_ex(context, 1, 1000, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid(context, 1, 100000, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_get_pkey_index(context, 1, pkey) == 0);
	CHECK(strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded") == 0);
	/* A completion without a GRH does not name the sender. */
	CHECK(ibv_init_ah_from_wc(context, 1, &sent, NULL, &sender) == -1 && errno == EINVAL);
	/* An empty entry of the table has the first type. */
	CHECK(query_type && query_type(context, 1, 1000, &type) == 0 && type == 0);
	CHECK(query_type(context, 1, table[0].gid_index, &type) == 0 && type == 1);
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_BIND_MW |
				  IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	CHECK(qp && attr.cap.max_inline_data >= 64);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC };
	struct ibv_qp_init_attr init;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS) == 0);
	memset(&attr, 0xa5, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	/* Only the low 24 bits of the number count. */
	attr.dest_qp_num = peer->qp_num | 0x5a000000;
	attr.rq_psn = 7;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	memset(&attr.ah_attr, 0, sizeof attr.ah_attr);
	attr.ah_attr.port_num = 1;
 /* First without a GRH, which RoCE needs. */
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(ibv_query_gid(context, 1, gid_index, &attr.ah_attr.grh.dgid) == 0);
 /* First with a missing mask bit, then correctly. */
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 17;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.sq_psn = 7;
	attr.max_rd_atomic = 4;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(qp->state == IBV_QPS_RTS);
	memset(&attr, 0, sizeof attr);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == peer->qp_num && attr.timeout == 17);
	CHECK(init.send_cq == ibv_cq_ex_to_cq(cq) && init.cap.max_send_wr >= 16);
}

static void receive(uint64_t id, int offset)
{
	struct ibv_sge sge = { .addr = address(offset), .length = 256, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(b, &wr, &bad) == 0);
}

static void built_requests(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	struct ibv_data_buf parts[2] = { { "He", 2 }, { "llo", 3 } };
	uint64_t *word = (uint64_t *)(memory + 512);

	/* A WRITE, an inline SEND with immediate data and a READ are posted together. */
	receive(1, 0);
	memcpy(memory + 1024, "written", 8);
	ibv_wr_start(qp);
	qp->wr_id = 10;
	qp->wr_flags = 0;
	ibv_wr_rdma_write(qp, mr->rkey, address(2048));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 8);
	qp->wr_id = 11;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(0x12345678));
	ibv_wr_set_inline_data_list(qp, 2, parts);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(1, IBV_WC_RECV);
	CHECK(memcmp(memory, "Hello", 5) == 0 && memcmp(memory + 2048, "written", 8) == 0);
	expect(11, IBV_WC_SEND);
	ibv_wr_start(qp);
	qp->wr_id = 12;
	ibv_wr_rdma_read(qp, mr->rkey, address(2048));
	ibv_wr_set_sge(qp, mr->lkey, address(3072), 8);
	*word = 40;
	qp->wr_id = 13;
	ibv_wr_atomic_fetch_add(qp, mr->rkey, address(512), 2);
	ibv_wr_set_sge(qp, mr->lkey, address(520), 8);
	qp->wr_id = 14;
	ibv_wr_atomic_cmp_swp(qp, mr->rkey, address(512), 42, 1);
	ibv_wr_set_sge(qp, mr->lkey, address(528), 8);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(12, IBV_WC_RDMA_READ);
	expect(13, IBV_WC_FETCH_ADD);
	expect(14, IBV_WC_COMP_SWAP);
	CHECK(memcmp(memory + 3072, "written", 8) == 0);
	CHECK(word[0] == 1 && word[1] == 40 && word[2] == 42);

 /* If a batch is aborted or contains a mistake, none of its requests is posted. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, mr->rkey, address(0));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 8);
	ibv_wr_rdma_write(qp, mr->rkey, address(0));
	ibv_wr_set_inline_data(qp, memory, 2000);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	qp->wr_id = 15;
	ibv_wr_rdma_write(qp, mr->rkey, address(0));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 8);
	ibv_wr_atomic_fetch_add(qp, mr->rkey, address(512), 1);
	ibv_wr_set_sge(qp, mr->lkey, address(520), 4);
	CHECK(ibv_wr_complete(qp) == EINVAL);
}

/* Work requests and scatter/gather elements at odd addresses, as in the packed structures of libiscsi. */
static void packed_requests(void)
{
	static char odd[512];
	struct ibv_sge sges[2] = { { address(0), 4, mr->lkey }, { address(1024), 4, mr->lkey } };
	struct ibv_sge *list = memcpy(odd + 1, sges, sizeof(sges));
	struct ibv_recv_wr receive = { .wr_id = 30, .sg_list = list, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 31, .sg_list = list + 1, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	memcpy(memory + 1024, "odd", 4);
	CHECK(ibv_post_recv(b, memcpy(odd + 65, &receive, sizeof(receive)), &bad_receive) == 0);
	CHECK(ibv_post_send(a, memcpy(odd + 129, &send, sizeof(send)), &bad) == 0);
	expect(30, IBV_WC_RECV);
	expect(31, IBV_WC_SEND);
	CHECK(strcmp(memory, "odd") == 0);
}

static void lists_and_the_bad_one(void)
{
	struct ibv_sge sge = { .addr = address(1024), .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr[3], *bad = NULL;

	for (int i = 0; i < 3; i++) {
		memset(&wr[i], 0, sizeof wr[i]);
		wr[i].wr_id = 20 + i;
		wr[i].next = i < 2 ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge;
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_RDMA_WRITE;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].wr.rdma.remote_addr = address(2048 + 8 * i);
		wr[i].wr.rdma.rkey = mr->rkey;
	}
	CHECK(ibv_post_send(a, &wr[0], &bad) == 0);
	for (int i = 0; i < 3; i++)
		expect(20 + i, IBV_WC_RDMA_WRITE);
	/* The second request has too many elements: only the first is posted. */
	wr[1].num_sge = 3;
	CHECK(ibv_post_send(a, &wr[0], &bad) == EINVAL && bad == &wr[1]);
	expect(20, IBV_WC_RDMA_WRITE);
	wr[1].num_sge = 1;
	wr[1].opcode = 77;
	CHECK(ibv_post_send(a, &wr[0], &bad) == EINVAL && bad == &wr[1]);
	expect(20, IBV_WC_RDMA_WRITE);
}

static void windows(void)
{
	struct ibv_mw *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind_info range = { .mr = mr, .addr = address(2048), .length = 64,
					  .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_send_wr bind = { .wr_id = 30, .opcode = IBV_WR_BIND_MW,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_mw_bind old = { .wr_id = 31, .send_flags = IBV_SEND_SIGNALED, .bind_info = range };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	uint32_t before;

	CHECK(one && two);
	bind.bind_mw.mw = two;
	bind.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	bind.bind_mw.bind_info = range;
	CHECK(ibv_post_send(b, &bind, &bad) == 0);
	expect(30, IBV_WC_BIND_MW);
	before = one->rkey;
	CHECK(ibv_bind_mw(b, one, &old) == 0 && one->rkey != before);
	expect(31, IBV_WC_BIND_MW);
 /* WRITEs through both windows. */
	memcpy(memory + 1024, "window", 7);
	ibv_wr_start(qp);
	qp->wr_id = 32;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, bind.bind_mw.rkey, address(2048));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 7);
	qp->wr_id = 33;
	ibv_wr_rdma_write(qp, one->rkey, address(2080));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 7);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(32, IBV_WC_RDMA_WRITE);
	expect(33, IBV_WC_RDMA_WRITE);
	CHECK(memcmp(memory + 2048, "window", 7) == 0 && memcmp(memory + 2080, "window", 7) == 0);
	CHECK(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
}

static void registering_anew(void)
{
	char *other = calloc(2, SIZE);
	struct ibv_mr *region = ibv_reg_mr(pd, other, SIZE, IBV_ACCESS_LOCAL_WRITE);
	int flags = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS;

	CHECK(region && region->length == SIZE);
	CHECK(ibv_rereg_mr(region, flags, NULL, other + SIZE, SIZE,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) == 0);
	CHECK(region->addr == other + SIZE);
	CHECK(ibv_rereg_mr(region, 64, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
 /* libibverbs refuses a missing address, and rights without the flag. The device refuses a wrong right. */
	CHECK(ibv_rereg_mr(region, flags, NULL, other, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, flags, NULL, NULL, SIZE, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			   IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(region->addr == other + SIZE && region->length == SIZE);
	CHECK(ibv_dereg_mr(region) == 0);
	CHECK(!ibv_reg_mr(pd, other, SIZE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, (void *)4096, SIZE, 0) && errno == EFAULT);
	region = ibv_reg_mr(pd, other, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(region && ibv_dereg_mr(region) == 0);
	/* A read-only region becomes writable. */
	region = ibv_reg_mr(pd, other, SIZE, 0);
	CHECK(region && ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
				     IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(ibv_dereg_mr(region) == 0);
	/* If the program's own mapping is read-only, the call fails and the region is unchanged. */
	char *constant = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(constant != MAP_FAILED);
	region = ibv_reg_mr(pd, constant, SIZE, IBV_ACCESS_REMOTE_READ);
	CHECK(region);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			   IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(ibv_rereg_mr(region, flags, NULL, constant, SIZE, IBV_ACCESS_LOCAL_WRITE) ==
	      IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(region->addr == constant && ibv_dereg_mr(region) == 0);
	CHECK(munmap(constant, SIZE) == 0);
	free(other);
}

/* Both clocks order events equally: the difference between their times is constant. */
static void times(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	uint64_t apart = 0;

	for (int i = 0; i < 200; i++) {
		ibv_wr_start(qp);
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, mr->rkey, address(2048));
		ibv_wr_set_sge(qp, mr->lkey, address(1024), 8);
		CHECK(ibv_wr_complete(qp) == 0);
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		if (i == 0)
			apart = ibv_wc_read_completion_wallclock_ns(cq) - ibv_wc_read_completion_ts(cq);
		CHECK(ibv_wc_read_completion_wallclock_ns(cq) - ibv_wc_read_completion_ts(cq) == apart);
		ibv_end_poll(cq);
	}
}

/* Calls that devices permit although they seem useless. */
static void empty_regions_and_long_lists(void)
{
	struct ibv_mr *empty = ibv_reg_mr(pd, memory + 64, 0, IBV_ACCESS_REMOTE_READ);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	uint64_t *word = (uint64_t *)(memory + 512);

	CHECK(empty && empty->length == 0 && empty->addr == memory + 64);
	ibv_wr_start(qp);
	qp->wr_id = 60;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_read(qp, empty->rkey, address(64));
	ibv_wr_set_sge(qp, empty->lkey, address(64), 0);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(60, IBV_WC_RDMA_READ);
	CHECK(ibv_dereg_mr(empty) == 0);
 /* An atomic writes to the first 8 bytes of the list. */
	word[0] = 5;
	word[1] = word[2] = 0;
	ibv_wr_start(qp);
	qp->wr_id = 61;
	ibv_wr_atomic_fetch_add(qp, mr->rkey, address(512), 2);
	ibv_wr_set_sge(qp, mr->lkey, address(520), 16);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(61, IBV_WC_FETCH_ADD);
	CHECK(word[0] == 7 && word[1] == 5 && word[2] == 0);
}

/* An object whose handle or context was overwritten is refused. */
static void overwritten_handles(void)
{
	enum { WRONG = 0xdeadbeef };
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_cq *queue = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(domain, &srq_attr);
	struct ibv_mr *region = ibv_reg_mr(domain, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *window = ibv_alloc_mw(domain, IBV_MW_TYPE_1);
	struct ibv_qp_init_attr attr = { .send_cq = queue, .recv_cq = queue, .srq = srq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(domain, &attr);
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, seen;
	struct ibv_qp_init_attr its;
	struct ibv_srq_attr limit = { .srq_limit = 4 };
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } };
	struct ibv_ah *ah;
	uint32_t number;

	CHECK(other && domain && queue && srq && region && window && qp);
	CHECK(ibv_query_gid(context, 1, 1, &way.grh.dgid) == 0);
	CHECK((ah = ibv_create_ah(domain, &way)));

	qp->handle ^= WRONG;
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS) == ENOENT);
	CHECK(ibv_query_qp(qp, &seen, IBV_QP_STATE, &its) == ENOENT);
	CHECK(ibv_destroy_qp(qp) == ENOENT && errno == ENOENT);
	qp->handle ^= WRONG;
	CHECK(ibv_destroy_qp(qp) == 0);

	queue->handle ^= WRONG;
	CHECK(!ibv_create_qp(domain, &attr) && errno == ENOENT);
	CHECK(ibv_req_notify_cq(queue, 0) == ENOENT && ibv_resize_cq(queue, 8) == ENOENT);
	CHECK(ibv_destroy_cq(queue) == ENOENT);
	queue->handle ^= WRONG;

	srq->handle ^= WRONG;
	CHECK(!ibv_create_qp(domain, &attr) && errno == ENOENT);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == ENOENT);
	CHECK(ibv_query_srq(srq, &limit) == ENOENT && ibv_destroy_srq(srq) == ENOENT);
	srq->handle ^= WRONG;

	/* The handle of another object of the same kind is also refused. */
	number = region->handle;
	region->handle = mr->handle;
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_CMD && errno == ENOENT);
	CHECK(ibv_dereg_mr(region) == ENOENT);
	region->handle = 0;
	CHECK(ibv_dereg_mr(region) == ENOENT && errno == ENOENT);
	window->handle ^= WRONG;
	CHECK(ibv_dealloc_mw(window) == ENOENT);
	window->handle ^= WRONG;
	ah->handle ^= WRONG;
	CHECK(ibv_destroy_ah(ah) == ENOENT && errno == ENOENT);
	ah->handle ^= WRONG;

	domain->handle ^= WRONG;
	CHECK(!ibv_reg_mr(domain, memory, SIZE, 0) && errno == ENOENT);
	CHECK(!ibv_alloc_mw(domain, IBV_MW_TYPE_1) && errno == ENOENT);
	CHECK(!ibv_create_srq(domain, &srq_attr) && errno == ENOENT);
	CHECK(!ibv_create_ah(domain, &way) && errno == ENOENT);
	CHECK(!ibv_create_qp(domain, &attr) && errno == ENOENT);
	CHECK(ibv_dealloc_pd(domain) == ENOENT && errno == ENOENT);
	domain->handle ^= WRONG;
	domain->context = other;
	CHECK(ibv_dealloc_pd(domain) == ENOENT);
	domain->context = context;

	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dealloc_mw(window) == 0);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(queue) == 0);
	region->handle = number;
	CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(domain) == 0);
	CHECK(ibv_close_device(other) == 0);
}

static void what_is_in_use_stays(void)
{
	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_mr *region = ibv_reg_mr(own, memory, SIZE, 0);
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr attr = { .pd = own, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);

	CHECK(own && region && td && parent);
	CHECK(ibv_dealloc_pd(own) == EBUSY);
	CHECK(ibv_dereg_mr(region) == 0);
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0);
	CHECK(ibv_dealloc_pd(own) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_counters(context, &(struct ibv_counters_init_attr){ 0 }) && errno == EOPNOTSUPP);
}

static void *wait_for_ever(void *channel)
{
	struct ibv_cq *found;
	void *its_context;

	ibv_get_cq_event(channel, &found, &its_context);
	return "came back";
}

static void events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *small = ibv_create_cq(context, 4, &channel, channel, 0), *found;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct ibv_qp_init_attr attr = { .send_cq = small, .recv_cq = small, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 4, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	struct ibv_sge sge = { .addr = address(0), .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 40, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	pthread_t thread;
	void *its_context, *result;

	CHECK(qp && small->cqe >= 4);
	CHECK(ibv_resize_cq(small, 8) == 0 && small->cqe >= 8);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &found, &its_context) == -1 && errno == EAGAIN);
	CHECK(ibv_req_notify_cq(small, 0) == 0);
	CHECK(poll(&fd, 1, 0) == 0);
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	init.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE) == 0);
	CHECK(poll(&fd, 1, 10000) == 1);
	CHECK(ibv_get_cq_event(channel, &found, &its_context) == 0);
	CHECK(found == small && its_context == &channel);
	CHECK(ibv_poll_cq(small, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 40);
	CHECK(ibv_poll_cq(small, 1, &wc) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	/* A thread that blocks in a verb can be cancelled. */
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
	CHECK(pthread_create(&thread, NULL, wait_for_ever, channel) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	ibv_ack_cq_events(small, 1);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(small) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* RESET removes only the queue pair's own completions from its completion queue. So does destroying it. */
static void reset_takes_completions_back(void)
{
	struct ibv_cq *both = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = both, .recv_cq = both, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 4, .max_recv_sge = 1 } };
	struct ibv_qp *qps[2] = { ibv_create_qp(pd, &attr), ibv_create_qp(pd, &attr) };
	struct ibv_sge sge = { .addr = address(0), .length = 64, .lkey = mr->lkey };
	struct ibv_qp_attr state;
	struct ibv_wc wc[8];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 2; i++) {
			struct ibv_recv_wr wr = { .wr_id = 70 + i, .sg_list = &sge, .num_sge = 1 }, *bad;

			CHECK(qps[i]);
			state = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
			CHECK(ibv_modify_qp(qps[i], &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
							    IBV_QP_PORT | IBV_QP_QKEY) == 0);
			CHECK(ibv_post_recv(qps[i], &wr, &bad) == 0);
			CHECK(ibv_post_recv(qps[i], &wr, &bad) == 0);
			state.qp_state = IBV_QPS_ERR;
			CHECK(ibv_modify_qp(qps[i], &state, IBV_QP_STATE) == 0);
		}
		state.qp_state = IBV_QPS_RESET;
		CHECK(ibv_modify_qp(qps[0], &state, IBV_QP_STATE) == 0);
		CHECK(ibv_poll_cq(both, 8, wc) == 2 && wc[0].wr_id == 71 && wc[1].wr_id == 71);
		CHECK(wc[0].status == IBV_WC_WR_FLUSH_ERR && wc[0].qp_num == qps[1]->qp_num);
		CHECK(ibv_modify_qp(qps[1], &state, IBV_QP_STATE) == 0);
	}
	state = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	CHECK(ibv_modify_qp(qps[0], &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						    IBV_QP_QKEY) == 0);
	struct ibv_recv_wr last = { .wr_id = 72, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qps[0], &last, &bad) == 0);
	state.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qps[0], &state, IBV_QP_STATE) == 0);
	CHECK(ibv_destroy_qp(qps[0]) == 0);
	CHECK(ibv_poll_cq(both, 8, wc) == 0);
	CHECK(ibv_destroy_qp(qps[1]) == 0 && ibv_destroy_cq(both) == 0);
}

static void limit_of_a_shared_queue(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	struct ibv_srq_attr limit = { .srq_limit = 4 }, seen;
	uint32_t number;

	CHECK(srq && ibv_get_srq_num(srq, &number) == 0);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &seen) == 0 && seen.srq_limit == 4 && seen.max_wr >= 8);
	limit.max_wr = 32;
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR) == 0);
	CHECK(ibv_query_srq(srq, &seen) == 0 && seen.max_wr >= 32);
	limit.srq_limit = 1000;
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* Forks without running the handlers of pthread_atfork(). */
static pid_t bare_clone(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* A child inherits its parent's memory, but not the device. */
static void forks(pid_t (*make)(void))
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_context *own;
	struct ibv_device **list;
	int status;
	pid_t child = make();

	CHECK(child >= 0);
	if (child == 0) {
		if (ibv_post_send(a, &wr, &bad) == 0 || ibv_alloc_pd(context))
			_exit(2);
		if (ibv_destroy_qp(a) || ibv_dereg_mr(mr) || ibv_close_device(context))
			_exit(3);
		list = ibv_get_device_list(NULL);
		own = list && list[0] ? ibv_open_device(list[0]) : NULL;
		_exit(own && ibv_alloc_pd(own) ? 0 : 4);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	built_requests();
}

/* A send queue drains until its started requests have ended. Here the peer does not answer. */
static void draining(int gid_index)
{
	struct ibv_qp *asks = make(), *silent = make();
	struct ibv_sge sge = { .addr = address(0), .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;

	connect_to(asks, silent, gid_index);
	CHECK(ibv_modify_qp(asks, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_query_qp(asks, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_SQD && !attr.sq_draining);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(asks, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(asks, &wr, &bad) == 0);
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 0);
	attr.qp_state = IBV_QPS_SQD;
	CHECK(ibv_modify_qp(asks, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_query_qp(asks, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_SQD && attr.sq_draining == 1);
	CHECK(ibv_destroy_qp(asks) == 0 && ibv_destroy_qp(silent) == 0);
}

/* After a mistake of one side both queue pairs fail, with an explanation. */
static void a_wrong_key(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	struct ibv_async_event event;
	enum ibv_wc_opcode opcode;
	uint64_t id;

	ibv_wr_start(qp);
	qp->wr_id = 50;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey ^ 0x5500, address(0));
	ibv_wr_set_sge(qp, mr->lkey, address(1024), 8);
	CHECK(ibv_wr_complete(qp) == 0);
	CHECK(next(&id, &opcode) == IBV_WC_REM_ACCESS_ERR && id == 50);
	/* The interface gets its link-local address after a second or two, which changes the GID table. */
	do {
		CHECK(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST ||
		 event.event_type == IBV_EVENT_GID_CHANGE);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b);
}

int main(int count, char **arguments)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	int gid_index = count > 2 ? atoi(arguments[2]) : 1;

	CHECK(count > 1);
	context = open_named(arguments[1]);
	describe();
	CHECK(ibv_fork_init() == 0);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq_ex(context, &cq_attr)));
	CHECK(posix_memalign((void **)&memory, SIZE, SIZE) == 0);
	mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	CHECK(mr && mr->addr == memory);
	a = make();
	b = make();
	connect_to(a, b, gid_index);
	connect_to(b, a, gid_index);
	built_requests();
	packed_requests();
	lists_and_the_bad_one();
	windows();
	registering_anew();
	times();
	empty_regions_and_long_lists();
	overwritten_handles();
	what_is_in_use_stays();
	events();
	reset_takes_completions_back();
	limit_of_a_shared_queue();
	draining(gid_index);
	forks(fork);
	forks(bare_clone);
	a_wrong_key();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("all as verbs say");
	return 0;
}
