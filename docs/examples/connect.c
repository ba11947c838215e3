/*
 * Two programs connect by address and port, with the connection manager (librdmacm), and send a message.
 *
 *     cc -Wall -o connect connect.c -lrdmacm -libverbs
 *     connect                 the server waits for a client
 *     connect SERVER [TEXT]   the client connects and sends the text
 */
#include <errno.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1024, TIMEOUT_MS = 2000 };
static const char PORT[] = "7471";

/* One end of a connection. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[SIZE];
};

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* Waits for the next event, which must be of this type. */
static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	printf("event: %s, status %d\n", rdma_event_str(event->event), event->status);
	if (event->event != type)
		exit(1);
	return event;
}

/* The identifier knows its device now. Its queue pair is created in INIT. */
static void create_objects(struct end *end)
{
	struct ibv_pd *pd = ibv_alloc_pd(end->id->verbs);
	check(pd != NULL, "ibv_alloc_pd");
	end->mr = ibv_reg_mr(pd, end->buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);
	check(end->mr != NULL, "ibv_reg_mr");
	end->cq = ibv_create_cq(end->id->verbs, 4, NULL, NULL, 0);
	check(end->cq != NULL, "ibv_create_cq");

	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	check(!rdma_create_qp(end->id, pd, &init), "rdma_create_qp");
	printf("device %s\n", ibv_get_device_name(end->id->verbs->device));
}

/* Polls until a request has completed. Returns the length of a message received. */
static size_t wait_for(struct end *end, const char *what)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(end->cq, 1, &wc) == 0)
		;
	printf("%s: %s\n", what, ibv_wc_status_str(wc.status));
	if (wc.status != IBV_WC_SUCCESS)
		exit(1);
	return wc.byte_len;
}

static void serve(struct rdma_event_channel *channel)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(PORT)) };
	struct rdma_cm_id *listener;
	struct end end = { 0 };

	check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	check(!rdma_listen(listener, 1), "rdma_listen");

	/* Each request comes with an identifier of its own. */
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	end.id = event->id;
	rdma_ack_cm_event(event);
	create_objects(&end);

	/* The client may send as soon as it is accepted, so the receive is posted first. */
	struct ibv_sge sge = { (uintptr_t)end.buffer, SIZE, end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	check(!(errno = ibv_post_recv(end.id->qp, &wr, &bad)), "ibv_post_recv");
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	check(!rdma_accept(end.id, &param), "rdma_accept");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));

	size_t length = wait_for(&end, "receive");
	printf("message: %.*s\n", (int)length, end.buffer);
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
	rdma_disconnect(end.id);
	rdma_destroy_qp(end.id);
	rdma_destroy_id(end.id);
	rdma_destroy_id(listener);
}

static void send_to(struct rdma_event_channel *channel, const char *server, const char *text)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *to;
	struct end end = { 0 };

	check(getaddrinfo(server, PORT, &hints, &to) == 0, server);
	check(!rdma_create_id(channel, &end.id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_resolve_addr(end.id, NULL, to->ai_addr, TIMEOUT_MS), "rdma_resolve_addr");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	create_objects(&end);
	check(!rdma_resolve_route(end.id, TIMEOUT_MS), "rdma_resolve_route");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	check(!rdma_connect(end.id, &param), "rdma_connect");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));

	size_t length = strnlen(text, SIZE);
	memcpy(end.buffer, text, length);
	struct ibv_sge sge = { (uintptr_t)end.buffer, length, end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND }, *bad;
	check(!(errno = ibv_post_send(end.id->qp, &wr, &bad)), "ibv_post_send");
	wait_for(&end, "SEND");

	check(!rdma_disconnect(end.id), "rdma_disconnect");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
	rdma_destroy_qp(end.id);
	rdma_destroy_id(end.id);
	freeaddrinfo(to);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	setbuf(stdout, NULL);
	check(channel != NULL, "rdma_create_event_channel");
	if (argc == 1)
		serve(channel);
	else
		send_to(channel, argv[1], argc > 2 ? argv[2] : "hello");
	rdma_destroy_event_channel(channel);
	return 0;
}
