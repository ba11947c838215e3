/*
 * On-demand paging: memory that is mapped, moved, protected and unmapped while it is registered. The
 * arguments are the device and the test. The two ends are two contexts of this process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, SIZE = 8 * PAGE, REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
       ODP = REMOTE | IBV_ACCESS_ON_DEMAND };

/* One end of a connection. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static const char *device;
static int gid_index = -1;
static union ibv_gid gid;
static struct end a, b;

static void open_end(struct end *e)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), device) == 0)
			e->context = ibv_open_device(list[i]);
	CHECK(e->context);
	ibv_free_device_list(list);
	for (int i = 0; gid_index < 0 && ibv_query_gid(e->context, 1, i, &gid) == 0; i++)
		if (gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.raw[0] == 0)
			gid_index = i;
	CHECK(gid_index >= 0);
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

static void connect_to(struct end *e, struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE };

	CHECK(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						  IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				     .dest_qp_num = peer->qp->qp_num, .max_dest_rd_atomic = 1,
				     .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = gid, .sgid_index = gid_index,
							   .hop_limit = 64 } } };
	CHECK(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC |
						  IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						  IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						  IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static enum ibv_wc_status wait_for(struct end *e)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(e->cq, 1, &wc)) == 0)
		usleep(1000);
	CHECK(n == 1);
	return wc.status;
}

/* How a request of a ends, on new queue pairs. For SEND, b receives into `to`. */
static enum ibv_wc_status request(enum ibv_wr_opcode opcode, void *from, struct ibv_mr *from_mr, void *to,
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
	connect_to(&a, &b);
	connect_to(&b, &a);
	if (opcode == IBV_WR_SEND)
		CHECK(ibv_post_recv(b.qp, &receive, &bad_receive) == 0);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)to;
		wr.wr.atomic.rkey = to_mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)to;
		wr.wr.rdma.rkey = to_mr->rkey;
	}
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	status = wait_for(&a);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_resize_cq(b.cq, 16) == 0);
	return status;
}

/* Addresses far below those that the system chooses, where nothing is mapped. */
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

/* Ordinary memory of an end, and its region. */
static char *ordinary(struct end *e, struct ibv_mr **mr)
{
	char *at = map_at(nowhere(), SIZE, 'o');

	CHECK(*mr = ibv_reg_mr(e->pd, at, SIZE, REMOTE));
	return at;
}

static void caps(void)
{
	const uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			    IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
	struct ibv_device_attr_ex attr;

	CHECK(ibv_query_device_ex(a.context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps & IBV_ODP_SUPPORT);
	CHECK((attr.odp_caps.per_transport_caps.rc_odp_caps & rc) == rc);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps ==
	      (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV));
	printf("general %#lx, rc %#x, uc %#x, xrc %#x\n", (long)attr.odp_caps.general_caps,
	       attr.odp_caps.per_transport_caps.rc_odp_caps, attr.odp_caps.per_transport_caps.uc_odp_caps,
	       attr.xrc_odp_caps);
}

static const struct {
	enum ibv_wr_opcode opcode;
	enum ibv_wc_status refused;
	uint32_t length;
} operations[] = {
	{ IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, 6000 },
	{ IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, 6000 },
	{ IBV_WR_SEND, IBV_WC_REM_OP_ERR, 6000 },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_ACCESS_ERR, 8 },
};

static const int kinds = sizeof operations / sizeof *operations;

static void is(enum ibv_wc_status got, enum ibv_wc_status want, int operation, const char *where)
{
	if (got != want)
		printf("operation %d, %s: %s, not %s\n", operation, where, ibv_wc_status_str(got),
		       ibv_wc_status_str(want));
	CHECK(got == want);
}

/* Pages that come after the region and go before it, at either end, for each operation. */
static void pages(void)
{
	struct ibv_mr *here, *there, *of_a, *of_b;
	char *from = ordinary(&a, &here), *to = ordinary(&b, &there), *at = nowhere();

	CHECK(of_a = ibv_reg_mr(a.pd, at, SIZE, ODP));
	CHECK(of_b = ibv_reg_mr(b.pd, at, SIZE, ODP));
	for (int i = 0; i < kinds; i++) {
		enum ibv_wr_opcode opcode = operations[i].opcode;
		uint32_t length = operations[i].length;

		is(request(opcode, from, here, at, of_b, length), operations[i].refused, i, "not mapped there");
		is(request(opcode, at, of_a, to, there, length), IBV_WC_LOC_PROT_ERR, i, "not mapped here");
		map_at(at, SIZE, 1);
		is(request(opcode, from, here, at, of_b, length), IBV_WC_SUCCESS, i, "mapped there");
		is(request(opcode, at, of_a, to, there, length), IBV_WC_SUCCESS, i, "mapped here");
		CHECK(munmap(at, SIZE) == 0);
		is(request(opcode, from, here, at, of_b, length), operations[i].refused, i, "unmapped there");
		is(request(opcode, at, of_a, to, there, length), IBV_WC_LOC_PROT_ERR, i, "unmapped here");
	}
	/* Only the last page of what is written is missing. */
	map_at(at, PAGE, 1);
	is(request(IBV_WR_RDMA_WRITE, from, here, at, of_b, 2 * PAGE), IBV_WC_REM_ACCESS_ERR, 0, "half mapped");
	is(request(IBV_WR_RDMA_WRITE, from, here, at, of_b, PAGE), IBV_WC_SUCCESS, 0, "first page");
	CHECK(munmap(at, PAGE) == 0);
	CHECK(ibv_dereg_mr(of_a) == 0 && ibv_dereg_mr(of_b) == 0);
	CHECK(ibv_dereg_mr(here) == 0 && ibv_dereg_mr(there) == 0);
}

/* The content is that of the memory which is mapped at the time: mapped anew, moved, and moved back. */
static void moves(void)
{
	struct ibv_mr *here, *mr;
	char *own = ordinary(&a, &here), *at = nowhere(), *other = nowhere();

	map_at(at, SIZE, 1);
	CHECK(mr = ibv_reg_mr(b.pd, at, SIZE, ODP));
	for (int value = 2; value < 6; value++) {
		is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_SUCCESS, value, "before");
		CHECK(own[0] == value - 1 && own[SIZE - 1] == value - 1);
		if (value % 2) {
			CHECK(munmap(at, SIZE) == 0);
			map_at(at, SIZE, value);
		} else {
			CHECK(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
			is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_REM_ACCESS_ERR, value,
			   "moved away");
			memset(other, value, SIZE);
			CHECK(mremap(other, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
		}
	}
	/* What the system may take away, and gives back as zeros. */
	CHECK(madvise(at, SIZE, MADV_DONTNEED) == 0);
	is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 0, "after MADV_DONTNEED");
	CHECK(own[0] == 0 && own[SIZE - 1] == 0);
	memset(own, 'w', SIZE);
	is(request(IBV_WR_RDMA_WRITE, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 0, "WRITE");
	CHECK(at[0] == 'w' && at[SIZE - 1] == 'w');
	CHECK(munmap(at, SIZE) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(here) == 0);
}

/* A page that may only be read can be read and not written, until its protection is changed. */
static void protection(void)
{
	struct ibv_mr *here, *mr;
	char *own = ordinary(&a, &here), *at = map_at(nowhere(), SIZE, 'p');

	CHECK(mr = ibv_reg_mr(b.pd, at, SIZE, ODP));
	CHECK(mprotect(at, SIZE, PROT_READ) == 0);
	is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 1, "read-only");
	CHECK(own[SIZE - 1] == 'p');
	is(request(IBV_WR_RDMA_WRITE, own, here, at, mr, SIZE), IBV_WC_REM_ACCESS_ERR, 0, "read-only");
	CHECK(mprotect(at, SIZE, PROT_READ | PROT_WRITE) == 0);
	is(request(IBV_WR_RDMA_WRITE, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 0, "writable again");
	CHECK(munmap(at, SIZE) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(here) == 0);
}

/* A fork makes the pages copies: what a peer writes arrives in the parent's, and not in the child's. */
static void forks(void)
{
	struct ibv_mr *here, *mr;
	char *own = ordinary(&a, &here), *at = map_at(nowhere(), SIZE, 1);
	int told[2], status;
	pid_t child;
	char done = 0;

	CHECK(mr = ibv_reg_mr(b.pd, at, SIZE, ODP));
	is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 1, "before the fork");
	CHECK(pipe(told) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		close(told[1]);
		CHECK(read(told[0], &done, 1) == 1);
		_exit(at[0] == 1 && at[SIZE - 1] == 1 ? 0 : 1);
	}
	at[0] = 2;
	memset(own, 3, SIZE);
	is(request(IBV_WR_RDMA_WRITE, own, here, at + 1, mr, SIZE - 1), IBV_WC_SUCCESS, 0, "after the fork");
	CHECK(at[0] == 2 && at[1] == 3 && at[SIZE - 1] == 3);
	CHECK(write(told[1], "+", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(munmap(at, SIZE) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(here) == 0);
}

static int advise(struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice, uint32_t flags, void *at,
		  uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = lkey };

	return ibv_advise_mr(pd, advice, flags, &sge, 1);
}

/* How many of the pages are present. */
static int present(char *at)
{
	unsigned char map[SIZE / PAGE];
	int n = 0;

	CHECK(mincore(at, SIZE, map) == 0);
	for (int i = 0; i < SIZE / PAGE; i++)
		n += map[i] & 1;
	return n;
}

static void prefetch(void)
{
	const int flush = IBV_ADVISE_MR_FLAG_FLUSH, read = IBV_ADVISE_MR_ADVICE_PREFETCH,
		  write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		  no_fault = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	char *at = nowhere();
	struct ibv_mr *mr, *constant;

	CHECK(mr = ibv_reg_mr(b.pd, at, SIZE, ODP));
	CHECK(constant = ibv_reg_mr(b.pd, at, SIZE, IBV_ACCESS_ON_DEMAND));
	/* Not mapped: an error if the call waits for the pages. */
	CHECK(advise(b.pd, read, flush, at, SIZE, mr->lkey) == EFAULT);
	CHECK(advise(b.pd, read, 0, at, SIZE, mr->lkey) == 0);
	CHECK(mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
	      at);
	CHECK(present(at) == 0);
	CHECK(advise(b.pd, no_fault, flush, at, SIZE, mr->lkey) == 0 && present(at) == 0);
	CHECK(advise(b.pd, write, flush, at + PAGE + 100, PAGE, mr->lkey) == 0 && present(at) == 2);
	CHECK(advise(b.pd, read, flush, at, SIZE, mr->lkey) == 0 && present(at) == SIZE / PAGE);
	CHECK(advise(b.pd, write, 0, at, SIZE, mr->lkey) == 0);
	CHECK(advise(b.pd, write, flush, at, SIZE, constant->lkey) == EPERM);
	CHECK(mprotect(at, PAGE, PROT_READ) == 0);
	CHECK(advise(b.pd, write, flush, at, SIZE, mr->lkey) == EFAULT);
	CHECK(advise(b.pd, read, flush, at, SIZE, mr->lkey) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(constant) == 0 && munmap(at, SIZE) == 0);
}

/* The errors that ibv_advise_mr(3) names. */
static void errors(void)
{
	const int read = IBV_ADVISE_MR_ADVICE_PREFETCH;
	char *at = map_at(nowhere(), SIZE, 0);
	struct ibv_pd *other = ibv_alloc_pd(b.context);
	struct ibv_mr *mr, *pinned;

	CHECK(other && (mr = ibv_reg_mr(b.pd, at, SIZE, ODP)) && (pinned = ibv_reg_mr(b.pd, at, SIZE, REMOTE)));
	/* Whether the call waits for the pages or not. */
	for (int flags = 0; flags <= IBV_ADVISE_MR_FLAG_FLUSH; flags += IBV_ADVISE_MR_FLAG_FLUSH) {
		CHECK(advise(b.pd, read, flags, at, SIZE, pinned->lkey) == EINVAL);
		CHECK(advise(b.pd, read, flags, at, SIZE, mr->lkey ^ 0x55555500) == ENOENT);
		CHECK(advise(other, read, flags, at, SIZE, mr->lkey) == EPERM);
		CHECK(advise(b.pd, read, flags, at + PAGE, SIZE, mr->lkey) == EFAULT);
		CHECK(advise(b.pd, 77, flags, at, SIZE, mr->lkey) == EOPNOTSUPP);
		CHECK(ibv_advise_mr(b.pd, read, flags, NULL, 0) == EINVAL);
	}
	CHECK(advise(b.pd, read, 2, at, SIZE, mr->lkey) == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(pinned) == 0 && ibv_dealloc_pd(other) == 0);
}

/* One region of all memory: also of what is mapped later, and with nothing at 0. */
static void implicit(void)
{
	char on_stack[64] = "on the stack", *on_heap = malloc(64), *at = nowhere();
	struct ibv_mr *of_a, *of_b;

	CHECK(!ibv_reg_mr_iova(a.pd, NULL, SIZE_MAX, 4096, ODP) && errno == EINVAL);
	CHECK(!ibv_reg_mr(a.pd, NULL, SIZE_MAX, ODP | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!ibv_reg_mr(a.pd, NULL, SIZE_MAX, REMOTE));
	CHECK(!ibv_reg_mr(a.pd, NULL, PAGE, ODP) && errno == EFAULT);
	CHECK(of_a = ibv_reg_mr(a.pd, NULL, SIZE_MAX, ODP));
	CHECK(of_b = ibv_reg_mr(b.pd, NULL, SIZE_MAX, ODP));
	CHECK(of_a->addr == NULL && of_a->length == SIZE_MAX);
	for (int i = 0; i < kinds; i++) {
		enum ibv_wr_opcode opcode = operations[i].opcode;
		uint32_t length = operations[i].length < 64 ? 8 : 64;
		char *wrong[] = { NULL, (char *)8, at, (char *)0x7ffffffff000, (char *)(1UL << 60),
				  (char *)(1UL << 63), (char *)0xffffffff81000000, (char *)-16L };

		for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
			is(request(opcode, on_heap, of_a, wrong[k], of_b, length), operations[i].refused, i,
			   "wrong there");
			is(request(opcode, wrong[k], of_a, on_heap, of_b, length), IBV_WC_LOC_PROT_ERR, i,
			   "wrong here");
		}
		is(request(opcode, on_stack, of_a, on_heap, of_b, length), IBV_WC_SUCCESS, i, "stack to heap");
		CHECK(opcode != IBV_WR_RDMA_WRITE || strcmp(on_heap, on_stack) == 0);
		map_at(at, SIZE, 'i');
		is(request(opcode, on_heap, of_a, at + PAGE, of_b, length), IBV_WC_SUCCESS, i, "mapped later");
		CHECK(opcode != IBV_WR_RDMA_WRITE || strcmp(at + PAGE, on_heap) == 0);
		CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, at, SIZE,
			     of_b->lkey) == 0);
		CHECK(munmap(at, SIZE) == 0);
	}
	CHECK(ibv_dereg_mr(of_a) == 0 && ibv_dereg_mr(of_b) == 0);
	free(on_heap);
}

/* A region can change between the two kinds. */
static void changes(void)
{
	struct ibv_mr *here, *mr;
	char *own = ordinary(&a, &here), *at = map_at(nowhere(), SIZE, 'c'), *hole = nowhere();

	CHECK(mr = ibv_reg_mr(b.pd, at, SIZE, REMOTE));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, hole, SIZE, 0) == IBV_REREG_MR_ERR_CMD);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, hole, SIZE,
			   ODP) == 0);
	is(request(IBV_WR_RDMA_READ, own, here, hole, mr, SIZE), IBV_WC_REM_ACCESS_ERR, 1, "a hole");
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, REMOTE) == IBV_REREG_MR_ERR_CMD);
	map_at(hole, SIZE, 'h');
	is(request(IBV_WR_RDMA_READ, own, here, hole, mr, SIZE), IBV_WC_SUCCESS, 1, "no hole");
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, REMOTE) == 0);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, hole, SIZE, mr->lkey) == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(here) == 0 && munmap(at, SIZE) == 0 &&
	      munmap(hole, SIZE) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "caps", caps }, { "pages", pages }, { "moves", moves }, { "protection", protection },
		    { "forks", forks }, { "prefetch", prefetch }, { "errors", errors },
		    { "implicit", implicit }, { "changes", changes } };

	CHECK(argc == 3);
	setvbuf(stdout, NULL, _IONBF, 0);
	device = argv[1];
	open_end(&a);
	open_end(&b);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(argv[2], all[i].name) == 0) {
			all[i].run();
			printf("%s: done\n", argv[2]);
			return 0;
		}
	return 2;
}
