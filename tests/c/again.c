/*
 * A program with an open device calls exec from one of several threads. The new program must inherit
 * nothing of the device. The device is the first argument; the second argument `again` marks the program
 * after exec.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"

static void *become(void *argv)
{
	char **own = argv;
	char *again[] = { own[0], own[1], "again", NULL };

	execv("/proc/self/exe", again);
	return NULL;
}

/* Sleeps in a call of the library. */
static void *sleep_in(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

int main(int argc, char **argv)
{
	int before = entries("/proc/self/fd");

	CHECK(argc > 1);
	struct ibv_context *context = open_named(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, channel, 0);
	CHECK(pd && channel && cq);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	printf("block %u, descriptors %d\n", qp->qp_num >> 16, before);
	fflush(stdout);
	if (argc > 2)
		return 0;

	pthread_t sleeper, thread;
	CHECK(pthread_create(&sleeper, NULL, sleep_in, channel) == 0);
	CHECK(pthread_create(&thread, NULL, become, argv) == 0);
	pthread_join(thread, NULL);
	return 1;
}
