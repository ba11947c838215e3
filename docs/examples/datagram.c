/*
 * Two queue pairs exchange datagrams (UD). Both are in this program, so they need not exchange their
 * numbers over a network. The first asks; the second answers the sender of the question.
 *
 *     cc -Wall -o datagram datagram.c -libverbs
 *     datagram DEVICE GID_INDEX            asks once, and prints the answer
 *     datagram DEVICE GID_INDEX key        asks with a wrong Q_Key
 *     datagram DEVICE GID_INDEX receive    asks before a receive is posted
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRH = 40, SIZE = 1024, QKEY = 0x11223344 };

/* A queue pair with memory for one datagram in and one out. */
struct end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char in[GRH + SIZE], out[SIZE];
};

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	check(list != NULL, "ibv_get_device_list");
	for (int i = 0; list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	check(context != NULL, name);
	ibv_free_device_list(list);
	return context;
}

static void create_end(struct end *end, struct ibv_context *context)
{
	end->pd = ibv_alloc_pd(context);
	check(end->pd != NULL, "ibv_alloc_pd");
	end->mr = ibv_reg_mr(end->pd, end, sizeof *end, IBV_ACCESS_LOCAL_WRITE);
	check(end->mr != NULL, "ibv_reg_mr");
	end->cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	check(end->cq != NULL, "ibv_create_cq");

	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	end->qp = ibv_create_qp(end->pd, &init);
	check(end->qp != NULL, "ibv_create_qp");

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	check(!(errno = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_QKEY)), "RESET to INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(!(errno = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE)), "INIT to RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!(errno = ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN)), "RTR to RTS");
}

static void receive(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->in, sizeof end->in, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!(errno = ibv_post_recv(end->qp, &wr, &bad)), "ibv_post_recv");
}

/* Waits for the next completion. Returns 0 if none comes within a second. */
static int next(struct end *end, struct ibv_wc *wc)
{
	for (int i = 0; i < 1000; i++, usleep(1000))
		if (ibv_poll_cq(end->cq, 1, wc) > 0)
			return 1;
	return 0;
}

static void send_to(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, const char *text)
{
	struct ibv_wc wc;

	strcpy(end->out, text);
	struct ibv_sge sge = { (uintptr_t)end->out, strlen(text), end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	check(!(errno = ibv_post_send(end->qp, &wr, &bad)), "ibv_post_send");
	check(next(end, &wc), "the SEND does not complete");
	printf("SEND: %s\n", ibv_wc_status_str(wc.status));
}

/* Receives a message, which begins after the 40 bytes of the GRH. Returns 0 if none comes. */
static int print_message(struct end *end, struct ibv_wc *wc)
{
	if (!next(end, wc)) {
		puts("nothing came");
		return 0;
	}
	printf("%u bytes, from QP 0x%06x: %.*s\n", wc->byte_len, wc->src_qp,
	       (int)wc->byte_len - GRH, end->in + GRH);
	return 1;
}

int main(int argc, char **argv)
{
	static struct end asks, answers;
	struct ibv_wc wc;
	union ibv_gid gid;
	const char *mistake = argc > 3 ? argv[3] : "";
	int early = strcmp(mistake, "receive") == 0;
	uint32_t qkey = strcmp(mistake, "key") == 0 ? QKEY + 1 : QKEY;

	check(argc > 2, "datagram DEVICE GID_INDEX");
	struct ibv_context *context = open_device(argv[1]);
	int gid_index = atoi(argv[2]);
	create_end(&asks, context);
	create_end(&answers, context);

	/* The address handle names the destination: here this device itself. */
	check(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
	struct ibv_ah_attr to = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
	};
	struct ibv_ah *ah = ibv_create_ah(asks.pd, &to);
	check(ah != NULL, "ibv_create_ah");

	receive(&asks);
	if (!early)
		receive(&answers);
	send_to(&asks, ah, answers.qp->qp_num, qkey, "What time is it?");
	if (early) {
		usleep(100 * 1000);
		receive(&answers);
	}
	if (!print_message(&answers, &wc))
		return 1;

	/* The completion and the GRH name the sender. An IPv4 header is in the last 20 bytes of the GRH. */
	char from[INET_ADDRSTRLEN];
	printf("asked by %s\n", inet_ntop(AF_INET, answers.in + GRH - 8, from, sizeof from));
	struct ibv_ah *back = ibv_create_ah_from_wc(answers.pd, &wc, (struct ibv_grh *)answers.in, 1);
	check(back != NULL, "ibv_create_ah_from_wc");
	send_to(&answers, back, wc.src_qp, QKEY, "High time.");
	return !print_message(&asks, &wc);
}
