/*
 * The main thread creates a completion queue for each completion vector of the device, and queue pairs on each
 * that write to those of the next one. Prints the number of shards of the queue pairs: each shard has its own
 * QPN range. The device is the first argument. With a second argument, all queues use vector 0.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

#include "connection.h"

enum { MOST = 8, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

int main(int count, char **arguments)
{
	struct ibv_qp *from[MOST], *to[MOST];
	struct ibv_cq *cqs[MOST];
	uint64_t words[MOST + 1] = { 0 };
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int vectors, shards = 0;

	CHECK(count > 1);
	context = open_device(arguments[1]);
	vectors = context->num_comp_vectors;
	CHECK(vectors > 0);
	CHECK(!ibv_create_cq(context, 1, NULL, NULL, vectors) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 1, NULL, NULL, -1) && errno == EINVAL);
	if (vectors > MOST)
		vectors = MOST;
	words[MOST] = 42;
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, words, sizeof(words), RIGHTS)));
	for (int i = 0; i < vectors; i++) {
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
		int known = 0;

		CHECK((cqs[i] = ibv_create_cq(context, 4, NULL, NULL, count > 2 ? 0 : i)));
		attr.send_cq = attr.recv_cq = cqs[i];
		CHECK((from[i] = ibv_create_qp(pd, &attr)));
		CHECK((to[i] = ibv_create_qp(pd, &attr)));
		CHECK(from[i]->qp_num >> 16 == to[i]->qp_num >> 16);
		for (int j = 0; j < i; j++)
			known |= from[j]->qp_num >> 16 == from[i]->qp_num >> 16;
		shards += !known;
	}
	for (int i = 0; i < vectors; i++) {
		struct ibv_qp *peer = to[(i + 1) % vectors];
		struct ibv_sge sge = { .addr = (uintptr_t)&words[MOST], .length = 8, .lkey = mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;

		connect_qp(from[i], peer, RIGHTS);
		connect_qp(peer, from[i], RIGHTS);
		name_remote(&wr, &words[i], mr);
		CHECK(ibv_post_send(from[i], &wr, &bad) == 0);
		CHECK(next_status(cqs[i]) == IBV_WC_SUCCESS && words[i] == 42);
	}
	printf("%d vectors, %d shards\n", vectors, shards);
	return 0;
}
