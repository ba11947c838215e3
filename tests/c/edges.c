/*
 * Sleeps in an edge-triggered epoll on several completion channels, one of which does not block. Each event must
 * wake it. Usage: edges DEVICE COUNT
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>

#include "connection.h"

enum { CHANNELS = 3 };

static struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp, *peer;
} ends[CHANNELS];

static char memory[8192];

int main(int count, char **arguments)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int epoll, wanted;

	CHECK(count > 2 && (wanted = atoi(arguments[2])) > 0);
	context = open_device(arguments[1]);
	CHECK((pd = ibv_alloc_pd(context)) && (epoll = epoll_create1(0)) >= 0);
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	for (int i = 0; i < CHANNELS; i++) {
		struct end *own = &ends[i];
		struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u32 = i };

		CHECK((own->channel = ibv_create_comp_channel(context)));
		CHECK((own->cq = ibv_create_cq(context, 16, NULL, own->channel, 0)));
		struct ibv_qp_init_attr init = { .send_cq = own->cq, .recv_cq = own->cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
							  .max_send_sge = 1, .max_recv_sge = 1 } };
		CHECK((own->qp = ibv_create_qp(pd, &init)) && (own->peer = ibv_create_qp(pd, &init)));
		connect_qp(own->qp, own->peer, IBV_ACCESS_REMOTE_WRITE);
		connect_qp(own->peer, own->qp, IBV_ACCESS_REMOTE_WRITE);
		CHECK(i || fcntl(own->channel->fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, own->channel->fd, &event) == 0);
	}
	for (int n = 0; n < wanted; n++) {
		struct end *own = &ends[n % CHANNELS];
		struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
		struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED };
		struct epoll_event event;
		struct ibv_cq *cq;
		void *its_context;

		name_remote(&wr, memory + 4096, mr);
		CHECK(ibv_req_notify_cq(own->cq, 0) == 0 && ibv_post_send(own->qp, &wr, &bad) == 0);
		CHECK(epoll_wait(epoll, &event, 1, 30000) == 1 && event.data.u32 == (uint32_t)(n % CHANNELS));
		CHECK(ibv_get_cq_event(own->channel, &cq, &its_context) == 0 && cq == own->cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(next_status(cq) == IBV_WC_SUCCESS);
		/* Without an event, the channel is not readable and there is no edge. */
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
		CHECK(n % CHANNELS || (ibv_get_cq_event(own->channel, &cq, &its_context) && errno == EAGAIN));
	}
	puts("each event was told");
	return 0;
}
