/*
 * 200 threads sleep in ibv_get_cq_event and rdma_get_cm_event. For a second no thread of the process wakes, and
 * none uses CPU time. Then each thread gets its event. Usage: asleep DEVICE
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

enum { THREADS = 200 };

static struct sleeper {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct rdma_event_channel *cm;
	struct rdma_cm_id *id;
	pthread_t thread;
} sleepers[THREADS];

static void *sleep_in_cq(void *argument)
{
	struct sleeper *own = argument;
	struct ibv_cq *cq;
	void *its_context;

	CHECK(ibv_get_cq_event(own->channel, &cq, &its_context) == 0 && cq == own->cq);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *sleep_in_cm(void *argument)
{
	struct sleeper *own = argument;
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(own->cm, &event) == 0 && event->id == own->id);
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

/* Returns how often threads of this process, except this one, have gone to sleep. */
static long sleeps(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	long sum = 0, count;

	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		char path[300], line[200];
		FILE *status;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid() || !(status = fopen(path, "r")))
			continue;
		while (fgets(line, sizeof(line), status))
			if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
				sum += count;
		fclose(status);
	}
	closedir(tasks);
	return sum;
}

static long cpu_ns(void)
{
	struct timespec time;

	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

int main(int count, char **arguments)
{
	struct ibv_context *context;
	struct ibv_pd *pd;

	CHECK(count > 1);
	context = open_named(arguments[1]);
	CHECK((pd = ibv_alloc_pd(context)));
	for (int i = 0; i < THREADS; i++) {
		struct sleeper *own = &sleepers[i];

		if (i % 2) {
			CHECK((own->cm = rdma_create_event_channel()));
			CHECK(rdma_create_id(own->cm, &own->id, NULL, RDMA_PS_TCP) == 0);
			CHECK(pthread_create(&own->thread, NULL, sleep_in_cm, own) == 0);
			continue;
		}
		CHECK((own->channel = ibv_create_comp_channel(context)));
		CHECK((own->cq = ibv_create_cq(context, 4, NULL, own->channel, 0)));
		struct ibv_qp_init_attr init = { .send_cq = own->cq, .recv_cq = own->cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
							  .max_send_sge = 1, .max_recv_sge = 1 } };
		CHECK((own->qp = ibv_create_qp(pd, &init)) && ibv_req_notify_cq(own->cq, 0) == 0);
		CHECK(pthread_create(&own->thread, NULL, sleep_in_cq, own) == 0);
	}
	/* Waits until the threads sleep, which takes a while on a busy machine, and a quiet second has passed. */
	long slept = -1, cpu = 0;
	int quiet = 0;

	for (int tries = 0; tries < 60 && !quiet; tries++) {
		long now = sleeps(), before = cpu_ns();

		sleep(1);
		cpu = cpu_ns() - before;
		quiet = sleeps() == now && slept == now;
		slept = sleeps();
	}
	CHECK(quiet);
	/* The CPU time that this thread has used for counting. */
	CHECK(cpu < 100000000);

	for (int i = 0; i < THREADS; i++) {
		struct sleeper *own = &sleepers[i];
		struct ibv_recv_wr *bad, wr = { 0 };
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

		if (i % 2) {
			CHECK(rdma_resolve_addr(own->id, NULL, (struct sockaddr *)&to, 1000) == 0 || errno);
		} else {
			/* Flushes a receive, which produces the event. */
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

			CHECK(ibv_modify_qp(own->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
								    IBV_QP_ACCESS_FLAGS) == 0);
			CHECK(ibv_post_recv(own->qp, &wr, &bad) == 0);
			attr.qp_state = IBV_QPS_ERR;
			CHECK(ibv_modify_qp(own->qp, &attr, IBV_QP_STATE) == 0);
		}
		CHECK(pthread_join(own->thread, NULL) == 0);
	}
	puts("nobody woke for nothing");
	return 0;
}
