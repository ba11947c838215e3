/*
 * Two ends of a connection, which are two contexts of this process, and requests of the first end that access
 * memory of the second.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "connection.h"

enum { PAGE = 4096, SIZE = 8 * PAGE, REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* One end of a connection. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end a, b;

static void open_end(struct end *e, const char *device)
{
	e->context = open_device(device);
	CHECK(e->pd = ibv_alloc_pd(e->context));
	CHECK(e->cq = ibv_create_cq(e->context, 16, NULL, NULL, 0));
}

static void make(struct end *e)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .send_cq = e->cq, .recv_cq = e->cq,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
						  .max_send_sge = 1, .max_recv_sge = 1 } };

	CHECK(e->qp = ibv_create_qp(e->pd, &attr));
}

/* Executes a request of a on new queue pairs and returns its status. For a SEND, b receives into `to`. */
static inline enum ibv_wc_status request(enum ibv_wr_opcode opcode, void *from, struct ibv_mr *from_mr, void *to,
				  struct ibv_mr *to_mr, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = length, .lkey = from_mr->lkey };
	struct ibv_sge into = { .addr = (uintptr_t)to, .length = length, .lkey = to_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &into, .num_sge = 1 }, *bad_receive;
	enum ibv_wc_status status;

	make(&a);
	make(&b);
	connect_qp(a.qp, b.qp, REMOTE);
	connect_qp(b.qp, a.qp, REMOTE);
	if (opcode == IBV_WR_SEND)
		CHECK(ibv_post_recv(b.qp, &receive, &bad_receive) == 0);
	name_remote(&wr, to, to_mr);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	status = next_status(a.cq);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_resize_cq(b.cq, 16) == 0);
	return status;
}

/* Returns an unmapped address, far below those that the kernel chooses. */
static char *nowhere(void)
{
	static uintptr_t last = 0x300000000000;

	last += 1 << 24;
	return (char *)last;
}

static char *map_at(char *at, size_t length, int value)
{
	CHECK(mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		   0) == at);
	memset(at, value, length);
	return at;
}

/* Maps and registers ordinary memory of an end. */
static inline char *ordinary(struct end *e, struct ibv_mr **mr)
{
	char *at = map_at(nowhere(), SIZE, 'o');

	CHECK(*mr = ibv_reg_mr(e->pd, at, SIZE, REMOTE));
	return at;
}

static void open_both(const char *device)
{
	open_end(&a, device);
	open_end(&b, device);
}

static inline void is(enum ibv_wc_status got, enum ibv_wc_status want, int operation, const char *where)
{
	if (got != want)
		printf("operation %d, %s: %s, not %s\n", operation, where, ibv_wc_status_str(got),
		       ibv_wc_status_str(want));
	CHECK(got == want);
}
