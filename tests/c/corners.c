/*
 * Calls verbs in unusual places: on threads with a small stack, in destructors of thread-local data, and while
 * descriptor 2 is a file with data.
 * Usage: corners DEVICE stack KIB | corners DEVICE key | corners DEVICE local | corners DEVICE data FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connection.h"

enum { LENGTH = 60000, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static const char *device;
static char memory[2][LENGTH];
static struct ibv_context *context;
static struct ibv_pd *pd;
static int done;

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	return qp;
}

/* Posts a WRITE. The bits of `wrong` are flipped in the rkey. */
static void post_write(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t wrong)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	name_remote(&wr, memory[1], mr);
	wr.wr.rdma.rkey ^= wrong;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void *to_error(void *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	usleep(50000);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return NULL;
}

/* Sleeps until a queue pair that another thread stops has flushed a receive. */
static void sleep_for_event(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *of;
	struct ibv_recv_wr wr = { 0 }, *bad;
	pthread_t stops;
	void *none;

	CHECK(channel && cq);
	struct ibv_qp *qp = make(cq), *peer = make(cq);
	connect_qp(qp, peer, 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0 && ibv_req_notify_cq(cq, 0) == 0);
	CHECK(pthread_create(&stops, NULL, to_error, qp) == 0);
	CHECK(ibv_get_cq_event(channel, &of, &none) == 0 && of == cq);
	CHECK(pthread_join(stops, NULL) == 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(next_status(cq) == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* Opens the device, transfers memory, makes a mistake, sleeps, and closes everything. */
static void use_device(void)
{
	context = open_device(device);
	CHECK(pd = ibv_alloc_pd(context));
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, RIGHTS);
	CHECK(cq && mr);
	struct ibv_qp *from = make(cq), *to = make(cq);
	connect_qp(from, to, RIGHTS);
	connect_qp(to, from, RIGHTS);
	for (int i = 0; i < 20; i++) {
		memset(memory[0], i + 1, LENGTH);
		post_write(from, mr, 0);
		CHECK(next_status(cq) == IBV_WC_SUCCESS);
		CHECK(memcmp(memory[0], memory[1], LENGTH) == 0);
	}
	post_write(from, mr, 0x5500);
	CHECK(next_status(cq) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	sleep_for_event();
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	done++;
}

static void *use(void *none)
{
	use_device();
	return none;
}

static void in_destructor(void *none)
{
	(void)none;
	use_device();
}

static void *with_key(void *key)
{
	CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
	use_device();
	return NULL;
}

/* C++ compilers call this for thread_local data. Destructors run in the reverse order of registration. */
int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *dso);
extern void *__dso_handle;

static void *with_local(void *none)
{
	CHECK(__cxa_thread_atexit_impl(in_destructor, NULL, &__dso_handle) == 0);
	use_device();
	return none;
}

static void on_thread(void *(*run)(void *), void *with, size_t stack)
{
	pthread_attr_t attr;
	pthread_t thread;

	CHECK(pthread_attr_init(&attr) == 0);
	CHECK(stack == 0 || pthread_attr_setstacksize(&attr, stack) == 0);
	CHECK(pthread_create(&thread, &attr, run, with) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Descriptor 2 becomes a data file, and then a log. */
static void with_data(const char *path)
{
	struct stat stat;
	int log;

	CHECK(close(2) == 0 && open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) == 2);
	use_device();
	CHECK(fstat(2, &stat) == 0 && stat.st_size == 0);
	CHECK((log = open(path, O_WRONLY | O_APPEND)) > 2 && dup2(log, 2) == 2);
	use_device();
	CHECK(fstat(2, &stat) == 0 && stat.st_size > 0);
}

int main(int argc, char **argv)
{
	pthread_key_t key;

	CHECK(argc > 2);
	device = argv[1];
	if (strcmp(argv[2], "stack") == 0) {
		CHECK(argc == 4);
		on_thread(use, NULL, strtoul(argv[3], NULL, 10) << 10);
	} else if (strcmp(argv[2], "key") == 0) {
		CHECK(pthread_key_create(&key, in_destructor) == 0);
		on_thread(with_key, &key, 0);
	} else if (strcmp(argv[2], "local") == 0) {
		on_thread(with_local, NULL, 0);
	} else {
		CHECK(argc == 4);
		with_data(argv[3]);
	}
	CHECK(done == 1 + (strcmp(argv[2], "stack") != 0));
	puts("fine");
	return 0;
}
