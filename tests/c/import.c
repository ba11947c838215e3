/*
 * Imports a device and its objects, which works only in the process that has opened the device. The
 * argument is the device.
 */
#include "pair.h"

#include <fcntl.h>
#include <sys/wait.h>

static void objects(void)
{
	struct ibv_dm *dm, *dm_again;
	struct ibv_context *again;
	struct ibv_alloc_dm_attr attr = { .length = PAGE };
	struct ibv_mr *mr, *mr_again, *own;
	struct ibv_pd *pd, *pd_again;
	struct end original = b;
	char *to = map_at(nowhere(), SIZE, 0), *from = ordinary(&a, &own), word[4] = "dm";
	int fd = dup(b.context->cmd_fd);

	CHECK(fd >= 0 && (again = ibv_import_device(fd)));
	CHECK((pd = ibv_alloc_pd(b.context)) && (mr = ibv_reg_mr(pd, to, SIZE, REMOTE)));
	CHECK(dm = ibv_alloc_dm(b.context, &attr));
	CHECK(pd_again = ibv_import_pd(again, pd->handle));
	CHECK(mr_again = ibv_import_mr(pd_again, mr->handle));
	CHECK(mr_again->rkey == mr->rkey && mr_again->lkey == mr->lkey);
	CHECK(dm_again = ibv_import_dm(again, dm->handle));
	CHECK(ibv_memcpy_to_dm(dm, 0, word, 4) == 0);
	memset(word, 0, 4);
	CHECK(ibv_memcpy_from_dm(word, dm_again, 0, 4) == 0 && strcmp(word, "dm") == 0);

	/* A queue pair that was created with imported objects. */
	b.context = again;
	b.pd = pd_again;
	strcpy(from, "into imported memory");
	is(request(IBV_WR_RDMA_WRITE, from, own, to, mr_again, 64), IBV_WC_SUCCESS, 0, "imported");
	CHECK(strcmp(to, "into imported memory") == 0);

	/* The handle of an object of another kind, and handles of no object. */
	CHECK(!ibv_import_pd(again, mr->handle) && errno == ENOENT);
	CHECK(!ibv_import_mr(pd_again, pd->handle) && errno == ENOENT);
	CHECK(!ibv_import_dm(again, 0x7fffffff) && errno == ENOENT);
	CHECK(!ibv_import_mr(pd_again, own->handle) && errno == ENOENT);

	/* An object that one user destroys has ended for the other user too, who may only unimport it. */
	CHECK(ibv_dereg_mr(mr) == 0);
	is(request(IBV_WR_RDMA_WRITE, from, own, to, mr_again, 64), IBV_WC_REM_ACCESS_ERR, 0, "deregistered");
	CHECK(ibv_dereg_mr(mr_again) == ENOENT);
	CHECK(!ibv_import_mr(pd_again, mr_again->handle) && errno == ENOENT);
	ibv_unimport_mr(mr_again);

	/* Unimporting destroys nothing. */
	CHECK(mr = ibv_reg_mr(pd, to, SIZE, REMOTE));
	CHECK(mr_again = ibv_import_mr(pd_again, mr->handle));
	ibv_unimport_mr(mr_again);
	is(request(IBV_WR_RDMA_WRITE, from, own, to, mr, 64), IBV_WC_SUCCESS, 0, "unimported");
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_dereg_mr(mr) == 0);
	ibv_unimport_dm(dm_again);
	CHECK(ibv_free_dm(dm) == 0 && ibv_dealloc_pd(pd) == 0);
	ibv_unimport_pd(pd_again);

	/* Each user closes the context. The last close of an import closes the descriptor. */
	CHECK(ibv_close_device(again) == 0);
	CHECK(fcntl(fd, F_GETFD) == -1);
	b = original;
	CHECK((mr = ibv_reg_mr(b.pd, to, SIZE, REMOTE)));
	is(request(IBV_WR_RDMA_WRITE, from, own, to, mr, 64), IBV_WC_SUCCESS, 0, "after the import");
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(own) == 0);
}

/* The command descriptors of two devices differ, and other descriptors cannot be imported. */
static void descriptors(void)
{
	int of_a = dup(a.context->cmd_fd), of_b = dup(b.context->cmd_fd), file = open("/dev/null", O_RDWR);
	struct ibv_context *one, *other;

	CHECK((one = ibv_import_device(of_a)) && (other = ibv_import_device(of_b)));
	CHECK(one->async_fd == a.context->async_fd && other->async_fd == b.context->async_fd);
	CHECK(ibv_close_device(one) == 0 && ibv_close_device(other) == 0);
	CHECK(!ibv_import_device(file) && errno == EOPNOTSUPP && fcntl(file, F_GETFD) >= 0);
	CHECK(!ibv_import_device(-1) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_device(of_a) && errno == EOPNOTSUPP); /* closed */
	/* If the descriptor was not duplicated, closing the import leaves it open. */
	CHECK((one = ibv_import_device(a.context->cmd_fd)) && ibv_close_device(one) == 0);
	CHECK(fcntl(a.context->cmd_fd, F_GETFD) >= 0);
}

/* Another process inherits the descriptor, but not the device. */
static void other_process(void)
{
	int status, fd = dup(a.context->cmd_fd);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(!ibv_import_device(fd) && errno == EOPNOTSUPP);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	setvbuf(stdout, NULL, _IONBF, 0);
	open_both(argv[1]);
	objects();
	descriptors();
	other_process();
	printf("imports: done\n");
	return 0;
}
