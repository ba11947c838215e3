/*
 * A program that exits as soon as it has received a message. Its peer, which forks it, must learn that the
 * message has arrived. Usage: ends DEVICE HOW ROUNDS [NAMESPACE DEVICE]. After ROUNDS of ping-pong the peer
 * sends one more message; HOW says how the receiver then exits. With a network namespace the receiver is
 * another host: only then may its acknowledgements be delayed.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

extern char **environ;

struct endpoint {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[64];
/* The ID of the completion that was awaited. */
static uint64_t last_id;

enum { LAST = 99 };

static void set_up(const char *name, int line)
{
	struct ibv_context *context = open_named(name);
	struct endpoint own = { 0 }, peer;
	int index = -1;

	for (int i = 0; i < 16 && index < 0; i++)
		if (ibv_query_gid(context, 1, i, &own.gid) == 0 && own.gid.raw[10] == 0xff &&
		    own.gid.raw[11] == 0xff && own.gid.raw[0] == 0)
			index = i;
	CHECK(index >= 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(qp = ibv_create_qp(pd, &init));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	own.qpn = qp->qp_num;
	CHECK(send(line, &own, sizeof own, 0) == sizeof own);
	CHECK(recv(line, &peer, sizeof peer, MSG_WAITALL) == sizeof peer);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer.gid, .sgid_index = index, .hop_limit = 64 } } };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	for (int i = 0; i < 8; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	char byte = 0;
	CHECK(send(line, &byte, 1, 0) == 1 && recv(line, &byte, 1, 0) == 1);
}

static void post_send(uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 32, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Polls until a message has come, or a request of this process has ended. */
static void await(enum ibv_wc_opcode what)
{
	struct ibv_wc wc;
	do {
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
		if (wc.status != IBV_WC_SUCCESS) {
			printf("%s: %s\n", what == IBV_WC_RECV ? "receive" : "send",
			       ibv_wc_status_str(wc.status));
			fflush(stdout);
			exit(1);
		}
	} while (wc.opcode != what);
	last_id = wc.wr_id;
}

static void *busy(void *none)
{
	for (;;)
		sched_yield();
	return none;
}

/* Polls the device in an endless loop. */
static void *polls(void *other)
{
	struct ibv_wc wc;
	for (;;)
		ibv_poll_cq(other, 1, &wc);
	return other;
}

static void start_polling(void)
{
	pthread_t thread;
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *other = ibv_create_cq(cq->context, 1, NULL, NULL, 0);
		CHECK(other);
		CHECK(pthread_create(&thread, NULL, polls, other) == 0);
	}
}

static void on_signal(int signal)
{
	(void)signal;
	_exit(0);
}

static int end(const char *how)
{
	pthread_t thread;

	if (strcmp(how, "exit") == 0)
		exit(0);
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	if (strcmp(how, "quick_exit") == 0)
		quick_exit(0);
	if (strcmp(how, "abort") == 0)
		abort();
	if (strcmp(how, "handler") == 0) {
		signal(SIGTERM, on_signal);
		raise(SIGTERM);
	}
	if (strcmp(how, "threads") == 0) {
		CHECK(pthread_create(&thread, NULL, busy, NULL) == 0);
		_exit(0);
	}
	if (strcmp(how, "polling-exit") == 0)
		exit(0);
	if (strcmp(how, "polling-_exit") == 0)
		_exit(0);
	if (strcmp(how, "execve") == 0)
		execve("/bin/true", (char *[]){ "true", NULL }, environ);
	if (strcmp(how, "execl") == 0)
		execl("/bin/sh", "sh", "-c", "[ $# = 6 ]", "sh", "1", "2", "3", "4", "5", "6", NULL);
	if (strcmp(how, "execlp") == 0)
		execlp("true", "true", NULL);
	if (strcmp(how, "SIGKILL") == 0)
		kill(getpid(), SIGKILL);
	if (strcmp(how, "SIGTERM") == 0)
		kill(getpid(), SIGTERM);
	CHECK(strcmp(how, "return") == 0);
	return 0;
}

int main(int argc, char **argv)
{
	int lines[2], rounds, status;

	CHECK(argc == 4 || argc == 6);
	rounds = atoi(argv[3]);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
 /* Neither process has opened anything yet. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0 && argc == 6) {
		int namespace = open(argv[4], O_RDONLY | O_CLOEXEC);
		CHECK(namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0);
	}
	set_up(argv[child == 0 && argc == 6 ? 5 : 1], lines[child == 0]);
	if (child == 0 && strncmp(argv[2], "polling", 7) == 0)
		start_polling();
	for (int i = 0; i < rounds; i++) {
		if (child)
			post_send(0);
		await(IBV_WC_RECV);
		if (!child)
			post_send(0);
		post_recv();
	}
	if (child == 0) {
		await(IBV_WC_RECV);
		return end(argv[2]);
	}
	/* Completions of sends before this one may still come. */
	post_send(LAST);
	do
		await(IBV_WC_SEND);
	while (last_id != LAST);
	CHECK(waitpid(child, &status, 0) == child);
	printf("acknowledged\n");
	return 0;
}
