/*
 * Calls of librdmacm that its own programs do not make: listeners of both address families on one port,
 * calls of newer versions, forks. Both ends are in this process. The arguments are its IPv4 address and
 * its IPv6 address.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "identifiers.h"

enum { PORT = 7471 };

static struct rdma_event_channel *client_side, *server_side;
static const char *own_v4, *own_v6;

static struct rdma_cm_id *listener(const char *where, int only)
{
	union address a = at(where, PORT);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(server_side, &id, NULL, RDMA_PS_TCP) == 0);
	if (only)
		CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only,
				      sizeof only) == 0);
	if (rdma_bind_addr(id, &a.any)) {
		rdma_destroy_id(id);
		return NULL;
	}
	CHECK(rdma_listen(id, 0) == 0);
	return id;
}

/* Returns an identifier that has sent a connection request. */
static struct rdma_cm_id *asks(const char *whom)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
		.retry_count = 7, .rnr_retry_count = 7 };
	union address a = at(whom, PORT);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(client_side, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, &a.any, 2000) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(rdma_resolve_route(id, 2000) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_qp(id);
	CHECK(rdma_connect(id, &param) == 0);
	return id;
}

/* Returns the listener that gets a request to this address. */
static struct rdma_cm_id *who_hears(const char *whom)
{
	struct rdma_cm_id *id = asks(whom), *heard;
	struct rdma_cm_event *event = next(server_side, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *request = event->id;

	heard = event->listen_id;
	CHECK(rdma_reject(request, NULL, 0) == 0);
	rdma_ack_cm_event(event);
	CHECK(rdma_destroy_id(request) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_REJECTED));
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	return heard;
}

static void families(void)
{
	struct rdma_cm_id *four = listener("0.0.0.0", 0), *six, *both;

	CHECK(four);
	CHECK(!listener("::", 0) && errno == EADDRNOTAVAIL);
	CHECK((six = listener("::", 1)));
	CHECK(who_hears(own_v4) == four && who_hears(own_v6) == six);
	CHECK(rdma_destroy_id(four) == 0 && rdma_destroy_id(six) == 0);
	CHECK((both = listener("::", 0)));
	CHECK(!listener("0.0.0.0", 0) && errno == EADDRNOTAVAIL);
	CHECK(who_hears(own_v4) == both && who_hears(own_v6) == both);
	CHECK(rdma_destroy_id(both) == 0);
}

/* Looked up by name, because the installed header may be older. */
#define YOUNGER(result, name, ...)                                                                 \
	result (*name)(__VA_ARGS__) = dlsym(RTLD_DEFAULT, #name);                                  \
	CHECK(name)

static void younger_calls(void)
{
	enum { ADDRINFO_RESOLVED = 16, USER = 18, ADDR = 2, DMAH = 16, SA = 0x10 };
	YOUNGER(int, rdma_write_cm_event, struct rdma_cm_id *, int, int, uint64_t);
	YOUNGER(int, rdma_resolve_addrinfo, struct rdma_cm_id *, const char *, const char *,
		const struct rdma_addrinfo *);
	YOUNGER(int, rdma_query_addrinfo, struct rdma_cm_id *, struct rdma_addrinfo **);
	YOUNGER(void *, ibv_alloc_buf, struct ibv_pd *, size_t, void **);
	YOUNGER(void, ibv_free_buf, void *);
	YOUNGER(int, ibv_export_buf_dmabuf_fd, void *);
	YOUNGER(struct ibv_mr *, ibv_reg_buf_mr, struct ibv_pd *, void *, void *, size_t, int);
	YOUNGER(struct ibv_mr *, ibv_reg_mr_ex, struct ibv_pd *, void *);
	YOUNGER(void *, ibv_alloc_dmah, struct ibv_context *, void *);
	YOUNGER(int, ibv_query_port_speed, struct ibv_context *, uint32_t, uint64_t *);
	struct {
		size_t length;
		int access;
		uint64_t comp_mask, iova;
		void *addr;
		int fd;
		uint64_t fd_offset;
		void *dmah, *buf;
	} attr = { .length = 64, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = ADDR };
	struct rdma_addrinfo hints = { .ai_flags = SA }, *info;
	union address a = at(own_v4, 0);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint64_t arg;
	void *buf;
	char *memory;

	CHECK(rdma_create_id(client_side, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 1) == -1 && errno == EINVAL);
	CHECK(rdma_write_cm_event(id, USER, -3, 0x123456789abcdef0) == 0);
	event = next(client_side, USER);
	memcpy(&arg, &event->param, sizeof arg);
	CHECK(event->id == id && event->status == -3 && arg == 0x123456789abcdef0);
	CHECK(strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER") == 0);
	rdma_ack_cm_event(event);

	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);
	CHECK(rdma_resolve_addrinfo(id, NULL, "7", &hints) == -1 && errno == EOPNOTSUPP);
	CHECK(rdma_resolve_addrinfo(id, own_v6, "7471", NULL) == 0);
	CHECK(rdma_resolve_addrinfo(id, own_v6, "7471", NULL) == -1 && errno == EBUSY);
	rdma_ack_cm_event(next(client_side, ADDRINFO_RESOLVED));
	CHECK(rdma_query_addrinfo(id, &info) == 0);
	CHECK(((struct sockaddr_in6 *)info->ai_dst_addr)->sin6_port == htons(PORT));
	rdma_freeaddrinfo(info);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);

	CHECK(rdma_bind_addr(id, &a.any) == 0 && id->pd);
	CHECK((memory = ibv_alloc_buf(id->pd, 100, &buf)));
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	CHECK(!ibv_reg_buf_mr(id->pd, buf, memory + 50, 51, 0) && errno == EINVAL);
	CHECK((mr = ibv_reg_buf_mr(id->pd, buf, memory + 50, 50, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(mr->addr == memory + 50 && mr->length == 50 && ibv_dereg_mr(mr) == 0);
	attr.addr = memory;
	CHECK((mr = ibv_reg_mr_ex(id->pd, &attr)) && mr->length == 64 && ibv_dereg_mr(mr) == 0);
	attr.comp_mask = ADDR | DMAH;
	CHECK(!ibv_reg_mr_ex(id->pd, &attr) && errno == EOPNOTSUPP);
	ibv_free_buf(buf);
	CHECK(!ibv_alloc_dmah(id->verbs, NULL) && errno == EOPNOTSUPP);
	CHECK(ibv_query_port_speed(id->verbs, 1, &arg) == 0 && arg == 25);
	CHECK(ibv_query_port_speed(id->verbs, 2, &arg) == EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
}

#define REFUSED(call) CHECK((call) == -1 && errno == EIO)

/* A child uses objects of its parent, which fails, and its own objects. */
static void child(struct rdma_cm_id *listens, struct rdma_cm_id *id, struct rdma_cm_event *event,
		  struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	union address a = at(own_v4, 0), group = at("239.47.91.3", 0);
	struct rdma_cm_id *request = event->id, *own;
	struct rdma_event_channel *channel;
	struct ibv_srq_attr limits;
	struct rdma_cm_event *got;
	int one = 1, mask;
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT };

	REFUSED(rdma_bind_addr(id, &a.any));
	REFUSED(rdma_resolve_addr(id, NULL, &a.any, 100));
	REFUSED(rdma_resolve_route(id, 100));
	REFUSED(rdma_create_qp(request, NULL, &attr));
	REFUSED(rdma_init_qp_attr(id, &state, &mask));
	REFUSED(rdma_connect(id, NULL));
	REFUSED(rdma_listen(id, 0));
	REFUSED(rdma_accept(request, NULL));
	REFUSED(rdma_reject(request, NULL, 0));
	REFUSED(rdma_establish(id));
	REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST));
	REFUSED(rdma_disconnect(id));
	REFUSED(rdma_join_multicast(id, &group.any, NULL));
	REFUSED(rdma_leave_multicast(id, &group.any));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	REFUSED(rdma_migrate_id(id, NULL));
	REFUSED(rdma_get_request(listens, &own));
	REFUSED(rdma_get_cm_event(server_side, &got));
	REFUSED(rdma_create_id(server_side, &own, NULL, RDMA_PS_TCP));
	CHECK(ibv_query_srq(srq, &limits) == EIO);
	CHECK(rdma_get_dst_port(id) == htons(PORT));
 /* Destroying these objects in the child does not end them in the parent. */
	CHECK(rdma_ack_cm_event(event) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(request) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(server_side);

	CHECK((channel = rdma_create_event_channel()));
	CHECK(rdma_create_id(channel, &own, NULL, RDMA_PS_TCP) == 0);
	a = at(own_v4, PORT + 1);
	CHECK(rdma_bind_addr(own, &a.any) == 0 && rdma_listen(own, 0) == 0);
 /* Not _exit: at exit the child informs only the peers of its own connections. */
	exit(0);
}

static void forks(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct rdma_cm_id *listens = listener(own_v4, 0), *id, *peer, *asked, *refused;
	struct rdma_cm_event *request;
	char memory[64] = "before", inbox[64];
	struct ibv_mr *from, *to;
	struct ibv_srq *srq;
	struct ibv_wc wc;
	int status;
	pid_t pid;

	CHECK(listens);
	id = asks(own_v4);
	request = next(server_side, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = request->id;
	make_qp(peer);
	CHECK((to = rdma_reg_msgs(peer, inbox, sizeof inbox)));
	CHECK(rdma_post_recv(peer, NULL, inbox, sizeof inbox, to) == 0);
	CHECK(rdma_accept(peer, NULL) == 0);
	rdma_ack_cm_event(request);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_ESTABLISHED));
	rdma_ack_cm_event(next(server_side, RDMA_CM_EVENT_ESTABLISHED));
	CHECK((from = rdma_reg_msgs(id, memory, sizeof memory)));
	CHECK((srq = ibv_create_srq(id->pd, &srq_attr)));
	asked = asks(own_v4);
	request = next(server_side, RDMA_CM_EVENT_CONNECT_REQUEST);

	CHECK((pid = fork()) >= 0);
	if (pid == 0)
		child(listens, id, request, srq);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

	/* The connection and the request are unchanged. */
	strcpy(memory, "after");
	CHECK(rdma_post_send(id, NULL, memory, sizeof memory, from, IBV_SEND_SIGNALED) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(peer, &wc) == 1 && strcmp(inbox, "after") == 0);
	refused = request->id;
	CHECK(rdma_reject(refused, NULL, 0) == 0);
	CHECK(rdma_ack_cm_event(request) == 0 && rdma_destroy_id(refused) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_REJECTED));
	rdma_destroy_qp(asked);
	CHECK(rdma_destroy_id(asked) == 0);
	CHECK(rdma_disconnect(id) == 0);
	rdma_ack_cm_event(next(server_side, RDMA_CM_EVENT_DISCONNECTED));
	/* Answers the disconnect request. Otherwise the other end would repeat it for 40 s. */
	CHECK(rdma_disconnect(peer) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_DISCONNECTED));
	/* An identifier that is disconnected may be disconnected again. */
	CHECK(rdma_disconnect(id) == 0 && rdma_disconnect(peer) == 0);
}

/* A destroyed identifier is refused, and its memory is not read. */
static void mistakes(void)
{
	union address a = at(own_v4, 0);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(client_side, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_resolve_addr(id, NULL, &a.any, 100) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr((void *)1, NULL, &a.any, 100) == -1 && errno == EINVAL);
}

/* Sets the attributes of a shared receive queue. comp_mask names only the type. */
static void only_type(struct ibv_srq_init_attr_ex *srq, enum ibv_srq_type type)
{
	memset(srq, 0xa5, sizeof *srq);
	srq->srq_context = NULL;
	srq->attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1 };
	srq->comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	srq->srq_type = type;
}

/* Fields that comp_mask does not name may hold anything. */
static void masks(void)
{
	struct rdma_cm_id *id;
	union address a = at(own_v4, 0);
	struct ibv_srq_init_attr_ex srq;
	struct ibv_qp_init_attr_ex qp;

	CHECK(rdma_create_id(client_side, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, &a.any) == 0);
	only_type(&srq, IBV_SRQT_BASIC);
	CHECK(rdma_create_srq_ex(id, &srq) == 0 && id->srq && srq.pd == id->pd);
	rdma_destroy_srq(id);

	only_type(&srq, IBV_SRQT_XRC);
	CHECK(rdma_create_srq_ex(id, &srq) == 0 && id->srq && srq.cq == id->recv_cq);
	rdma_destroy_srq(id);
	srq.comp_mask = 0;
	CHECK(rdma_create_srq_ex(id, &srq) == -1 && errno == EINVAL);

	memset(&qp, 0xa5, sizeof qp);
	qp.qp_context = NULL;
	qp.send_cq = qp.recv_cq = NULL;
	qp.srq = NULL;
	qp.cap = (struct ibv_qp_cap){ 0 };
	qp.qp_type = IBV_QPT_XRC_RECV;
	qp.sq_sig_all = 0;
	qp.comp_mask = 0;
	id->qp_type = IBV_QPT_XRC_RECV;
	CHECK(rdma_create_qp_ex(id, &qp) == 0 && id->qp);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Returns a bound identifier for datagrams, with a queue pair and a receive. */
static struct rdma_cm_id *datagrams(char *memory, struct ibv_mr **mr)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
	union address a = at(own_v4, 0);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(client_side, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(id, &a.any) == 0 && rdma_create_qp(id, NULL, &attr) == 0);
	CHECK((*mr = rdma_reg_msgs(id, memory, 100)));
	CHECK(rdma_post_recv(id, NULL, memory, 100, *mr) == 0);
	return id;
}

static void sends_to_group(struct rdma_cm_id *id, struct rdma_cm_event *joined, struct ibv_mr *mr)
{
	struct rdma_ud_param *ud = &joined->param.ud;
	struct ibv_ah *ah = ibv_create_ah(id->pd, &ud->ah_attr);
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = ud->qp_num, .remote_qkey = ud->qkey } };
	struct ibv_wc wc;

	CHECK(ah && ibv_post_send(id->qp, &wr, &bad) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void groups(void)
{
	union address group = at("239.47.91.4", 0);
	struct rdma_cm_join_mc_attr_ex attr = { .addr = &group.any,
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER };
	char of_member[100], of_sender[100], of_leaver[100];
	struct ibv_mr *at_member, *at_sender, *at_leaver;
	struct rdma_cm_id *member = datagrams(of_member, &at_member);
	struct rdma_cm_id *sender = datagrams(of_sender, &at_sender);
	struct rdma_cm_id *leaver = datagrams(of_leaver, &at_leaver);
	struct rdma_cm_event *event;
	struct ibv_wc wc;

	CHECK(rdma_join_multicast(member, &group.any, member) == 0);
	rdma_ack_cm_event(next(client_side, RDMA_CM_EVENT_MULTICAST_JOIN));
	/* An identifier that leaves before it gets the join event gets no event and no datagrams. */
	CHECK(rdma_join_multicast(leaver, &group.any, leaver) == 0);
	CHECK(rdma_leave_multicast(leaver, &group.any) == 0);
	/* A send-only member does not receive. */
	CHECK(rdma_join_multicast_ex(sender, &attr, sender) == 0);
	event = next(client_side, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == sender && event->param.ud.private_data == sender);
	sends_to_group(sender, event, at_sender);
	rdma_ack_cm_event(event);
	CHECK(rdma_get_recv_comp(member, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(sender->recv_cq, 1, &wc) == 0);
	CHECK(ibv_poll_cq(leaver->recv_cq, 1, &wc) == 0);
	CHECK(rdma_leave_multicast(sender, &group.any) == 0);
	CHECK(rdma_leave_multicast(member, &group.any) == 0);
	CHECK(rdma_leave_multicast(leaver, &group.any) == -1 && errno == EADDRNOTAVAIL);
	ibv_dereg_mr(at_member);
	ibv_dereg_mr(at_sender);
	ibv_dereg_mr(at_leaver);
	rdma_destroy_qp(member);
	rdma_destroy_qp(sender);
	rdma_destroy_qp(leaver);
	CHECK(rdma_destroy_id(member) == 0 && rdma_destroy_id(sender) == 0);
	CHECK(rdma_destroy_id(leaver) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count > 2);
	own_v4 = arguments[1];
	own_v6 = arguments[2];
	CHECK((client_side = rdma_create_event_channel()));
	CHECK((server_side = rdma_create_event_channel()));
	families();
	younger_calls();
	mistakes();
	masks();
	groups();
	forks();
	puts("all as librdmacm says");
	return 0;
}
