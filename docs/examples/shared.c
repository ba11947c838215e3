/*
 * A server whose connections share one receive queue (SRQ). Its client is connect.c.
 *
 *     cc -Wall -o shared shared.c -lrdmacm -libverbs
 *     shared CLIENTS     serves this many clients, and exits
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

enum { PORT = 7471, SIZE = 1024, RECEIVES = 4, LOW = 2 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static char buffers[RECEIVES][SIZE];
/* The buffers that wait to be posted again. */
static int empty[RECEIVES], empties;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* The wr_id names the buffer, because connections use the receives in any order. */
static void post(int i)
{
	struct ibv_sge sge = { (uintptr_t)buffers[i], SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!(errno = ibv_post_srq_recv(srq, &wr, &bad)), "ibv_post_srq_recv");
}

/* Asks for one event when fewer than LOW receives are left. */
static void arm(void)
{
	struct ibv_srq_attr attr = { .srq_limit = LOW };

	check(!(errno = ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT)), "ibv_modify_srq");
}

/* The device is known only when the first client connects. */
static void create_objects(void)
{
	pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, buffers, sizeof buffers, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	completions = ibv_create_comp_channel(context);
	check(completions != NULL, "ibv_create_comp_channel");
	cq = ibv_create_cq(context, 16, NULL, completions, 0);
	check(cq != NULL && !ibv_req_notify_cq(cq, 0), "ibv_create_cq");

	struct ibv_srq_init_attr init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	srq = ibv_create_srq(pd, &init);
	check(srq != NULL, "ibv_create_srq");
	for (int i = 0; i < RECEIVES; i++)
		post(i);
	arm();
}

static void accept_client(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };

	if (!context) {
		context = id->verbs;
		create_objects();
	}
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};
	check(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
	check(!rdma_accept(id, &param), "rdma_accept");
}

/* Returns how many connections have ended. */
static int handle_connection(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	struct rdma_cm_id *id = event->id;
	enum rdma_cm_event_type type = event->event;
	rdma_ack_cm_event(event);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
		accept_client(id);
	if (type != RDMA_CM_EVENT_DISCONNECTED)
		return 0;
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	return 1;
}

static void handle_messages(void)
{
	struct ibv_cq *which;
	struct ibv_wc wc;
	void *unused;

	check(!ibv_get_cq_event(completions, &which, &unused), "ibv_get_cq_event");
	ibv_ack_cq_events(which, 1);
	check(!(errno = ibv_req_notify_cq(cq, 0)), "ibv_req_notify_cq");
	while (ibv_poll_cq(cq, 1, &wc) > 0) {
		if (wc.status != IBV_WC_SUCCESS)
			continue;
		printf("receive %d: %.*s\n", (int)wc.wr_id, (int)wc.byte_len, buffers[wc.wr_id]);
		empty[empties++] = wc.wr_id;
	}
}

/* Few receives are left: posts the free buffers again. */
static void refill(void)
{
	struct ibv_async_event event;

	check(!ibv_get_async_event(context, &event), "ibv_get_async_event");
	printf("event: %s\n", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED)
		return;
	while (empties > 0)
		post(empty[--empties]);
	arm();
}

int main(int argc, char **argv)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	int clients = argc > 1 ? atoi(argv[1]) : 1;

	setbuf(stdout, NULL);
	check(channel != NULL, "rdma_create_event_channel");
	check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	check(!rdma_listen(listener, 8), "rdma_listen");

	/* poll ignores the descriptors that are -1. */
	while (clients > 0) {
		struct pollfd fds[] = {
			{ .fd = context ? completions->fd : -1, .events = POLLIN },
			{ .fd = context ? context->async_fd : -1, .events = POLLIN },
			{ .fd = channel->fd, .events = POLLIN },
		};
		check(poll(fds, 3, -1) > 0, "poll");
		if (fds[0].revents)
			handle_messages();
		if (fds[1].revents)
			refill();
		/* A client's message comes before the end of its connection. */
		if (fds[2].revents)
			clients -= handle_connection(channel);
	}
	return 0;
}
