/*
 * Extended completion queues: each field that can be requested, and each flag. The argument is the device.
 * The two ends are two contexts of this process.
 */
#include "pair.h"

enum { TAG_MATCHING = IBV_WC_EX_WITH_TM_INFO,
       ALL = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |
	     IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
       DEPTH = 4, WRITES = 50 };

static struct ibv_cq_ex *create(uint64_t fields, uint32_t mask, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH, .wc_flags = fields, .comp_mask = mask,
					    .flags = flags };

	return ibv_create_cq_ex(a.context, &attr);
}

/* Flags that no software device supports are refused, like unknown flags. */
static void refusals(void)
{
	struct ibv_cq_ex *cq;

	CHECK(!create(ALL | TAG_MATCHING, 0, 0) && errno == EOPNOTSUPP);
	CHECK(!create(ALL, IBV_CQ_INIT_ATTR_MASK_FLAGS, 1 << 2) && errno == EOPNOTSUPP);
	CHECK(!create(ALL, 1 << 2, 0) && errno == EOPNOTSUPP);
	/* Flags count only if the mask has the bit for flags. */
	CHECK(cq = create(ALL, 0, 1 << 2));
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(cq = create(0, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED));
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/* Connects both ends. The queue pair of `a` completes in `cq`. */
static void connected(struct ibv_cq_ex *cq)
{
	struct ibv_cq *own = a.cq;

	a.cq = ibv_cq_ex_to_cq(cq);
	make(&a);
	make(&b);
	a.cq = own;
	connect_qp(a.qp, b.qp, REMOTE);
	connect_qp(b.qp, a.qp, REMOTE);
}

static void write_to(char *from, struct ibv_mr *from_mr, char *to, struct ibv_mr *to_mr, uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = 8, .lkey = from_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	int full;

	name_remote(&wr, to, to_mr);
	/* Acknowledgements may come later than the data, so the send queue may be full for a moment. */
	while ((full = ibv_post_send(a.qp, &wr, &bad)) == ENOMEM)
		usleep(1000);
	CHECK(full == 0);
}

static void fields(char *from, struct ibv_mr *here, char *to, struct ibv_mr *there)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *cq;
	int polled;

	CHECK(cq = create(ALL, 0, 0));
	connected(cq);
	write_to(from, here, to, there, 7);
	while ((polled = ibv_start_poll(cq, &attr)) == ENOENT)
		usleep(1000);
	CHECK(polled == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == 7);
	CHECK(ibv_wc_read_qp_num(cq) == a.qp->qp_num && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
	CHECK(ibv_wc_read_cvlan(cq) == 0 && ibv_wc_read_flow_tag(cq) == 0);
	CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_dlid_path_bits(cq) == 0);
	CHECK(ibv_wc_read_completion_ts(cq) > 0 && ibv_wc_read_completion_wallclock_ns(cq) > 0);
	ibv_end_poll(cq);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/* More completions than the queue holds: the first ones stay, and the connection continues. */
static void overruns(char *from, struct ibv_mr *here, char *to, struct ibv_mr *there)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_cq_ex *cq;
	struct ibv_wc wc;

	CHECK(cq = create(0, IBV_CQ_INIT_ATTR_MASK_FLAGS,
			  IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED));
	CHECK(ibv_cq_ex_to_cq(cq)->cqe == DEPTH);
	connected(cq);
	for (uint64_t id = 1; id <= WRITES; id++) {
		memcpy(from, &id, 8);
		write_to(from, here, to, there, id);
		/* The completion is lost, but the target memory shows that the WRITE was executed. */
		while (*(volatile uint64_t *)to != id)
			usleep(100);
	}
	for (uint64_t id = 1; id <= DEPTH; id++)
		CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 1 && wc.wr_id == id &&
		      wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	/* The queue has room again. The completion of the last WRITE may already have been polled. */
	write_to(from, here, to, there, 1000);
	do {
		while (ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 0)
			usleep(1000);
		CHECK(wc.status == IBV_WC_SUCCESS);
	} while (wc.wr_id != 1000);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

int main(int count, char **arguments)
{
	struct ibv_mr *here, *there;
	char *from, *to;

	CHECK(count > 1);
	open_both(arguments[1]);
	from = ordinary(&a, &here);
	to = ordinary(&b, &there);
	is(request(IBV_WR_RDMA_WRITE, from, here, to, there, 8), IBV_WC_SUCCESS, 0, "an ordinary queue");
	refusals();
	fields(from, here, to, there);
	overruns(from, here, to, there);
	puts("extended completion queues: done");
	return 0;
}
