/*
 * Threads that sleep in ibv_get_cq_event and ibv_get_async_event: while another thread destroys what
 * they sleep in, and when signals come. The device is the first argument.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			printf("%s:%d: %s (errno %d)\n", __func__, __LINE__, #what, errno);        \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static volatile sig_atomic_t handled;

static void handler(int number)
{
	(void)number;
	handled++;
}

/* What a thread's call returned: 0, or errno. */
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

/* Sends SIGUSR1 until its handler has run `times` times more. */
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

/* Sends SIGUSR1 until the thread has ended; what it returned. */
static void *ends_by_signal(pthread_t thread)
{
	void *result;

	while (pthread_kill(thread, SIGUSR1) == 0 && pthread_tryjoin_np(thread, &result) == EBUSY)
		usleep(1000);
	return result;
}

int main(int count, char **arguments)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *device = NULL;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	pthread_t thread, other;

	CHECK(list && count > 1);
	for (int i = 0; list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), arguments[1]) == 0)
			device = list[i];
	CHECK(device && (context = ibv_open_device(device)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)));

	/* A handler with SA_RESTART changes nothing; one without ends the call. */
	catch(SA_RESTART);
	CHECK(pthread_create(&thread, NULL, get_cq_event, channel) == 0);
	CHECK(pthread_create(&other, NULL, get_async_event, context) == 0);
	usleep(50000);
	interrupt(thread, 3);
	interrupt(other, 3);
	usleep(50000);
	CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY && pthread_tryjoin_np(other, NULL) == EBUSY);
	catch(0);
	CHECK(ends_by_signal(thread) == (void *)EINTR && ends_by_signal(other) == (void *)EINTR);

	/* What they sleep in is destroyed: they sleep on, can be cancelled, and touch nothing. */
	CHECK(pthread_create(&thread, NULL, get_cq_event, channel) == 0);
	CHECK(pthread_create(&other, NULL, get_async_event, context) == 0);
	usleep(50000);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	/* Whose memory that was now belongs to others. */
	for (int i = 0; i < 100; i++)
		memset(malloc(64 + 16 * i), 0xff, 64 + 16 * i);
	usleep(500000);
	CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY && pthread_tryjoin_np(other, NULL) == EBUSY);
	CHECK(pthread_cancel(thread) == 0 && ends(thread) == PTHREAD_CANCELED);
	CHECK(pthread_cancel(other) == 0 && ends(other) == PTHREAD_CANCELED);
	ibv_free_device_list(list);
	puts("all slept well");
	return 0;
}
