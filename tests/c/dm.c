/*
 * Device memory: allocation, copies to and from it, its use by requests, and every mistake. The argument is
 * the device. The two ends are two contexts of this process.
 */
#include "pair.h"

enum { ACCESS = REMOTE | IBV_ACCESS_ZERO_BASED };

static struct ibv_dm *alloc(struct end *e, size_t length)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = 3 };

	return ibv_alloc_dm(e->context, &attr);
}

/* The allocated memory never exceeds the size that the device reports. */
static void sizes(void)
{
	struct ibv_alloc_dm_attr wrong = { .length = 64, .comp_mask = 1 }, far = { .length = 64, .log_align_req = 40 };
	struct ibv_device_attr_ex attr;
	struct ibv_dm *half, *other;

	CHECK(ibv_query_device_ex(a.context, NULL, &attr) == 0 && attr.max_dm_size >= 4096);
	CHECK(!alloc(&a, attr.max_dm_size + 1) && errno == ENOMEM);
	CHECK(!alloc(&a, SIZE_MAX) && errno == ENOMEM);
	CHECK(!alloc(&a, 0) && errno == EINVAL);
	CHECK(!ibv_alloc_dm(a.context, &wrong) && errno == EINVAL);
	CHECK(!ibv_alloc_dm(a.context, &far) && errno == EINVAL);
	CHECK(half = alloc(&a, attr.max_dm_size / 2));
	CHECK(half->context == a.context && half->comp_mask == 0);
	CHECK(!alloc(&a, attr.max_dm_size / 2 + 1) && errno == ENOMEM);
	CHECK(other = alloc(&a, attr.max_dm_size / 2));
	CHECK(ibv_free_dm(half) == 0 && ibv_free_dm(other) == 0);
	CHECK((half = alloc(&a, attr.max_dm_size)) && ibv_free_dm(half) == 0);
}

static void copies(void)
{
	struct ibv_dm *dm = alloc(&a, 64);
	char bytes[64] = "to device memory", back[64];

	CHECK(dm && ibv_memcpy_from_dm(back, dm, 0, 64) == 0);
	for (int i = 0; i < 64; i++)
		CHECK(back[i] == 0);
	CHECK(ibv_memcpy_to_dm(dm, 4, bytes, 60) == 0);
	CHECK(ibv_memcpy_from_dm(back, dm, 8, 12) == 0 && memcmp(back, bytes + 4, 12) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 8, bytes, 60) == EFAULT && errno == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, UINT64_MAX - 3, bytes, 4) == EFAULT);
	CHECK(ibv_memcpy_from_dm(back, dm, 4, 64) == EFAULT);
	/* Adapters copy whole words, so unaligned copies are refused. */
	CHECK(ibv_memcpy_to_dm(dm, 1, bytes, 4) == EINVAL && ibv_memcpy_to_dm(dm, 4, bytes, 3) == EINVAL);
	CHECK(ibv_memcpy_from_dm(back, dm, 1, 4) == EINVAL && ibv_memcpy_from_dm(back, dm, 4, 3) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 64, bytes, 0) == 0 && ibv_memcpy_from_dm(NULL, dm, 64, 0) == 0);
	dm->handle ^= 1 << 30;
	CHECK(ibv_free_dm(dm) == ENOENT);
	dm->handle ^= 1 << 30;
	CHECK(ibv_free_dm(dm) == 0);
}

/* Executes each operation to and from the second half of device memory. */
static void requests(void)
{
	struct ibv_dm *dm = alloc(&b, 2 * PAGE), *local = alloc(&a, PAGE);
	struct ibv_mr *own, *remote, *here;
	char *at = ordinary(&a, &own), back[64];
	uint64_t word;

	CHECK(dm && local && (remote = ibv_reg_dm_mr(b.pd, dm, PAGE, PAGE, ACCESS)));
	CHECK(remote->addr == NULL && remote->length == PAGE && remote->lkey);
	strcpy(at, "by WRITE");
	is(request(IBV_WR_RDMA_WRITE, at, own, (void *)8, remote, 64), IBV_WC_SUCCESS, 0, "device memory there");
	CHECK(ibv_memcpy_from_dm(back, dm, PAGE + 8, 64) == 0 && strcmp(back, "by WRITE") == 0);
	is(request(IBV_WR_RDMA_READ, at + PAGE, own, (void *)8, remote, 64), IBV_WC_SUCCESS, 1, "device memory there");
	CHECK(strcmp(at + PAGE, "by WRITE") == 0);
	strcpy(at, "by SEND");
	is(request(IBV_WR_SEND, at, own, NULL, remote, 64), IBV_WC_SUCCESS, 2, "device memory there");
	CHECK(ibv_memcpy_from_dm(back, dm, PAGE, 64) == 0 && strcmp(back, "by SEND") == 0);
	word = 41;
	CHECK(ibv_memcpy_to_dm(dm, PAGE + 16, &word, 8) == 0);
	is(request(IBV_WR_ATOMIC_FETCH_AND_ADD, at, own, (void *)16, remote, 8), IBV_WC_SUCCESS, 3, "device memory there");
	CHECK(*(uint64_t *)at == 41 && ibv_memcpy_from_dm(&word, dm, PAGE + 16, 8) == 0 && word == 42);
	is(request(IBV_WR_RDMA_WRITE, at, own, (void *)(PAGE - 8), remote, 16), IBV_WC_REM_ACCESS_ERR, 0, "beyond");

	CHECK(here = ibv_reg_dm_mr(a.pd, local, 0, PAGE, ACCESS));
	CHECK(ibv_memcpy_to_dm(local, 0, "from device memory", 20) == 0);
	is(request(IBV_WR_RDMA_WRITE, NULL, here, (void *)0, remote, 20), IBV_WC_SUCCESS, 0, "device memory here");
	CHECK(ibv_memcpy_from_dm(back, dm, PAGE, 20) == 0 && strcmp(back, "from device memory") == 0);

	CHECK(ibv_free_dm(dm) == EBUSY && errno == EBUSY);
	CHECK(ibv_rereg_mr(remote, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	is(request(IBV_WR_RDMA_WRITE, at, own, (void *)0, remote, 16), IBV_WC_REM_ACCESS_ERR, 0, "without the right");
	CHECK(ibv_rereg_mr(remote, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS) == 0);
	is(request(IBV_WR_RDMA_WRITE, at, own, (void *)0, remote, 16), IBV_WC_SUCCESS, 0, "with the right");
	CHECK(ibv_dereg_mr(remote) == 0 && ibv_free_dm(dm) == 0);
	CHECK(ibv_dereg_mr(here) == 0 && ibv_free_dm(local) == 0 && ibv_dereg_mr(own) == 0);
}

static void mistakes(void)
{
	struct ibv_dm *dm = alloc(&a, PAGE);

	CHECK(dm && !ibv_reg_dm_mr(a.pd, dm, 0, PAGE, REMOTE) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(a.pd, dm, 0, PAGE, ACCESS | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(a.pd, dm, 8, PAGE, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(a.pd, dm, UINT64_MAX, 2, ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(b.pd, dm, 0, PAGE, ACCESS) && errno == EINVAL);
	CHECK(ibv_free_dm(dm) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	setvbuf(stdout, NULL, _IONBF, 0);
	open_both(argv[1]);
	sizes();
	copies();
	requests();
	mistakes();
	printf("device memory: done\n");
	return 0;
}
