/*
 * Closes devices that still have objects. The kernel's devices destroy such objects, so rxe must too.
 * Usage: closed DEVICE peer | closed DEVICE again
 */
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>

/* Objects of all kinds on one device. */
static struct {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *parent;
	struct ibv_srq *srq;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
	struct ibv_dm *dm;
	struct ibv_xrcd *xrcd;
	struct ibv_qp *ud;
} all;

static void make_all(struct end *e)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1,
				  .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } };
	struct ibv_alloc_dm_attr dm = { .length = PAGE };
	struct ibv_parent_domain_init_attr parent = { .pd = e->pd };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1, .oflags = O_CREAT };
	struct ibv_qp_init_attr ud = { .qp_type = IBV_QPT_UD, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };

	CHECK(all.channel = ibv_create_comp_channel(e->context));
	CHECK(all.cq = ibv_create_cq(e->context, 16, NULL, all.channel, 0));
	CHECK(ibv_req_notify_cq(all.cq, 0) == 0);
	CHECK(all.parent = ibv_alloc_parent_domain(e->context, &parent));
	CHECK(all.srq = ibv_create_srq(all.parent, &srq));
	CHECK(all.ah = ibv_create_ah(e->pd, &ah));
	CHECK(all.mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2));
	CHECK(all.dm = ibv_alloc_dm(e->context, &dm));
	CHECK(all.xrcd = ibv_open_xrcd(e->context, &xrcd));
	ud.send_cq = ud.recv_cq = all.cq;
	ud.srq = all.srq;
	CHECK(all.ud = ibv_create_qp(all.parent, &ud));
}

/* Calls on destroyed objects fail and have no other effect. */
static void none_works(struct end *e, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq;
	struct ibv_async_event event;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	char word[8] = "word";
	void *of;

	CHECK(ibv_post_send(e->qp, &wr, &bad) != 0 && bad == &wr);
	CHECK(ibv_post_recv(e->qp, &receive, &bad_receive) != 0);
	CHECK(ibv_post_srq_recv(all.srq, &receive, &bad_receive) != 0);
	CHECK(ibv_poll_cq(e->cq, 1, &wc) < 0 && ibv_poll_cq(all.cq, 1, &wc) < 0);
	CHECK(ibv_req_notify_cq(e->cq, 0) != 0 && ibv_resize_cq(e->cq, 32) != 0);
	CHECK(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE) != 0);
	CHECK(ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init) != 0);
	CHECK(ibv_query_srq(all.srq, &srq) != 0);
	CHECK(ibv_memcpy_to_dm(all.dm, 0, word, 4) != 0);
	CHECK(!ibv_alloc_pd(e->context) && !ibv_create_cq(e->context, 1, NULL, NULL, 0));
	CHECK(!ibv_reg_mr(e->pd, mr->addr, 8, 0) && !ibv_alloc_mw(e->pd, IBV_MW_TYPE_1));
	init = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .send_cq = e->cq, .recv_cq = e->cq };
	CHECK(!ibv_create_qp(e->pd, &init));
	/* The protection domain belongs to another device, whose context is open. */
	CHECK(!ibv_create_qp(a.pd, &init));
	CHECK(ibv_get_async_event(e->context, &event) != 0 && ibv_get_cq_event(all.channel, &cq, &of) != 0);
	CHECK(ibv_dereg_mr(mr) != 0 && ibv_dealloc_mw(all.mw) != 0 && ibv_destroy_ah(all.ah) != 0);
	CHECK(ibv_destroy_qp(e->qp) != 0 && ibv_destroy_qp(all.ud) != 0 && ibv_destroy_srq(all.srq) != 0);
	CHECK(ibv_destroy_cq(e->cq) != 0 && ibv_destroy_cq(all.cq) != 0);
	CHECK(ibv_destroy_comp_channel(all.channel) != 0 && ibv_free_dm(all.dm) != 0);
	CHECK(ibv_close_xrcd(all.xrcd) != 0 && ibv_dealloc_pd(all.parent) != 0 && ibv_dealloc_pd(e->pd) != 0);
}

/* Sleeps on a channel whose device is closed, as a thread may with a kernel device. */
static void *sleep_in(void *channel)
{
	struct ibv_cq *cq;
	void *of;

	ibv_get_cq_event(channel, &cq, &of);
	return NULL;
}

/* The peer's queue pair gets no answer, and the program's memory is no longer registered. */
static void peer(const char *device)
{
	struct ibv_mr *from_mr, *to_mr;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_comp_channel *channel;
	char *from, *to;
	pthread_t sleeper;

	open_both(device);
	from = ordinary(&a, &from_mr);
	to = ordinary(&b, &to_mr);
	make(&a);
	make(&b);
	connect_qp(a.qp, b.qp, REMOTE);
	connect_qp(b.qp, a.qp, REMOTE);
	make_all(&b);
	CHECK(channel = ibv_create_comp_channel(b.context));
	CHECK(pthread_create(&sleeper, NULL, sleep_in, channel) == 0);
	sge = (struct ibv_sge){ (uintptr_t)from, 64, from_mr->lkey };
	name_remote(&wr, to, to_mr);
	memset(from, 'W', 64);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_status(a.cq) == IBV_WC_SUCCESS && *to == 'W');

	CHECK(ibv_close_device(b.context) == 0);
	memset(to, 'f', SIZE);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_status(a.cq) == IBV_WC_RETRY_EXC_ERR);
	for (int i = 0; i < SIZE; i++)
		CHECK(to[i] == 'f');
	none_works(&b, to_mr);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_dereg_mr(from_mr) == 0 && ibv_destroy_cq(a.cq) == 0);
	CHECK(ibv_dealloc_pd(a.pd) == 0 && ibv_close_device(a.context) == 0);
}

/* Opens and closes more devices than can be open on an address simultaneously. */
static void again(const char *device)
{
	struct ibv_mr *mr;
	int threads = 0, descriptors = 0;

	for (int i = 0; i < 260; i++) {
		open_end(&b, device);
		make(&b);
		make_all(&b);
		ordinary(&b, &mr);
		CHECK(ibv_close_device(b.context) == 0);
		if (i == 0) {
			threads = entries("/proc/self/task");
			descriptors = entries("/proc/self/fd");
		}
	}
	CHECK(entries("/proc/self/task") == threads);
	CHECK(entries("/proc/self/fd") == descriptors);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (strcmp(argv[2], "peer") == 0)
		peer(argv[1]);
	else
		again(argv[1]);
	printf("fine\n");
	return 0;
}
