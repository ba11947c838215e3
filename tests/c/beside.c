/*
 * A device of the host's libibverbs and one of rxe in one program (rxe run --with-host-devices).
 * Arguments: the names of both, the host's first.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_context *context[2];
	struct ibv_pd *pd[2];
	struct ibv_cq *cq[2];
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	static char memory[4096];

	CHECK(argc == 3 && ibv_fork_init() == 0);
	for (int i = 0; i < 2; i++) {
		context[i] = open_named(argv[1 + i]);
		CHECK((pd[i] = ibv_alloc_pd(context[i])));
		CHECK((cq[i] = ibv_create_cq(context[i], 4, NULL, NULL, 0)));
		CHECK((mr = ibv_reg_mr(pd[i], memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
		CHECK(ibv_dereg_mr(mr) == 0);
		attr.send_cq = attr.recv_cq = cq[i];
		CHECK((qp = ibv_create_qp(pd[i], &attr)));
		CHECK(ibv_destroy_qp(qp) == 0);
	}

	/* A queue pair of rxe cannot be created with a completion queue of the host. */
	attr.send_cq = attr.recv_cq = cq[0];
	CHECK(!ibv_create_qp(pd[1], &attr) && errno == EINVAL);
	/* Only the host's library can refuse this call. */
	CHECK(!ibv_import_device(context[0]->cmd_fd) && errno == EOPNOTSUPP);

	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_cq(cq[i]) && !ibv_dealloc_pd(pd[i]) && !ibv_close_device(context[i]));
	printf("beside: done\n");
	return 0;
}
