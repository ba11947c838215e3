/*
 * A program for runs with injected verbs faults: two queue pairs of one device send to each other. It
 * prints how its calls, its requests and its queue pair ended. The first arguments are the device and the
 * GID index; the third is the number of asynchronous events to wait for.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

enum { MESSAGES = 5 };

static void connect(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid *gid, int index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			.grh = { .dgid = *gid, .sgid_index = index, .hop_limit = 1 } } };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int argc, char **argv)
{
	static char memory[4096];

	CHECK(argc > 3);
	struct ibv_context *context = open_named(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);

	struct ibv_mr *mr = NULL;
	for (int i = 1; i <= 3; i++) {
		errno = 0;
		struct ibv_mr *made = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		printf("region %d: %s\n", i, made ? "ok" : strerror(errno));
		mr = made ? made : mr;
	}
	CHECK(mr);

	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4 * MESSAGES, NULL, channel, 0);
	CHECK(channel && cq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1,
			.max_recv_sge = 1 } };
	struct ibv_qp *qp[2] = { ibv_create_qp(pd, &init), ibv_create_qp(pd, &init) };
	union ibv_gid gid;
	int index = atoi(argv[2]);
	CHECK(qp[0] && qp[1] && !ibv_query_gid(context, 1, index, &gid));
	connect(qp[0], qp[1], &gid, index);
	connect(qp[1], qp[0], &gid, index);

	struct ibv_sge sge = { .addr = (unsigned long)memory, .length = 2000, .lkey = mr->lkey };
	for (int i = 1; i <= MESSAGES; i++) {
		struct ibv_recv_wr recv = { .wr_id = 100 + i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(!ibv_post_recv(qp[1], &recv, &bad));
	}
	for (int i = 1; i <= MESSAGES; i++) {
		struct ibv_send_wr send = { .wr_id = i, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		int result = ibv_post_send(qp[0], &send, &bad);
		if (result) {
			CHECK(bad == &send);
			printf("post %d: %s\n", i, strerror(result));
			CHECK(!ibv_post_send(qp[0], &send, &bad));
		}
	}
	for (int sent = 0; sent < MESSAGES;) {
		struct ibv_wc wc;
		CHECK(!ibv_req_notify_cq(cq, 0));
		int got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0) {
			printf("poll: %s\n", strerror(errno));
		} else if (!got) {
			void *own;
			CHECK(!ibv_get_cq_event(channel, &cq, &own));
			ibv_ack_cq_events(cq, 1);
		} else if (wc.wr_id <= MESSAGES) {
			printf("send %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
			sent++;
		}
	}
	struct ibv_qp_attr attr;
	CHECK(!ibv_query_qp(qp[0], &attr, IBV_QP_STATE, &init));
	printf("state: %s\n", attr.qp_state == IBV_QPS_ERR ? "ERR" : "not ERR");

	for (int i = atoi(argv[3]); i > 0; i--) {
		struct ibv_async_event event;
		CHECK(!ibv_get_async_event(context, &event));
		printf("event: %s, port %d\n", ibv_event_type_str(event.event_type),
		       event.element.port_num);
		ibv_ack_async_event(&event);
	}

	int destroyed = ibv_destroy_qp(qp[0]);
	if (destroyed) {
		printf("destroy: %s\n", strerror(destroyed));
		CHECK(!ibv_destroy_qp(qp[0]));
	}
	return 0;
}
