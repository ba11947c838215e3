/*
 * Creates and destroys every kind of object, in a random order that verbs permit, and compares the descriptors,
 * threads, mappings and allocated bytes of the process before and after. Usage: objects DEVICE ROUNDS.
 * With a third argument, for valgrind, the warm-up is short, and mappings and bytes are not compared.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "device.h"

enum kind { CHANNEL, CQ, CQ_EX, PD, PARENT, MR, MW, SRQ, QP, UD, AH, DM, XRCD, XRC_SRQ, XRC_QP, EVENTS, ID, LISTENER,
	    ALONE, CONTEXT, KINDS };

#define BIT(kind) (1u << (kind))

/* The kinds of objects that must be destroyed before an object of each kind. */
static const unsigned users[KINDS] = {
	[CHANNEL] = BIT(CQ) | BIT(CQ_EX),
	[CQ] = BIT(QP) | BIT(UD) | BIT(XRC_SRQ),
	[PD] = BIT(PARENT) | BIT(MR) | BIT(MW) | BIT(SRQ) | BIT(QP) | BIT(UD) | BIT(AH) | BIT(XRC_SRQ),
	[SRQ] = BIT(QP),
	[XRCD] = BIT(XRC_SRQ) | BIT(XRC_QP),
	[EVENTS] = BIT(ID) | BIT(LISTENER),
	[CONTEXT] = BIT(CONTEXT) - 1 - BIT(EVENTS) - BIT(ID) - BIT(LISTENER) - BIT(ALONE),
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_pd *pd, *parent;
static struct ibv_mr *mr;
static struct ibv_mw *mw;
static struct ibv_srq *srq, *xrc_srq;
static struct ibv_qp *qp, *ud, *xrc_qp;
static struct ibv_ah *ah;
static struct ibv_dm *dm;
static struct ibv_xrcd *xrcd;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id, *listener, *alone;
static char memory[8192];

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *with)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = with, .qp_type = type,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
						  .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

static void create(void)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4, .channel = channel };
	struct ibv_parent_domain_init_attr parent_init = { .pd = pd };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	struct ibv_alloc_dm_attr dm_attr = { .length = 4096 };
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
						.fd = -1, .oflags = O_CREAT };
	struct sockaddr_in any = { .sin_family = AF_INET };

	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)));
	cq_init.channel = channel;
	CHECK((cq_ex = ibv_create_cq_ex(context, &cq_init)));
	CHECK((pd = ibv_alloc_pd(context)));
	parent_init.pd = pd;
	CHECK((parent = ibv_alloc_parent_domain(context, &parent_init)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
	CHECK((srq = ibv_create_srq(pd, &srq_init)));
	CHECK((qp = make_qp(IBV_QPT_RC, srq)));
	CHECK((ud = make_qp(IBV_QPT_UD, NULL)));
	CHECK(ibv_query_gid(context, 1, 1, &ah_attr.grh.dgid) == 0);
	ah_attr.grh.sgid_index = 1;
	CHECK((ah = ibv_create_ah(pd, &ah_attr)));
	CHECK((dm = ibv_alloc_dm(context, &dm_attr)));
	CHECK((xrcd = ibv_open_xrcd(context, &xrcd_init)));
	struct ibv_srq_init_attr_ex xrc_srq_init = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_PD
	};
	CHECK((xrc_srq = ibv_create_srq_ex(context, &xrc_srq_init)));
	struct ibv_qp_init_attr_ex xrc_qp_init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
						   .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	CHECK((xrc_qp = ibv_create_qp_ex(context, &xrc_qp_init)));
	CHECK((events = rdma_create_event_channel()));
	CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&any) == 0 && rdma_listen(listener, 4) == 0);
	CHECK(rdma_create_id(NULL, &alone, NULL, RDMA_PS_UDP) == 0);
}

static int destroy(enum kind kind)
{
	switch (kind) {
	case CHANNEL: return ibv_destroy_comp_channel(channel);
	case CQ: return ibv_destroy_cq(cq);
	case CQ_EX: return ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex));
	case PD: return ibv_dealloc_pd(pd);
	case PARENT: return ibv_dealloc_pd(parent);
	case MR: return ibv_dereg_mr(mr);
	case MW: return ibv_dealloc_mw(mw);
	case SRQ: return ibv_destroy_srq(srq);
	case QP: return ibv_destroy_qp(qp);
	case UD: return ibv_destroy_qp(ud);
	case AH: return ibv_destroy_ah(ah);
	case DM: return ibv_free_dm(dm);
	case XRCD: return ibv_close_xrcd(xrcd);
	case XRC_SRQ: return ibv_destroy_srq(xrc_srq);
	case XRC_QP: return ibv_destroy_qp(xrc_qp);
	case EVENTS: rdma_destroy_event_channel(events); return 0;
	case ID: return rdma_destroy_id(id);
	case LISTENER: return rdma_destroy_id(listener);
	case ALONE: return rdma_destroy_id(alone);
	case CONTEXT: return ibv_close_device(context);
	default: return -1;
	}
}

/* Destroys all objects, and the context if `with_context` is set. */
static void destroy_all(int with_context)
{
	unsigned left = BIT(CONTEXT) - 1 + (with_context ? BIT(CONTEXT) : 0);

	while (left) {
		enum kind kind = random() % KINDS;

		if (!(left & BIT(kind)) || users[kind] & left)
			continue;
		if (destroy(kind)) {
			printf("object %d cannot be destroyed (errno %d)\n", kind, errno);
			exit(1);
		}
		left &= ~BIT(kind);
	}
}

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int c, count = 0;

	CHECK(maps);
	while ((c = getc(maps)) != EOF)
		count += c == '\n';
	fclose(maps);
	return count;
}

struct holdings {
	int descriptors, threads, mappings;
	long bytes;
};

static struct holdings holdings(void)
{
	return (struct holdings){ entries("/proc/self/fd"), entries("/proc/self/task"), mappings(),
				  (long)mallinfo2().uordblks };
}

int main(int count, char **arguments)
{
	/* The C library and libibverbs allocate some memory on first use, and tables grow for a while. */
	enum { WARM = 1000, WARM_SLOWLY = 20, CONTEXT_EVERY = 20 };
	/*
	 * A leak of one object per round would exceed this slack. Queue pair numbers that may not be reused yet take up
	 * to 128 KiB, and the heaps of threads may grow and shrink.
	 */
	enum { SLACK_BYTES = 160 << 10, SLACK_MAPPINGS = 8 };
	struct holdings before = { 0 }, after;
	int rounds, warm = count == 3 ? WARM : WARM_SLOWLY;

	CHECK(count > 2 && (rounds = atoi(arguments[2])) > 0);
	context = open_named(arguments[1]);
	for (int round = 0; round < warm + rounds; round++) {
		int last = round % CONTEXT_EVERY == CONTEXT_EVERY - 1;

		if (round == warm)
			before = holdings();
		create();
		destroy_all(last);
		if (last)
			context = open_named(arguments[1]);
	}
	/* A thread closes the files of listeners a little later. */
	for (int tries = 0; tries < 200; tries++) {
		after = holdings();
		if (after.descriptors <= before.descriptors)
			break;
		usleep(100000);
	}
	printf("descriptors %d %d, threads %d %d, mappings %d %d, bytes %ld %ld\n", before.descriptors,
	       after.descriptors, before.threads, after.threads, before.mappings, after.mappings, before.bytes,
	       after.bytes);
	CHECK(after.descriptors <= before.descriptors && after.threads <= before.threads);
	if (count == 3)
		CHECK(after.mappings <= before.mappings + SLACK_MAPPINGS &&
		      after.bytes <= before.bytes + SLACK_BYTES);
	puts("all is given back");
	ibv_close_device(context);
	return 0;
}
