/*
 * On-demand paging: memory that is mapped, moved, protected and unmapped while it is registered. The
 * arguments are the device and the test. The two ends are two contexts of this process.
 */
#include "pair.h"

#include <sys/wait.h>

enum { ODP = REMOTE | IBV_ACCESS_ON_DEMAND };

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

/* Pages are mapped after the registration and unmapped before the deregistration: at either end, for each operation. */
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
	/* Only the last page of the target is missing. */
	map_at(at, PAGE, 1);
	is(request(IBV_WR_RDMA_WRITE, from, here, at, of_b, 2 * PAGE), IBV_WC_REM_ACCESS_ERR, 0, "half mapped");
	is(request(IBV_WR_RDMA_WRITE, from, here, at, of_b, PAGE), IBV_WC_SUCCESS, 0, "first page");
	CHECK(munmap(at, PAGE) == 0);
	CHECK(ibv_dereg_mr(of_a) == 0 && ibv_dereg_mr(of_b) == 0);
	CHECK(ibv_dereg_mr(here) == 0 && ibv_dereg_mr(there) == 0);
}

/* A request accesses the memory that is mapped at that time: mapped again, moved, and moved back. */
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
	/* The kernel may discard these pages, and replaces them by zeros. */
	CHECK(madvise(at, SIZE, MADV_DONTNEED) == 0);
	is(request(IBV_WR_RDMA_READ, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 0, "after MADV_DONTNEED");
	CHECK(own[0] == 0 && own[SIZE - 1] == 0);
	memset(own, 'w', SIZE);
	is(request(IBV_WR_RDMA_WRITE, own, here, at, mr, SIZE), IBV_WC_SUCCESS, 0, "WRITE");
	CHECK(at[0] == 'w' && at[SIZE - 1] == 'w');
	CHECK(munmap(at, SIZE) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(here) == 0);
}

/* Peers can read a read-only page, but can write it only after its protection was changed. */
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

/* After a fork, a peer's writes arrive in the parent's pages and not in the child's copies. */
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

/* Returns the number of present pages. */
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
	/* The pages are not mapped: an error only if the call waits for them. */
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
	/* With and without waiting for the pages. */
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

/* One region of the whole address space: it includes memory that is mapped later; address 0 is not mapped. */
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

/* Re-registration can turn on-demand paging on and off. */
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
	open_both(argv[1]);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(argv[2], all[i].name) == 0) {
			all[i].run();
			printf("%s: done\n", argv[2]);
			return 0;
		}
	return 2;
}
