/*
 * Many simultaneous connections. The arguments choose the role:
 *
 * hear ADDRESS THREADS   a server whose threads wait on one channel for requests and their ends
 * give-up ADDRESS COUNT  its client, which abandons each request immediately, except the last
 * backlog ADDRESS COUNT  COUNT clients connect to a listener with backlog 1, whose program is busy at first
 */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "identifiers.h"

enum { PORT = 7473 };

static struct rdma_event_channel *create_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	CHECK(channel);
	return channel;
}

static struct rdma_event_channel *listen_on(const char *own, int backlog)
{
	struct rdma_event_channel *channel = create_channel();
	union address a = at(own, PORT);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, &a.any) == 0);
	CHECK(rdma_listen(id, backlog) == 0);
	return channel;
}

static void start(void *(*function)(void *), void *channel)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, function, channel) == 0);
}

static atomic_int requests, ends, last;

static void *hears(void *channel)
{
	struct rdma_cm_event *event;

	while (rdma_get_cm_event(channel, &event) == 0) {
		const char *data = event->param.conn.private_data;

		if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
			ends++;
		else if (data[0])
			last = 1;
		else
			requests++;
		rdma_ack_cm_event(event);
	}
	return NULL;
}

static void hear(const char *own, int threads)
{
	struct rdma_event_channel *channel = listen_on(own, 0);

	for (int i = 0; i < threads; i++)
		start(hears, channel);
	while (!last)
		usleep(1000);
	/* Events that other processes have received may still be in flight. */
	for (int i = 0; i < 30000 && ends != requests; i++)
		usleep(1000);
	printf("%d requests, %d ends\n", requests, ends);
	CHECK(requests > 0 && ends == requests);
}

static void resolve(struct rdma_event_channel *channel, const char *peer)
{
	union address a = at(peer, PORT);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, &a.any, 2000) == 0);
}

/* Handles the next event of a client, and returns its kind. */
static int go_on(struct rdma_event_channel *channel, struct rdma_conn_param *param,
		 struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	int kind;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	kind = event->event;
	*id = event->id;
	if (event->status)
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->status == 0);
	rdma_ack_cm_event(event);
	if (kind == RDMA_CM_EVENT_ADDR_RESOLVED)
		CHECK(rdma_resolve_route(*id, 2000) == 0);
	if (kind == RDMA_CM_EVENT_ROUTE_RESOLVED) {
		/* Each connection needs another QPN: an equal one would mean that the same connection starts anew. */
		param->qp_num++;
		CHECK(rdma_connect(*id, param) == 0);
	}
	if (kind == RDMA_CM_EVENT_CONNECT_RESPONSE)
		CHECK(rdma_establish(*id) == 0);
	return kind;
}

static void give_up(const char *peer, int count)
{
	struct rdma_event_channel *channel = create_channel();

	for (int i = 0; i <= count; i++) {
		struct rdma_conn_param param = { .qp_num = 0x1000, .private_data_len = 1,
						 .private_data = i == count ? "l" : "" };
		struct rdma_cm_id *id;

		resolve(channel, peer);
		while (go_on(channel, &param, &id) != RDMA_CM_EVENT_ROUTE_RESOLVED)
			;
		if (i < count)
			CHECK(rdma_destroy_id(id) == 0);
		usleep(1000);
	}
	/* The last request stays pending: the server receives it and does not answer. */
	pause();
}

static void *accepts(void *channel)
{
	struct rdma_conn_param param = { .qp_num = 0x1001 };
	struct rdma_cm_event *event;

	usleep(300000);
	while (rdma_get_cm_event(channel, &event) == 0) {
		struct rdma_cm_id *id = event->id;
		int kind = event->event;

		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST)
			CHECK(rdma_accept(id, &param) == 0);
	}
	return NULL;
}

static void backlog(const char *own, int count)
{
	struct rdma_event_channel *channel = create_channel();
	struct rdma_conn_param param = { .qp_num = 0x1000 };
	struct rdma_cm_id *id;
	int left = count;

	start(accepts, listen_on(own, 1));
	for (int i = 0; i < count; i++)
		resolve(channel, own);
	while (left)
		left -= go_on(channel, &param, &id) == RDMA_CM_EVENT_CONNECT_RESPONSE;
	printf("%d established\n", count);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	if (!strcmp(argv[1], "hear"))
		hear(argv[2], atoi(argv[3]));
	else if (!strcmp(argv[1], "give-up"))
		give_up(argv[2], atoi(argv[3]));
	else
		backlog(argv[2], atoi(argv[3]));
	return 0;
}
