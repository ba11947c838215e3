/*
 * Like tutorials of librdmacm: a client and a server that handle events, each with a thread that sleeps
 * on a completion channel. Both sides send one message and wait for the other's. Then the client
 * disconnects.
 *
 *     events ADDRESS         the server
 *     events -c ADDRESS      the client
 */
#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1024, PATIENCE_MS = 2000 };

/* One end of a connection. */
struct connection {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *in_mr, *out_mr;
	char *in, *out;
	pthread_t thread;
	int completions;
	int client;
};

static const char *const port = "20079";

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void post_receive(struct connection *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->in, .length = SIZE, .lkey = c->in_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uintptr_t)c, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad) != 0)
		die("ibv_post_recv");
}

static void post_send(struct connection *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->out, .length = SIZE, .lkey = c->out_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = (uintptr_t)c, .sg_list = &sge, .num_sge = 1 }, *bad;

	snprintf(c->out, SIZE, "a message of the %s", c->client ? "client" : "server");
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(c->id->qp, &wr, &bad) != 0)
		die("ibv_post_send");
}

static void on_completion(struct connection *c, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "failed: %s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
	if (wc->opcode & IBV_WC_RECV)
		printf("received: %s\n", c->in);
	else
		printf("sent\n");
	fflush(stdout);
	if (++c->completions == 2 && c->client && rdma_disconnect(c->id) != 0)
		die("rdma_disconnect");
}

static void *poll_completions(void *arg)
{
	struct connection *c = arg;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

 /* The thread ends after the second completion. */
	while (c->completions < 2) {
		if (ibv_get_cq_event(c->channel, &cq, &context) != 0)
			die("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0) != 0)
			die("ibv_req_notify_cq");
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			on_completion(context, &wc);
	}
	return NULL;
}

static char *buffer_of(struct connection *c, struct ibv_mr **mr)
{
	char *memory = calloc(1, SIZE);

	*mr = ibv_reg_mr(c->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!*mr)
		die("ibv_reg_mr");
	return memory;
}

static void build(struct rdma_cm_id *id, int client)
{
	struct connection *c = calloc(1, sizeof *c);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };

	id->context = c;
	c->id = id;
	c->client = client;
	c->pd = ibv_alloc_pd(id->verbs);
	c->channel = ibv_create_comp_channel(id->verbs);
	if (!c->pd || !c->channel)
		die("ibv_alloc_pd");
	c->cq = ibv_create_cq(id->verbs, 10, c, c->channel, 0);
	if (!c->cq || ibv_req_notify_cq(c->cq, 0) != 0)
		die("ibv_create_cq");
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	attr.cap.max_send_wr = 10;
	attr.cap.max_recv_wr = 10;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	if (rdma_create_qp(id, c->pd, &attr) != 0)
		die("rdma_create_qp");
	c->in = buffer_of(c, &c->in_mr);
	c->out = buffer_of(c, &c->out_mr);
	post_receive(c);
	if (pthread_create(&c->thread, NULL, poll_completions, c) != 0)
		die("pthread_create");
}

static void take_down(struct rdma_cm_id *id)
{
	struct connection *c = id->context;

	pthread_join(c->thread, NULL);
	rdma_destroy_qp(id);
	if (ibv_dereg_mr(c->in_mr) || ibv_dereg_mr(c->out_mr) || ibv_destroy_cq(c->cq) ||
	    ibv_destroy_comp_channel(c->channel) || ibv_dealloc_pd(c->pd) || rdma_destroy_id(id))
		die("taking down");
	free(c->in);
	free(c->out);
	free(c);
}

/* Handles an event. Returns whether it was the last. */
static int on_event(struct rdma_cm_id *id, enum rdma_cm_event_type event)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

	switch (event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		build(id, 1);
		if (rdma_resolve_route(id, PATIENCE_MS) != 0)
			die("rdma_resolve_route");
		return 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (rdma_connect(id, &param) != 0)
			die("rdma_connect");
		return 0;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		build(id, 0);
		if (rdma_accept(id, &param) != 0)
			die("rdma_accept");
		return 0;
	case RDMA_CM_EVENT_ESTABLISHED:
		post_send(id->context);
		return 0;
	case RDMA_CM_EVENT_DISCONNECTED:
		take_down(id);
		return 1;
	default:
		fprintf(stderr, "unexpected: %s\n", rdma_event_str(event));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int client = argc == 3 && strcmp(argv[1], "-c") == 0;
	struct addrinfo *address;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int last = 0;

	if (argc != 2 && !client)
		return 2;
	if (getaddrinfo(argv[argc - 1], port, NULL, &address) != 0)
		die("getaddrinfo");
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0)
		die("rdma_create_id");
	if (client) {
		if (rdma_resolve_addr(id, NULL, address->ai_addr, PATIENCE_MS) != 0)
			die("rdma_resolve_addr");
	} else if (rdma_bind_addr(id, address->ai_addr) != 0 || rdma_listen(id, 10) != 0) {
		die("rdma_listen");
	}
	freeaddrinfo(address);
	while (!last && rdma_get_cm_event(channel, &event) == 0) {
		struct rdma_cm_event copy = *event;

		rdma_ack_cm_event(event);
		last = on_event(copy.id, copy.event);
	}
	if (!client)
		rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return last ? 0 : 1;
}
