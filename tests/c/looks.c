/*
 * Measures how long an 8-byte WRITE takes to a process whose threads only poll memory and make no
 * calls. Both processes run on one machine and use the device DEVICE, with the GID of index GID; the
 * sender writes its clock COUNT times, GAP microseconds apart. Each process is bound to its CPU, or to
 * none (-). The receiver has THREADS threads, each with a queue pair and a word of memory; the sender
 * writes to them in turn. With FILE, which must not exist yet, this is only one of the two processes;
 * the other is started separately and may be in another network namespace.
 * usage: looks DEVICE GID GAP COUNT SENDER_CPU RECEIVER_CPU [THREADS [FILE sender|receiver]]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

enum { SENDER, RECEIVER, MOST = 1000000, MOST_THREADS = 16, WORD = 64 };

/* The addresses that each process tells the other one. */
struct end {
	union ibv_gid gid;
	uint32_t qpns[MOST_THREADS], rkey;
	uint64_t addr;
	atomic_int state;
};

static struct shared {
	struct end ends[2];
	/* The number of WRITEs that the receiver has seen, and the duration of each in ns. */
	atomic_int seen;
	uint64_t took[MOST];
} *shared;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void bind_to(const char *cpu)
{
	cpu_set_t set;

	if (strcmp(cpu, "-") == 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(atoi(cpu), &set);
	CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

/* Waits until the other process has reached the same state. */
static void meet(struct end *own, struct end *other, int state)
{
	own->state = state;
	for (int tries = 0; other->state < state; tries++) {
		CHECK(tries < 100000);
		usleep(100);
	}
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	CHECK(qp);
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS) == 0);
	return qp;
}

static void connect_qp(struct ibv_qp *qp, int gid, union ibv_gid to, uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = to, .sgid_index = gid, .hop_limit = 64 },
		},
	};
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* A thread of the receiver. It sees each WRITE whose number modulo THREADS is the thread's number. */
struct looker {
	pthread_t thread;
	volatile uint64_t *word;
	int number, threads, count;
};

static void *look(void *arg)
{
	const struct looker *own = arg;
	uint64_t last = 0;

	for (int i = own->number; i < own->count; i += own->threads) {
		uint64_t sent;

		while ((sent = *own->word) == last)
			;
		shared->took[i] = now() - sent;
		last = sent;
		shared->seen = i + 1;
	}
	return NULL;
}

static void look_all(char *memory, int threads, int count)
{
	struct looker lookers[MOST_THREADS];

	for (int i = 0; i < threads; i++) {
		lookers[i] = (struct looker){
			.word = (void *)(memory + i * WORD),
			.number = i,
			.threads = threads,
			.count = count,
		};
		CHECK(pthread_create(&lookers[i].thread, NULL, look, &lookers[i]) == 0);
	}
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(lookers[i].thread, NULL) == 0);
}

static void write_clock(struct ibv_qp **qps, int threads, struct ibv_mr *mr, const struct end *to,
			int count, int gap)
{
	volatile uint64_t *word = mr->addr;
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma.rkey = to->rkey,
	};

	for (int i = 0; i < count; i++) {
		struct ibv_qp *qp = qps[i % threads];
		struct ibv_send_wr *bad;
		struct ibv_wc wc;
		uint64_t began = *word = now();
		int found;

		wr.wr.rdma.remote_addr = to->addr + i % threads * WORD;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		while ((found = ibv_poll_cq(qp->send_cq, 1, &wc)) == 0)
			;
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
		/* The polling thread may run on the same CPU. */
		while (shared->seen <= i)
			sched_yield();
		if (gap >= 1000)
			usleep(gap);
		while (now() - began < gap * 1000ull)
			sched_yield();
	}
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void *map_shared(const char *path)
{
	int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
	int flags = MAP_SHARED | (path ? 0 : MAP_ANONYMOUS);

	CHECK(!path || (fd >= 0 && ftruncate(fd, sizeof(*shared)) == 0));
	return mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, flags, fd, 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 7 || argc == 8 || argc == 10);
	int gid = atoi(argv[2]), gap = atoi(argv[3]), count = atoi(argv[4]);
	int threads = argc > 7 ? atoi(argv[7]) : 1;
	CHECK(gap >= 0 && count > 0 && count <= MOST && threads > 0 && threads <= MOST_THREADS);
	shared = map_shared(argc > 8 ? argv[8] : NULL);
	CHECK(shared != MAP_FAILED);
	pid_t child = -1;
	int side;
	if (argc > 8) {
		side = strcmp(argv[9], "receiver") == 0 ? RECEIVER : SENDER;
	} else {
		child = fork();
		CHECK(child >= 0);
		side = child ? SENDER : RECEIVER;
		CHECK(child || prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	}
	struct end *own = &shared->ends[side], *other = &shared->ends[!side];

	bind_to(argv[5 + side]);
	struct ibv_context *context = open_named(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	void *memory = calloc(1, 4096);
	CHECK(pd && cq && memory);
	struct ibv_mr *mr =
		ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && ibv_query_gid(context, 1, gid, &own->gid) == 0);
	own->addr = (uintptr_t)memory;
	own->rkey = mr->rkey;
	struct ibv_qp *qps[MOST_THREADS];
	for (int i = 0; i < threads; i++) {
		qps[i] = make_qp(pd, cq);
		own->qpns[i] = qps[i]->qp_num;
	}
	meet(own, other, 1);
	for (int i = 0; i < threads; i++)
		connect_qp(qps[i], gid, other->gid, other->qpns[i]);
	meet(own, other, 2);
	if (side == RECEIVER) {
		look_all(memory, threads, count);
		return 0;
	}
	int status;
	write_clock(qps, threads, mr, other, count, gap);
	CHECK(child < 0 || (waitpid(child, &status, 0) == child && status == 0));
	uint64_t sum = 0;
	for (int i = 0; i < count; i++)
		sum += shared->took[i];
	qsort(shared->took, count, sizeof(shared->took[0]), compare);
	printf("%d us apart: median %.2f, average %.2f, 99 %% %.2f, 99.9 %% %.2f us\n", gap,
	       shared->took[count / 2] / 1e3, sum / 1e3 / count,
	       shared->took[count * 99ull / 100] / 1e3, shared->took[count * 999ull / 1000] / 1e3);
	return 0;
}
