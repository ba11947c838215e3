/*
 * Memory regions of DMA buffers: each operation with them, their bounds, the release of mappings, and every
 * mistake. The argument is the device. The buffers come from /dev/udmabuf and, if it exists, from
 * /dev/dma_heap/system. If neither exists, only the mistakes that need no buffer are tested.
 */
#include "pair.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

enum { PAGES = 4 * PAGE, OFFSET = PAGE + 16, LENGTH = 2 * PAGE };

/* An IOVA far from any mapping, with the same offset in its page as the buffer's offset. */
static char *const IOVA = (char *)0x7000000000010;

/* Returns the number of mappings of DMA buffers. */
static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int count = 0;

	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "/dmabuf:") != NULL;
	fclose(maps);
	return count;
}

static int sealed_file(void)
{
	int fd = memfd_create("pages", MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, PAGES) == 0);
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

/* Returns the descriptor of a buffer of PAGES bytes, or -1. */
static int of_udmabuf(int memfd)
{
	struct udmabuf_create create = { .memfd = memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = PAGES };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;

	if (device < 0)
		return -1;
	CHECK((fd = ioctl(device, UDMABUF_CREATE, &create)) >= 0);
	close(device);
	return fd;
}

static int of_heap(void)
{
	struct dma_heap_allocation_data data = { .len = PAGES, .fd_flags = O_RDWR | O_CLOEXEC };
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);

	if (heap < 0)
		return -1;
	CHECK(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data) == 0);
	close(heap);
	return data.fd;
}

static struct ibv_mr *reg(int fd, uint64_t offset, size_t length, void *iova, int access)
{
	return ibv_reg_dmabuf_mr(b.pd, offset, length, (uintptr_t)iova, fd, access);
}

/* Registers with `ibv_reg_mr_ex`, which the installed header may not declare yet. */
static void by_attributes(int fd, char *bytes)
{
	enum { IOVA_BIT = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16 };
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, void *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
	struct {
		size_t length;
		int access;
		uint64_t comp_mask, iova;
		void *addr;
		int fd;
		uint64_t fd_offset;
		void *dmah, *buf;
	} attr = { .length = 64, .access = REMOTE, .iova = (uintptr_t)IOVA, .fd = fd, .fd_offset = OFFSET };
	const uint64_t wrong[] = { FD, FD_OFFSET | IOVA_BIT, FD | FD_OFFSET, FD | IOVA_BIT,
				   FD | FD_OFFSET | IOVA_BIT | ADDR };
	struct ibv_mr *own, *remote;
	char *at = ordinary(&a, &own);

	CHECK(reg_mr_ex);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		attr.comp_mask = wrong[i];
		CHECK(!reg_mr_ex(b.pd, &attr) && errno == EINVAL);
	}
	attr.comp_mask = FD | FD_OFFSET | IOVA_BIT | DMAH;
	CHECK(!reg_mr_ex(b.pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = FD | FD_OFFSET | IOVA_BIT;
	if (!bytes) {
		CHECK(!reg_mr_ex(b.pd, &attr) && errno == EINVAL);
	} else {
		CHECK((remote = reg_mr_ex(b.pd, &attr)) && remote->addr == (void *)OFFSET);
		strcpy(at, "by attributes");
		is(request(IBV_WR_RDMA_WRITE, at, own, IOVA, remote, 64), IBV_WC_SUCCESS, 0, "a DMA buffer there");
		CHECK(strcmp(bytes + OFFSET, "by attributes") == 0 && ibv_dereg_mr(remote) == 0);
	}
	CHECK(ibv_dereg_mr(own) == 0);
}

/* Executes each operation with a buffer at the remote end and at the local end. `bytes` is its start. */
static void requests(int fd, char *bytes)
{
	struct ibv_mr *own, *remote, *here;
	char *at = ordinary(&a, &own);
	int before = mappings();

	memset(bytes, 'x', PAGES);
	CHECK(remote = reg(fd, OFFSET, LENGTH, IOVA, REMOTE));
	CHECK(remote->addr == (void *)OFFSET && remote->length == LENGTH && remote->pd == b.pd && remote->lkey);
	strcpy(at, "by WRITE");
	is(request(IBV_WR_RDMA_WRITE, at, own, IOVA + 8, remote, 64), IBV_WC_SUCCESS, 0, "a DMA buffer there");
	CHECK(strcmp(bytes + OFFSET + 8, "by WRITE") == 0);
	CHECK(bytes[OFFSET + 7] == 'x' && bytes[OFFSET + 8 + 64] == 'x');
	is(request(IBV_WR_RDMA_READ, at + PAGE, own, IOVA + 8, remote, 64), IBV_WC_SUCCESS, 1, "a DMA buffer there");
	CHECK(strcmp(at + PAGE, "by WRITE") == 0);
	strcpy(at, "by SEND");
	is(request(IBV_WR_SEND, at, own, IOVA, remote, LENGTH), IBV_WC_SUCCESS, 2, "a DMA buffer there");
	CHECK(strcmp(bytes + OFFSET, "by SEND") == 0 && bytes[OFFSET + LENGTH] == 'x');
	*(uint64_t *)(bytes + OFFSET + 16) = 41;
	is(request(IBV_WR_ATOMIC_FETCH_AND_ADD, at, own, IOVA + 16, remote, 8), IBV_WC_SUCCESS, 3, "a DMA buffer there");
	CHECK(*(uint64_t *)at == 41 && *(uint64_t *)(bytes + OFFSET + 16) == 42);
	is(request(IBV_WR_RDMA_WRITE, at, own, IOVA - 1, remote, 8), IBV_WC_REM_ACCESS_ERR, 0, "before it");
	is(request(IBV_WR_RDMA_WRITE, at, own, IOVA + LENGTH - 4, remote, 8), IBV_WC_REM_ACCESS_ERR, 0, "behind it");
	CHECK(ibv_rereg_mr(remote, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT &&
	      errno == EINVAL);
	CHECK(ibv_dereg_mr(remote) == 0 && mappings() == before);

	CHECK(remote = reg(fd, 0, PAGES, NULL, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING));
	is(request(IBV_WR_RDMA_READ, at, own, (void *)OFFSET, remote, 8), IBV_WC_SUCCESS, 1, "read-only");
	CHECK(strcmp(at, "by SEND") == 0);
	is(request(IBV_WR_RDMA_WRITE, at, own, (void *)OFFSET, remote, 8), IBV_WC_REM_ACCESS_ERR, 0, "read-only");

	CHECK(here = ibv_reg_dmabuf_mr(a.pd, 0, PAGES, 0, fd, IBV_ACCESS_LOCAL_WRITE));
	strcpy(bytes, "from a DMA buffer");
	is(request(IBV_WR_RDMA_READ, (void *)PAGE, here, NULL, remote, 64), IBV_WC_SUCCESS, 1, "a DMA buffer here");
	CHECK(strcmp(bytes + PAGE, "from a DMA buffer") == 0);
	CHECK(ibv_dereg_mr(here) == 0 && ibv_dereg_mr(remote) == 0 && mappings() == before);

	CHECK(!reg(fd, 0, PAGES + 1, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, PAGE, PAGES, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, UINT64_MAX & ~(PAGE - 1ul), PAGES, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, 0, SIZE_MAX, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, 0, 0, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, 16, 16, NULL, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, 0, PAGES, NULL, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!reg(fd, 0, PAGES, (void *)-PAGE, REMOTE) && errno == EINVAL);
	CHECK(!reg(fd, 0, PAGES, NULL, REMOTE | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(!reg(fd, 0, PAGES, NULL, REMOTE | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!reg(fd, 0, PAGES, NULL, REMOTE | IBV_ACCESS_MW_BIND) && errno == EINVAL);
	by_attributes(fd, bytes);
	CHECK(mappings() == before && ibv_dereg_mr(own) == 0);
}

/* A region keeps its buffer when the descriptor is closed. */
static void outlives(int memfd, char *bytes)
{
	struct ibv_mr *own, *remote;
	char *at = ordinary(&a, &own);
	int fd = of_udmabuf(memfd);

	CHECK(remote = reg(fd, 0, PAGES, NULL, REMOTE));
	CHECK(close(fd) == 0);
	strcpy(at, "closed");
	is(request(IBV_WR_RDMA_WRITE, at, own, NULL, remote, 64), IBV_WC_SUCCESS, 0, "a closed descriptor");
	CHECK(strcmp(bytes, "closed") == 0);
	CHECK(!reg(fd, 0, PAGES, NULL, REMOTE) && errno == EBADF);
	CHECK(ibv_dereg_mr(remote) == 0 && ibv_dereg_mr(own) == 0);
}

/* Descriptors that are not DMA buffers are refused. */
static void others(int memfd)
{
	int null = open("/dev/null", O_RDWR), ends[2];

	CHECK(!reg(memfd, 0, PAGES, NULL, REMOTE) && errno == EINVAL);
	CHECK(null >= 0 && !reg(null, 0, PAGES, NULL, REMOTE) && errno == EINVAL);
	CHECK(pipe(ends) == 0 && !reg(ends[0], 0, PAGES, NULL, REMOTE) && errno == EINVAL);
	by_attributes(memfd, NULL);
	CHECK(!reg(-1, 0, PAGES, NULL, REMOTE) && errno == EBADF);
	CHECK(!reg(1 << 20, 0, PAGES, NULL, REMOTE) && errno == EBADF);
	CHECK(close(null) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int argc, char **argv)
{
	int memfd, fd;
	char *bytes;

	CHECK(argc == 2);
	setvbuf(stdout, NULL, _IONBF, 0);
	open_both(argv[1]);
	memfd = sealed_file();
	others(memfd);
	printf("what is no DMA buffer: done\n");
	if ((fd = of_udmabuf(memfd)) >= 0) {
		CHECK((bytes = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0)) != MAP_FAILED);
		requests(fd, bytes);
		CHECK(close(fd) == 0);
		outlives(memfd, bytes);
		printf("udmabuf: done\n");
	}
	if ((fd = of_heap()) >= 0) {
		CHECK((bytes = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
		requests(fd, bytes);
		CHECK(munmap(bytes, PAGES) == 0 && mappings() == 0);
		printf("heap: done\n");
	}
	return 0;
}
