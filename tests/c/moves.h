/* Transfers bytes between two ends of this process by each kind of operation, and compares them. */
#include "pair.h"

static void move_bytes(const char *device)
{
	static const enum ibv_wr_opcode operations[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	struct ibv_mr *here, *there;
	char *from, *to;

	open_both(device);
	from = ordinary(&a, &here);
	to = ordinary(&b, &there);
	for (int n = 0; n < 3; n++) {
		for (int i = 0; i < SIZE; i++) {
			from[i] = i * 7 + n;
			to[i] = ~(i * 7 + n);
		}
		is(request(operations[n], from, here, to, there, SIZE), IBV_WC_SUCCESS, operations[n], "all");
		/* A READ has fetched the peer's bytes. */
		CHECK(memcmp(from, to, SIZE) == 0);
		CHECK(from[1] == (char)(operations[n] == IBV_WR_RDMA_READ ? ~(7 + n) : 7 + n));
	}
	CHECK(ibv_dereg_mr(here) == 0 && ibv_dereg_mr(there) == 0);
	for (struct end *e = &a; e; e = e == &a ? &b : NULL)
		CHECK(ibv_destroy_cq(e->cq) == 0 && ibv_dealloc_pd(e->pd) == 0 &&
		      ibv_close_device(e->context) == 0);
	printf("the bytes moved over %s\n", device);
}
