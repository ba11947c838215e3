/*
 * Several clients use atomic operations on a server's memory: they share a counter and compete for a lock.
 *
 *     cc -Wall -o atomic atomic.c -lrdmacm -libverbs
 *     atomic CLIENTS             the server
 *     atomic SERVER NUMBER       a client, with a number that is not 0
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMEOUT_MS = 2000, ROUNDS = 1000 };
static const char PORT[] = "7472";

/* The location of the server's words, in network byte order. It is the private data of the accept message. */
struct place {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

static struct rdma_event_channel *channel;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "event: %s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	return event;
}

static void create_qp(struct rdma_cm_id *id, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	check(cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	check(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
}

static int serve(int clients)
{
	/* A counter and a lock. Each has 8 bytes, at an address that is a multiple of 8. */
	static _Alignas(8) uint64_t words[2];
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(PORT)) };
	struct rdma_cm_id *listener;
	struct ibv_pd *pd = NULL;
	struct ibv_mr *mr = NULL;
	uint64_t expected = (uint64_t)clients * ROUNDS;

	check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	check(!rdma_listen(listener, 8), "rdma_listen");
	while (clients > 0) {
		struct rdma_cm_event *event;
		check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			clients--;
		}
		if (type != RDMA_CM_EVENT_CONNECT_REQUEST)
			continue;
		if (!pd) {
			pd = ibv_alloc_pd(id->verbs);
			check(pd != NULL, "ibv_alloc_pd");
			mr = ibv_reg_mr(pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE |
					IBV_ACCESS_REMOTE_ATOMIC);
			check(mr != NULL, "ibv_reg_mr");
		}
		create_qp(id, pd);
		struct place place = { htobe64((uintptr_t)words), htobe32(mr->rkey) };
		struct rdma_conn_param param = {
			.private_data = &place,
			.private_data_len = sizeof place,
			.responder_resources = 1,
			.rnr_retry_count = 7,
		};
		check(!rdma_accept(id, &param), "rdma_accept");
	}
	printf("counter %" PRIu64 ", lock %" PRIu64 "\n", words[0], words[1]);
	return words[0] == expected ? 0 : 1;
}

/* Does one atomic operation and returns the word's previous value. */
static uint64_t atomic(struct rdma_cm_id *id, struct ibv_send_wr *wr, struct ibv_mr *mr)
{
	volatile uint64_t *before = mr->addr;
	struct ibv_sge sge = { (uintptr_t)before, sizeof *before, mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	errno = ibv_post_send(id->qp, wr, &bad);
	check(errno == 0, "ibv_post_send");
	while (ibv_poll_cq(id->qp->send_cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return *before;
}

static void compete(const char *server, uint64_t number)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *to;
	struct rdma_cm_id *id;
	static uint64_t before;

	check(getaddrinfo(server, PORT, &hints, &to) == 0, server);
	check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_resolve_addr(id, NULL, to->ai_addr, TIMEOUT_MS), "rdma_resolve_addr");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	check(!rdma_resolve_route(id, TIMEOUT_MS), "rdma_resolve_route");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	check(pd != NULL, "ibv_alloc_pd");
	struct ibv_mr *mr = ibv_reg_mr(pd, &before, sizeof before, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	create_qp(id, pd);

	/* Without initiator_depth, the queue pair may send no READ and no atomic. */
	struct rdma_conn_param param = { .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	check(!rdma_connect(id, &param), "rdma_connect");
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_ESTABLISHED);
	struct place place = *(const struct place *)event->param.conn.private_data;
	uint64_t counter = be64toh(place.addr), lock = counter + 8;
	uint32_t rkey = be32toh(place.rkey);
	rdma_ack_cm_event(event);

	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_send_wr add = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
		add.wr.atomic.remote_addr = counter;
		add.wr.atomic.rkey = rkey;
		add.wr.atomic.compare_add = 1;
		atomic(id, &add, mr);
	}
	struct ibv_send_wr swap = { .opcode = IBV_WR_ATOMIC_CMP_AND_SWP };
	swap.wr.atomic.remote_addr = lock;
	swap.wr.atomic.rkey = rkey;
	swap.wr.atomic.compare_add = 0;
	swap.wr.atomic.swap = number;
	uint64_t owner = atomic(id, &swap, mr);
	if (owner == 0)
		printf("client %" PRIu64 " has the lock\n", number);
	else
		printf("client %" PRIu64 " does not get the lock: %" PRIu64 " has it\n", number, owner);

	check(!rdma_disconnect(id), "rdma_disconnect");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED));
	freeaddrinfo(to);
}

int main(int argc, char **argv)
{
	setbuf(stdout, NULL);
	check(argc > 1, "atomic CLIENTS, or atomic SERVER NUMBER");
	channel = rdma_create_event_channel();
	check(channel != NULL, "rdma_create_event_channel");
	if (argc == 2)
		return serve(atoi(argv[1]));
	compete(argv[1], strtoull(argv[2], NULL, 0));
	return 0;
}
