/* Helpers for programs with identifiers of librdmacm: addresses, events, queue pairs. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

#include "check.h"

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static union address at(const char *text, int port)
{
	union address a = { 0 };

	if (inet_pton(AF_INET, text, &a.v4.sin_addr) == 1) {
		a.v4.sin_family = AF_INET;
		a.v4.sin_port = htons(port);
	} else {
		CHECK(inet_pton(AF_INET6, text, &a.v6.sin6_addr) == 1);
		a.v6.sin6_family = AF_INET6;
		a.v6.sin6_port = htons(port);
	}
	return a;
}

static inline struct rdma_cm_event *next(struct rdma_event_channel *channel, int kind)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if ((int)event->event != kind)
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK((int)event->event == kind);
	return event;
}

static inline void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}
