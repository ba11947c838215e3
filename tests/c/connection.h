/*
 * Helpers to connect two contexts of one process: the device, its IPv4 address as a GID, and the
 * transitions to RTS.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

static int gid_index = -1;
static union ibv_gid gid;

static struct ibv_context *open_device(const char *name)
{
	struct ibv_context *context = open_named(name);

	for (int i = 0; gid_index < 0 && ibv_query_gid(context, 1, i, &gid) == 0; i++)
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.raw[0] == 0)
			gid_index = i;
	CHECK(gid_index >= 0);
	return context;
}

/* Brings a queue pair to RTS. Its peer may access memory with these rights. */
static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer, int rights)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				     .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1,
				     .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = gid, .sgid_index = gid_index,
							   .hop_limit = 64 } } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Sets the remote memory of a request that is not a SEND. A FETCH AND ADD adds 1. */
static void name_remote(struct ibv_send_wr *wr, void *at, struct ibv_mr *mr)
{
	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = (uintptr_t)at;
		wr->wr.atomic.rkey = mr->rkey;
		wr->wr.atomic.compare_add = 1;
	} else {
		wr->wr.rdma.remote_addr = (uintptr_t)at;
		wr->wr.rdma.rkey = mr->rkey;
	}
}

static enum ibv_wc_status next_status(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(1000);
	CHECK(n == 1);
	return wc.status;
}
