/*
 * Statements of the libibverbs manual pages about calls that the other programs here do not make: which
 * calls are refused and how, which fields are updated, which objects cannot be destroyed while they are
 * used. The argument names the device.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

enum { HUGE = 1 << 30 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid own;

static struct ibv_srq *shared(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);

	CHECK(srq && attr.attr.max_wr >= 8 && attr.attr.max_sge >= 1);
	return srq;
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	return qp;
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
}

/* ibv_event_type_str, ibv_wc_status_str: the texts of rdma-core */
static void texts(void)
{
	/* Older headers do not define this event. */
	int device_speed_change = 20;

	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_MW_BIND_ERR), "memory management operation error"));
	CHECK(!strcmp(ibv_event_type_str(device_speed_change), "Device link speed change"));
	CHECK(!strcmp(ibv_event_type_str(device_speed_change + 1), "unknown"));
}

/* ibv_create_qp: a queue pair with a shared receive queue ignores the sizes of a receive queue of its own. */
static void sizes_beside_a_shared_queue(void)
{
	struct ibv_srq *srq = shared();
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .srq = srq,
		.qp_type = IBV_QPT_RC, .cap = { 4, HUGE, 1, HUGE, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad = NULL;

	CHECK(qp);
	to_init(qp);
	CHECK(ibv_post_recv(qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
}

/* ibv_post_send: UC queue pairs can bind memory windows. */
static void windows_on_unreliable_connections(void)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC,
		.cap = { 4, 4, 1, 1, 0 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_BIND_MW };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	CHECK(qp);
	CHECK(ibv_qp_to_qp_ex(qp) == (void *)qp && ibv_destroy_qp(qp) == 0);
}

/* ibv_create_qp_ex: without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS there is no ibv_qp_ex. */
static void extended_only_if_asked_for(void)
{
	struct ibv_qp *qp = make(IBV_QPT_RC);

	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* ibv_attach_mcast */
static void groups(void)
{
	struct ibv_qp *qp = make(IBV_QPT_UD), *connected = make(IBV_QPT_RC);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, 239, 47, 91, 9 } };

	to_init(qp);
	CHECK(ibv_attach_mcast(qp, &own, 0) == EINVAL);
	CHECK(ibv_attach_mcast(connected, &group, 0) == EINVAL);
	CHECK(ibv_detach_mcast(qp, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(qp, &group, 0) == 0 && ibv_attach_mcast(qp, &group, 0) == 0);
	CHECK(ibv_destroy_qp(qp) == EBUSY && errno == EBUSY);
	CHECK(ibv_detach_mcast(qp, &group, 0) == 0 && ibv_detach_mcast(qp, &group, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(connected) == 0);
}

/* ibv_alloc_td, ibv_alloc_parent_domain */
static void domains(void)
{
	struct ibv_td_init_attr td_attr = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr attr = { .comp_mask = 1 << 20 };
	struct ibv_qp_init_attr qp_attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { 1, 1, 1, 1, 0 } };
	struct ibv_pd *mine = ibv_alloc_pd(context), *parent;
	struct ibv_td *td;
	struct ibv_qp *qp;

	CHECK(!ibv_alloc_td(context, &td_attr) && errno == EINVAL);
	td_attr.comp_mask = 0;
	CHECK((td = ibv_alloc_td(context, &td_attr)));
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.pd = mine;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.comp_mask = 0;
	attr.td = td;
	CHECK((parent = ibv_alloc_parent_domain(context, &attr)));
	CHECK((qp = ibv_create_qp(parent, &qp_attr)) && qp->pd == parent);
	CHECK(ibv_dealloc_td(td) == EBUSY);
	CHECK(ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_pd(mine) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_dealloc_pd(mine) == EBUSY);
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(mine) == 0);
}

/* ibv_create_ah, ibv_modify_qp: kernels refuse a port that does not exist, including 0. */
static void ports(void)
{
	struct ibv_ah_attr way = { .is_global = 1, .grh = { .dgid = own, .sgid_index = 1 } };
	struct ibv_qp *qp = make(IBV_QPT_UC);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256,
		.dest_qp_num = qp->qp_num, .ah_attr = way };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	struct ibv_ah *ah;

	CHECK(!ibv_create_ah(pd, &way) && errno == EINVAL);
	way.port_num = 1;
	CHECK((ah = ibv_create_ah(pd, &way)) && ibv_destroy_ah(ah) == 0);
	to_init(qp);
	CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL && qp->state == IBV_QPS_INIT);
	/* Devices that cannot resize queue pairs refuse IBV_QP_CAP. */
	attr.ah_attr = way;
	CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_CAP) != 0 && qp->state == IBV_QPS_INIT);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* ibv_create_srq_ex, ibv_modify_srq */
static void shared_queues(void)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 8, .max_sge = 1 }, .pd = pd,
		.srq_type = IBV_SRQT_BASIC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | 1 << 20 };
	struct ibv_srq_attr change = { .max_wr = 16, .srq_limit = 17 }, seen;
	struct ibv_srq *srq = shared();

	CHECK(!ibv_create_srq_ex(context, &attr));
	CHECK(ibv_modify_srq(srq, &change, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_query_srq(srq, &seen) == 0 && seen.max_wr == 8 && seen.srq_limit == 0);
	CHECK(ibv_modify_srq(srq, &change, 0) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	/* srq_limit is ignored at creation, and the actual sizes are returned. */
	struct ibv_srq_init_attr unset = { .attr = { .max_wr = 8, .max_sge = 1, .srq_limit = 0xa5a5a5a5 } };
	CHECK((srq = ibv_create_srq(pd, &unset)));
	CHECK(ibv_query_srq(srq, &seen) == 0 && seen.srq_limit == 0);
	CHECK(unset.attr.max_wr == seen.max_wr && unset.attr.max_sge == seen.max_sge);
	CHECK(ibv_destroy_srq(srq) == 0);
	attr.comp_mask &= ~(1 << 20);
	attr.attr.srq_limit = 5;
	CHECK((srq = ibv_create_srq_ex(context, &attr)));
	CHECK(ibv_query_srq(srq, &seen) == 0 && seen.srq_limit == 0);
	CHECK(attr.attr.max_wr == seen.max_wr && attr.attr.max_sge == seen.max_sge);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* ibv_modify_qp: attributes that a type does not use are ignored, as in the kernel's uverbs. Programs therefore
 * connect XRC queue pairs like RC ones. Only the low five bits of min_rnr_timer count. */
static void attributes_without_a_use(void)
{
	enum { RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	       RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		     IBV_QP_MAX_QP_RD_ATOMIC };
	struct ibv_xrcd_init_attr unnamed = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *domain = ibv_open_xrcd(context, &unnamed);
	struct ibv_qp_init_attr_ex sends = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 }, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp_init_attr_ex receives = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = domain,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp_init_attr its;
	struct ibv_qp *qps[3];

	CHECK(domain && (qps[0] = ibv_create_qp_ex(context, &sends)));
	CHECK((qps[1] = ibv_create_qp_ex(context, &receives)) && (qps[2] = make(IBV_QPT_RC)));
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
			.dest_qp_num = qps[2]->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 32 + 12,
			.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1, .ah_attr = { .is_global = 1, .port_num = 1,
			.grh = { .sgid_index = 1, .hop_limit = 64, .dgid = own } } };

		to_init(qps[i]);
		CHECK(ibv_modify_qp(qps[i], &attr, RTR) == 0);
		attr.qp_state = IBV_QPS_RTS;
		/* A Q_Key is not one of the ignored attributes. */
		CHECK(ibv_modify_qp(qps[i], &attr, RTS | IBV_QP_QKEY) == EINVAL);
		CHECK(ibv_modify_qp(qps[i], &attr, RTS) == 0);
		CHECK(ibv_query_qp(qps[i], &attr, IBV_QP_MIN_RNR_TIMER, &its) == 0);
		CHECK(i == 0 || attr.min_rnr_timer == 12);
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	}
	CHECK(ibv_close_xrcd(domain) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count > 1);
	context = open_named(arguments[1]);
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	CHECK(ibv_query_gid(context, 1, 1, &own) == 0);
	texts();
	sizes_beside_a_shared_queue();
	windows_on_unreliable_connections();
	extended_only_if_asked_for();
	groups();
	domains();
	ports();
	shared_queues();
	attributes_without_a_use();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	puts("all as the pages say");
	return 0;
}
