/*
 * Statements of the librdmacm manual pages about calls that tests/c/cm.c does not make: which calls are
 * refused and how, which ones wait, which objects stay unchanged. Both ends are in this process. The
 * argument is its IPv4 address.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "identifiers.h"

enum { PORT = 7472 };

static struct rdma_event_channel *channel;
static const char *own;

static struct rdma_cm_id *create(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	return id;
}

static struct rdma_cm_id *bound(enum rdma_port_space space, int port)
{
	struct rdma_cm_id *id = create(space);
	union address a = at(own, port);

	CHECK(rdma_bind_addr(id, &a.any) == 0 && id->verbs && id->pd);
	return id;
}

/* Returns an identifier whose route to the listener is resolved. */
static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_TCP);
	union address a = at(own, PORT);

	CHECK(rdma_resolve_addr(id, NULL, &a.any, 2000) == 0);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(rdma_resolve_route(id, 2000) == 0);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	return id;
}

/* rdma_bind_addr, rdma_resolve_addr, rdma_join_multicast: invalid addresses */
static void addresses(void)
{
	struct sockaddr none = { .sa_family = AF_UNIX };
	struct rdma_cm_id *id = create(RDMA_PS_UDP);
	union address a = at(own, 0);

	CHECK(rdma_bind_addr(id, &none) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, &none, 100) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, NULL, 100) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, &none, &a.any, 100) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(id, &a.any) == 0);
	CHECK(rdma_join_multicast(id, &none, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_leave_multicast(id, &none) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
}

/* rdma_connect, rdma_accept: more resources than the device has, and no parameters */
static void parameters(void)
{
	struct rdma_conn_param param = { .responder_resources = 200, .initiator_depth = 1 };
	struct rdma_cm_id *listens = bound(RDMA_PS_TCP, PORT), *id, *peer;
	struct rdma_cm_event *event;
	struct ibv_device_attr attr;

	CHECK(rdma_listen(listens, 1) == 0);
	id = resolved();
	CHECK(ibv_query_device(id->verbs, &attr) == 0 && attr.max_qp_rd_atom < 200);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	make_qp(id);
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	param = (struct rdma_conn_param){ .responder_resources = 1, .initiator_depth = 200 };
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	param.responder_resources = RDMA_MAX_RESP_RES;
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	CHECK(rdma_connect(id, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = event->id;
	CHECK(event->param.conn.responder_resources == attr.max_qp_init_rd_atom);
	rdma_ack_cm_event(event);
	make_qp(peer);
	param.initiator_depth = 200;
	CHECK(rdma_accept(peer, &param) == -1 && errno == EINVAL);
	CHECK(rdma_reject(peer, NULL, 0) == 0);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_REJECTED));
	rdma_destroy_qp(id);
	rdma_destroy_qp(peer);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(peer) == 0);
	CHECK(rdma_destroy_id(listens) == 0);
}

/* rdma_listen: an identifier without an address listens on all IPv4 addresses. */
static void listens_anywhere(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_TCP);

	CHECK(rdma_listen(id, 0) == 0);
	CHECK(rdma_get_local_addr(id)->sa_family == AF_INET && rdma_get_src_port(id) != 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Sets an option to 1. Returns the errno. */
static int set(struct rdma_cm_id *id, int option, size_t size)
{
	uint64_t value = 1;

	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, size) ? errno : 0;
}

/* rdma_set_option: sizes, and when an address may be made reusable */
static void options(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_TCP), *other = create(RDMA_PS_TCP);
	union address a = at(own, PORT);

	CHECK(set(id, RDMA_OPTION_ID_TOS, 4) == EINVAL && set(id, RDMA_OPTION_ID_TOS, 1) == 0);
	CHECK(set(id, RDMA_OPTION_ID_ACK_TIMEOUT, 4) == EINVAL);
	CHECK(set(id, RDMA_OPTION_ID_AFONLY, 8) == EINVAL);
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, 1) == EINVAL);
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, 8) == EINVAL);
	CHECK(set(id, 77, 4) == ENOSYS);
	CHECK(rdma_bind_addr(id, &a.any) == 0);
	CHECK(set(other, RDMA_OPTION_ID_REUSEADDR, 4) == 0);
	CHECK(rdma_bind_addr(other, &a.any) == -1 && errno == EADDRINUSE);
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, 4) == 0);
	CHECK(rdma_bind_addr(other, &a.any) == 0);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(other) == 0);
}

static void *migrates(void *id)
{
	static struct rdma_event_channel *to;

	CHECK((to = rdma_create_event_channel()));
	CHECK(rdma_migrate_id(id, to) == 0);
	return to;
}

/* rdma_migrate_id: waits for acknowledgements; a synchronous identifier stays synchronous. */
static void migrations(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_TCP), *synchronous;
	struct rdma_event_channel *first = channel;
	union address a = at(own, PORT);
	struct rdma_cm_event *event;
	pthread_t thread;
	void *other;

	CHECK(rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_migrate_id(synchronous, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(synchronous, NULL, &a.any, 2000) == 0 && synchronous->event);
	CHECK(rdma_migrate_id(synchronous, channel) == 0 && !synchronous->event);
	CHECK(rdma_resolve_route(synchronous, 2000) == 0);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(rdma_migrate_id(synchronous, NULL) == 0 && synchronous->channel != channel);
	CHECK(rdma_destroy_id(synchronous) == 0);

	CHECK(rdma_resolve_addr(id, NULL, &a.any, 2000) == 0);
	event = next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(pthread_create(&thread, NULL, migrates, id) == 0);
	usleep(300000);
	CHECK(pthread_tryjoin_np(thread, &other) == EBUSY);
	rdma_ack_cm_event(event);
	CHECK(pthread_join(thread, &other) == 0 && id->channel == other && other != first);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	rdma_ack_cm_event(next(other, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(other);
}

/* rdma_join_multicast(_ex): the mask; each join has its own context. */
static void groups(void)
{
	union address group = at("239.47.91.5", 0);
	struct rdma_cm_join_mc_attr_ex attr = { .addr = &group.any,
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS | 4 };
	struct rdma_cm_id *id = bound(RDMA_PS_UDP, 0);
	const struct ibv_qp_init_attr wanted = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	struct ibv_qp_init_attr qp = wanted;
	struct rdma_cm_event *event;
	int first, second;

	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == ENOTSUP);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = 2;
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_create_qp(id, NULL, &qp) == 0);
	CHECK(rdma_join_multicast(id, &group.any, &first) == 0);
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &first);
	rdma_ack_cm_event(event);
	CHECK(rdma_join_multicast(id, &group.any, &second) == 0);
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &second);
	rdma_ack_cm_event(event);
	CHECK(rdma_leave_multicast(id, &group.any) == 0);
	CHECK(rdma_leave_multicast(id, &group.any) == 0);
	CHECK(rdma_leave_multicast(id, &group.any) == -1 && errno == EADDRNOTAVAIL);
	/* A queue pair that is destroyed while it is in a group leaves no group membership behind. */
	CHECK(rdma_join_multicast(id, &group.any, NULL) == 0);
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_MULTICAST_JOIN));
	rdma_destroy_qp(id);
	qp = wanted;
	CHECK(!id->qp && rdma_create_qp(id, NULL, &qp) == 0);
	CHECK(rdma_leave_multicast(id, &group.any) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* rdma_disconnect: any queue pair goes into the error state. */
static void disconnected(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_UDP);
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD }, init;
	union address a = at(own, 0);
	struct ibv_qp_attr state;

	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(id, &a.any) == 0 && rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(ibv_query_qp(id->qp, &state, IBV_QP_STATE, &init) == 0);
	CHECK(state.qp_state == IBV_QPS_RTS);
	rdma_disconnect(id);
	CHECK(ibv_query_qp(id->qp, &state, IBV_QP_STATE, &init) == 0);
	CHECK(state.qp_state == IBV_QPS_ERR);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* rdma_get_remote_ece: only for queue pairs that the program itself created */
static void extensions(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP, 0);
	struct ibv_ece ece = { .vendor_id = 1 };

	CHECK(rdma_get_remote_ece(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_get_remote_ece(id, &ece) == 0 && ece.vendor_id == 0);
	make_qp(id);
	CHECK(rdma_get_remote_ece(id, &ece) == -1 && errno == EINVAL);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* rdma_notify: with events that it does not accept, or without a connection */
static void notices(void)
{
	struct rdma_cm_id *id = create(RDMA_PS_TCP);

	CHECK(rdma_notify(id, IBV_EVENT_COMM_EST) == -1 && errno == EINVAL);
	CHECK(rdma_notify(id, IBV_EVENT_CQ_ERR) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
}

/* rdma_create_srq: in the program's protection domain; the identifier keeps its own. */
static void shared_queues(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP, 0);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_pd *before = id->pd, *mine = ibv_alloc_pd(id->verbs);

	CHECK(mine && rdma_create_srq(id, mine, &attr) == 0 && id->srq->pd == mine);
	CHECK(id->pd == before);
	rdma_destroy_srq(id);
	CHECK(!id->srq && ibv_dealloc_pd(mine) == 0 && rdma_destroy_id(id) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count > 1);
	own = arguments[1];
	CHECK((channel = rdma_create_event_channel()));
	addresses();
	parameters();
	listens_anywhere();
	options();
	migrations();
	groups();
	disconnected();
	extensions();
	notices();
	shared_queues();
	rdma_destroy_event_channel(channel);
	puts("all as the pages say");
	return 0;
}
