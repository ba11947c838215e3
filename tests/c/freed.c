/*
 * Mistakes that valgrind and AddressSanitizer must find: the program has freed memory, but still sends it or
 * lets its peer write to it. Arguments: the device, and `send`, `write` or `right`, which makes no mistake.
 */
#include "pair.h"

static struct ibv_mr *region(struct end *e, char **at)
{
	struct ibv_mr *mr;

	CHECK(*at = malloc(SIZE));
	memset(*at, 'a', SIZE);
	CHECK(mr = ibv_reg_mr(e->pd, *at, SIZE, REMOTE));
	return mr;
}

static void close_end(struct end *e)
{
	CHECK(ibv_destroy_cq(e->cq) == 0 && ibv_dealloc_pd(e->pd) == 0);
	CHECK(ibv_close_device(e->context) == 0);
}

int main(int count, char **arguments)
{
	struct ibv_mr *here, *there;
	char *from, *to;
	int sends, writes;

	CHECK(count > 2);
	sends = !strcmp(arguments[2], "send");
	writes = !strcmp(arguments[2], "write");
	open_both(arguments[1]);
	here = region(&a, &from);
	there = region(&b, &to);
	if (sends)
		free(from);
	if (writes)
		free(to);
	is(request(sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, from, here, to, there, 8), IBV_WC_SUCCESS, 0,
	   arguments[2]);
	CHECK(ibv_dereg_mr(here) == 0 && ibv_dereg_mr(there) == 0);
	if (!sends)
		free(from);
	if (!writes)
		free(to);
	close_end(&a);
	close_end(&b);
	puts("done");
	return 0;
}
