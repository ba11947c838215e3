/*
 * Threads sleep in ibv_get_cq_event, ibv_get_async_event and rdma_get_cm_event while another thread
 * destroys the object, or while signals come. The device is the first argument.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

static volatile sig_atomic_t handled;

static void handler(int number)
{
	(void)number;
	handled++;
}

/* The thread functions return the result of the call: 0, or errno. */
static void *get_cq_event(void *channel)
{
	struct ibv_cq *found;
	void *its_context;
	int result = ibv_get_cq_event(channel, &found, &its_context);

	return (void *)(long)(result ? errno : 0);
}

static void *get_async_event(void *context)
{
	struct ibv_async_event event;
	int result = ibv_get_async_event(context, &event);

	return (void *)(long)(result ? errno : 0);
}

static void *get_cm_event(void *channel)
{
	struct rdma_cm_event *event;
	int result = rdma_get_cm_event(channel, &event);

	return (void *)(long)(result ? errno : 0);
}

/* The calls, their objects, and the threads. */
enum { CALLS = 3 };
static void *(*const calls[CALLS])(void *) = { get_cq_event, get_async_event, get_cm_event };
static void *objects[CALLS];
static pthread_t threads[CALLS];

static void fall_asleep(void)
{
	for (int i = 0; i < CALLS; i++)
		CHECK(pthread_create(&threads[i], NULL, calls[i], objects[i]) == 0);
	usleep(50000);
}

static void still_asleep(void)
{
	for (int i = 0; i < CALLS; i++)
		CHECK(pthread_tryjoin_np(threads[i], NULL) == EBUSY);
}

/* Sends SIGUSR1 until its handler has run `times` more times. */
static void interrupt(pthread_t thread, int times)
{
	for (int before = handled; handled < before + times; usleep(1000))
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
}

static void catch(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void *ends(pthread_t thread)
{
	void *result;

	CHECK(pthread_join(thread, &result) == 0);
	return result;
}

/* Sends SIGUSR1 until the thread has ended. Returns what the thread returned. */
static void *ends_by_signal(pthread_t thread)
{
	void *result;

	while (pthread_kill(thread, SIGUSR1) == 0 && pthread_tryjoin_np(thread, &result) == EBUSY)
		usleep(1000);
	return result;
}

int main(int count, char **arguments)
{
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct rdma_event_channel *cm;
	struct ibv_cq *cq;

	CHECK(count > 1);
	context = open_named(arguments[1]);
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)));
	CHECK((cm = rdma_create_event_channel()));
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	objects[0] = channel;
	objects[1] = context;
	objects[2] = cm;

	/* A handler with SA_RESTART does not end the call, whatever handlers other signals have; a handler without it
	 * does. */
	struct sigaction interrupts = { .sa_handler = handler };

	CHECK(sigaction(SIGUSR2, &interrupts, NULL) == 0);
	catch(SA_RESTART);
	fall_asleep();
	for (int i = 0; i < CALLS; i++)
		interrupt(threads[i], 3);
	usleep(50000);
	still_asleep();
	catch(0);
	for (int i = 0; i < CALLS; i++)
		CHECK(ends_by_signal(threads[i]) == (void *)EINTR);

 /* After the objects are destroyed, the threads continue to sleep, can be cancelled, and access no freed memory. */
	fall_asleep();
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	rdma_destroy_event_channel(cm);
 /* Other allocations now use the memory of the destroyed objects. */
	for (int i = 0; i < 100; i++)
		memset(malloc(64 + 16 * i), 0xff, 64 + 16 * i);
	usleep(50000);
	still_asleep();
	for (int i = 0; i < CALLS; i++)
		CHECK(pthread_cancel(threads[i]) == 0 && ends(threads[i]) == PTHREAD_CANCELED);
	puts("all slept well");
	return 0;
}
