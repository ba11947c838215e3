/*
 * Two programs connect a queue pair by hand, send a message, write and read memory.
 *
 *     cc -Wall -o hello hello.c -libverbs
 *     hello -d DEVICE -g GID_INDEX              the server waits
 *     hello -d DEVICE -g GID_INDEX SERVER       the client connects
 *
 * Mistakes on purpose, with -b:
 *
 *     order    skips RTR                         receive  posts no receive
 *     mtu      asks for a path MTU of 4096       long     sends more than the receive has
 *     psn      sends with another PSN than told  rkey     writes with a wrong rkey
 *     lkey     sends with a wrong lkey           poll     asks late for an event, and sleeps
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 4096, TCP_PORT = 18515 };

/* The data that one side must tell the other. */
struct endpoint {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static char *buffer;
static const char *mistake = "";

/* Whether -b asks for this mistake. */
static int broken(const char *name)
{
	return strcmp(mistake, name) == 0;
}

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

static void create_objects(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");

	buffer = calloc(1, SIZE);
	mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE |
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "ibv_reg_mr");

	channel = ibv_create_comp_channel(context);
	check(channel != NULL, "ibv_create_comp_channel");
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	check(cq != NULL, "ibv_create_cq");

	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
}

static void to_init(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = 0,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	check(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS)), "RESET to INIT");
	puts("RESET -> INIT");
}

static void to_rtr(const struct endpoint *peer, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	if (broken("mtu"))
		attr.path_mtu = IBV_MTU_4096;
	check(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER)), "INIT to RTR");
	puts("INIT -> RTR");
}

static void to_rts(const struct endpoint *mine)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = mine->psn,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 3,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
			     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	      "RTR to RTS");
	puts("RTR -> RTS");
}

/* Opens a TCP connection: verbs do not define how two sides exchange their data. */
static FILE *meet(const char *server)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(TCP_PORT) };
	int sock = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	check(sock >= 0, "socket");
	if (server) {
		struct hostent *host = gethostbyname(server);
		check(host != NULL, server);
		memcpy(&at.sin_addr, host->h_addr_list[0], sizeof at.sin_addr);
		check(connect(sock, (struct sockaddr *)&at, sizeof at) == 0, "connect");
	} else {
		setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		check(bind(sock, (struct sockaddr *)&at, sizeof at) == 0, "bind");
		check(listen(sock, 1) == 0, "listen");
		sock = accept(sock, NULL, NULL);
		check(sock >= 0, "accept");
	}
	FILE *stream = fdopen(sock, "r+");
	check(stream != NULL, "fdopen");
	setbuf(stream, NULL);
	return stream;
}

/* Each side sends one line: qpn=0x… psn=0x… mtu=… gid=… addr=0x… rkey=0x… */
static void exchange(FILE *stream, const struct endpoint *mine, struct endpoint *peer)
{
	char gid[64], line[256];

	inet_ntop(AF_INET6, &mine->gid, gid, sizeof gid);
	fprintf(stream, "qpn=0x%06x psn=0x%06x mtu=1024 gid=%s addr=0x%" PRIx64 " rkey=0x%x\n",
		mine->qpn, mine->psn, gid, mine->addr, mine->rkey);
	check(fgets(line, sizeof line, stream) != NULL, "the peer has left");
	check(sscanf(line, "qpn=0x%x psn=0x%x mtu=%*u gid=%45s addr=0x%" SCNx64 " rkey=0x%x",
		     &peer->qpn, &peer->psn, gid, &peer->addr, &peer->rkey) == 5, line);
	/* An IPv4 address is a GID as ::ffff:a.b.c.d. */
	if (!strchr(gid, ':')) {
		memmove(gid + 7, gid, strlen(gid) + 1);
		memcpy(gid, "::ffff:", 7);
	}
	check(inet_pton(AF_INET6, gid, &peer->gid) == 1, gid);
	printf("peer: %s", line);
}

/* Waits until the other side has come here too. Returns false if the other side has disconnected. */
static int barrier(FILE *stream)
{
	char line[8];

	fputs("ready\n", stream);
	if (fgets(line, sizeof line, stream))
		return 1;
	puts("the peer has left");
	return 0;
}

static void post_receive(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = SIZE / 2, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!(errno = ibv_post_recv(qp, &wr, &bad)), "ibv_post_recv");
}

static void post(enum ibv_wr_opcode opcode, size_t offset, size_t length, uint64_t addr,
		 uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)buffer + offset, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	struct ibv_send_wr *bad;

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	if (broken("lkey"))
		sge.lkey ^= 1;
	check(!(errno = ibv_post_send(qp, &wr, &bad)), "ibv_post_send");
}

/* A mistake on purpose: the completion comes in the pause, and nothing polls before sleeping. */
static void sleep_at_once(void)
{
	struct ibv_cq *which;
	void *context;

	sleep(1);
	check(!(errno = ibv_req_notify_cq(cq, 0)), "ibv_req_notify_cq");
	check(!ibv_get_cq_event(channel, &which, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(which, 1);
}

/* Sleeps until there is a completion. */
static void wait_for(const char *what)
{
	struct ibv_cq *which;
	struct ibv_wc wc;
	void *context;
	int found;

	/* A queue pair does not learn that its peer has given up: SIGALRM ends the wait. */
	alarm(5);
	if (broken("poll"))
		sleep_at_once();
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
		check(!(errno = ibv_req_notify_cq(cq, 0)), "ibv_req_notify_cq");
		/* A completion that came before the request makes no event: look again. */
		if ((found = ibv_poll_cq(cq, 1, &wc)) != 0)
			break;
		check(!ibv_get_cq_event(channel, &which, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(which, 1);
	}
	alarm(0);
	check(found > 0, "ibv_poll_cq");
	printf("%s: %s (%d)\n", what, ibv_wc_status_str(wc.status), wc.status);
	if (wc.status != IBV_WC_SUCCESS)
		exit(1);
}

int main(int argc, char **argv)
{
	const char *device = "rxe_lo", *server;
	struct endpoint mine, peer;
	int option, gid_index = 0;

	setbuf(stdout, NULL);
	srand48(getpid());
	while ((option = getopt(argc, argv, "d:g:b:")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'b')
			mistake = optarg;
		else
			return 2;
	}
	server = argv[optind];

	struct ibv_context *context = open_device(device);
	create_objects(context);
	check(!ibv_query_gid(context, 1, gid_index, &mine.gid), "ibv_query_gid");
	mine.qpn = qp->qp_num;
	mine.psn = lrand48() & 0xffffff;
	mine.addr = (uintptr_t)buffer;
	mine.rkey = mr->rkey;

	to_init();
	if (!server && !broken("receive"))
		post_receive();
	FILE *stream = meet(server);
	exchange(stream, &mine, &peer);
	if (!broken("order"))
		to_rtr(&peer, gid_index);
	if (broken("psn"))
		mine.psn = (mine.psn + 5) & 0xffffff;
	to_rts(&mine);
	if (!barrier(stream))
		return 1;

	if (server) {
		strcpy(buffer, "hello");
		post(IBV_WR_SEND, 0, broken("long") ? SIZE : 6, 0, 0);
		wait_for("SEND");

		uint32_t rkey = broken("rkey") ? peer.rkey ^ 1 : peer.rkey;
		uint64_t place = peer.addr + SIZE / 2;
		strcpy(buffer, "written");
		post(IBV_WR_RDMA_WRITE, 0, 8, place, rkey);
		wait_for("WRITE");
		post(IBV_WR_RDMA_READ, SIZE / 2, 8, place, rkey);
		wait_for("READ");
		printf("read back: %s\n", buffer + SIZE / 2);
	} else if (!broken("receive")) {
		wait_for("receive");
		printf("message: %s\n", buffer);
	}
	barrier(stream);
	if (!server)
		printf("memory: %s\n", buffer + SIZE / 2);
	return 0;
}
