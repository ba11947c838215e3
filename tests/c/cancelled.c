/*
 * Cancels threads in verbs while another connection of the device has traffic: cancelled DEVICE ROUNDS.
 * A thread that sleeps in ibv_get_cq_event, ibv_get_async_event or rdma_get_cm_event ends, and its channel or
 * context can still be used and destroyed. A thread in any other verb continues.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#include "connection.h"

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm;
static struct ibv_pd *pd;
static struct ibv_cq *busy, *polled;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[8192];

static void *get_cq_event(void *unused)
{
	struct ibv_cq *found;
	void *its_context;

	ibv_get_cq_event(channel, &found, &its_context);
	return unused;
}

static void *get_async_event(void *unused)
{
	struct ibv_async_event event;

	/* Drains events: a new interface may still get addresses. */
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
	return unused;
}

static void *get_cm_event(void *unused)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(cm, &event);
	return unused;
}

static void write_once(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };

	name_remote(&wr, memory + 4096, mr);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && next_status(busy) == IBV_WC_SUCCESS);
}

static atomic_int stop;

static void *traffic(void *unused)
{
	while (!stop)
		write_once();
	return unused;
}

/* This thread was already cancelled, so it would end in the first of these calls that is a cancellation point. */
static void *uses_verbs(void *unused)
{
	struct ibv_wc wc;
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct rdma_cm_id *id;

	CHECK(pthread_cancel(pthread_self()) == 0);
	for (int i = 0; i < 20000; i++)
		CHECK(ibv_poll_cq(polled, 1, &wc) == 0);
	for (int i = 0; i < 20; i++) {
		struct ibv_comp_channel *own = ibv_create_comp_channel(context);
		struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, own, 0);
		struct ibv_pd *domain = ibv_alloc_pd(context);
		struct ibv_mr *region = ibv_reg_mr(domain, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
							  .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_qp *made = ibv_create_qp(domain, &init);

		CHECK(made && region && ibv_req_notify_cq(cq, 0) == 0);
		connect_qp(made, made, 0);
		CHECK(ibv_query_port(context, 1, &port) == 0 && ibv_query_device(context, &device) == 0);
		CHECK(ibv_destroy_qp(made) == 0 && ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(domain) == 0);
		CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(own) == 0);
		CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0 && rdma_destroy_id(id) == 0);
		struct ibv_context *another = ibv_open_device(context->device);
		CHECK(another && (domain = ibv_alloc_pd(another)));
		CHECK(ibv_dealloc_pd(domain) == 0 && ibv_close_device(another) == 0);
	}
	stop = 1;
	pthread_testcancel();
	return unused;
}

int main(int count, char **arguments)
{
	void *(*const sleeps[])(void *) = { get_cq_event, get_async_event, get_cm_event };
	pthread_t thread, other;
	void *result;
	int rounds;

	CHECK(count > 2 && (rounds = atoi(arguments[2])) > 0);
	context = open_device(arguments[1]);
	CHECK((pd = ibv_alloc_pd(context)) && (busy = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((polled = ibv_create_cq(context, 4, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = { .send_cq = busy, .recv_cq = busy, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *peer;
	CHECK((qp = ibv_create_qp(pd, &init)) && (peer = ibv_create_qp(pd, &init)));
	connect_qp(qp, peer, IBV_ACCESS_REMOTE_WRITE);
	connect_qp(peer, qp, IBV_ACCESS_REMOTE_WRITE);

	for (int i = 0; i < rounds; i++) {
		struct ibv_cq *cq;

		CHECK((channel = ibv_create_comp_channel(context)) && (cm = rdma_create_event_channel()));
		CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)) && ibv_req_notify_cq(cq, 0) == 0);
		CHECK(pthread_create(&thread, NULL, sleeps[i % 3], NULL) == 0);
		if (i % 2)
			usleep(500);
		CHECK(pthread_cancel(thread) == 0);
		write_once();
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
		CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
		rdma_destroy_event_channel(cm);
	}

	CHECK(pthread_create(&other, NULL, traffic, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, uses_verbs, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(stop == 1 && result == PTHREAD_CANCELED);
	CHECK(pthread_join(other, NULL) == 0);
	puts("cancelled only where a read would be");
	return 0;
}
