/*
 * Like first tutorials of verbs: two programs exchange their queue pairs and buffers over TCP. Then the
 * client reads the server's buffer and writes an answer into it, while the server only polls its own
 * memory.
 *
 *     memory -d DEVICE -g GID_INDEX [-p PORT]           the server
 *     memory -d DEVICE -g GID_INDEX [-p PORT] SERVER    the client
 */
#include <endian.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 5000, PSN = 0x123456 };

static const char greeting[] = "read me over RDMA";
static const char answer[] = "written over RDMA";

/* The data that one side must know about the other, in network byte order. */
struct about {
	uint64_t address;
	uint32_t rkey;
	uint32_t qpn;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static char *buffer;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int at = 0;

	if (!list)
		die("ibv_get_device_list");
	while (list[at] && name && strcmp(ibv_get_device_name(list[at]), name) != 0)
		at++;
	if (!list[at]) {
		fprintf(stderr, "there is no device %s\n", name ? name : "");
		exit(1);
	}
	context = ibv_open_device(list[at]);
	if (!context)
		die("ibv_open_device");
	ibv_free_device_list(list);
}

static void make_resources(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };

	pd = ibv_alloc_pd(context);
	if (!pd)
		die("ibv_alloc_pd");
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	if (!cq)
		die("ibv_create_cq");
	buffer = calloc(1, SIZE);
	mr = ibv_reg_mr(pd, buffer, SIZE,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		die("ibv_reg_mr");
	attr.send_cq = cq;
	attr.recv_cq = cq;
	attr.cap.max_send_wr = 4;
	attr.cap.max_recv_wr = 1;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	qp = ibv_create_qp(pd, &attr);
	if (!qp)
		die("ibv_create_qp");
}

static int talk_to(const char *server, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	int sock, on = 1, waiting;

	hints.ai_flags = server ? 0 : AI_PASSIVE;
	hints.ai_family = AF_INET;
	if (getaddrinfo(server, port, &hints, &found) != 0)
		die("getaddrinfo");
	sock = socket(found->ai_family, found->ai_socktype, 0);
	if (sock < 0)
		die("socket");
	if (server) {
		if (connect(sock, found->ai_addr, found->ai_addrlen) != 0)
			die("connect");
	} else {
		setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(sock, found->ai_addr, found->ai_addrlen) != 0 || listen(sock, 1) != 0)
			die("bind");
		waiting = sock;
		sock = accept(waiting, NULL, NULL);
		if (sock < 0)
			die("accept");
		close(waiting);
	}
	freeaddrinfo(found);
	return sock;
}

static void exchange(int sock, const void *mine, void *theirs, size_t size)
{
	size_t have = 0;

	if (write(sock, mine, size) != (ssize_t)size)
		die("write");
	while (have < size) {
		ssize_t more = read(sock, (char *)theirs + have, size - have);
		if (more <= 0)
			die("read");
		have += more;
	}
}

static void modify(struct ibv_qp_attr *attr, int mask, const char *to)
{
	int error = ibv_modify_qp(qp, attr, mask);

	if (error) {
		fprintf(stderr, "the queue pair cannot go to %s: %s\n", to, strerror(error));
		exit(1);
	}
}

static void connect_to(const struct about *peer, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = be32toh(peer->qpn);
	attr.rq_psn = PSN;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = peer->gid;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	modify(&attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.sq_psn = PSN;
	attr.max_rd_atomic = 1;
	modify(&attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
}

/* Posts one request for the whole buffers of both sides, and waits until it completes. */
static void carry_out(enum ibv_wr_opcode opcode, const struct about *peer)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int found;

	wr.wr.rdma.remote_addr = be64toh(peer->address);
	wr.wr.rdma.rkey = be32toh(peer->rkey);
	if (ibv_post_send(qp, &wr, &bad) != 0)
		die("ibv_post_send");
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (found < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "failed: %s\n", found < 0 ? "polling" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *device = NULL, *port = "18515", *server;
	struct about mine, peer;
	int option, gid_index = 0, sock;
	char ready = 0;

	while ((option = getopt(argc, argv, "d:g:p:")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'p')
			port = optarg;
		else
			return 2;
	}
	server = argv[optind];

	open_device(device);
	make_resources();
	if (ibv_query_gid(context, 1, gid_index, &mine.gid) != 0)
		die("ibv_query_gid");
	mine.address = htobe64((uintptr_t)buffer);
	mine.rkey = htobe32(mr->rkey);
	mine.qpn = htobe32(qp->qp_num);
	if (!server)
		memcpy(buffer + SIZE - sizeof greeting, greeting, sizeof greeting);
	sock = talk_to(server, port);
	exchange(sock, &mine, &peer, sizeof mine);
	connect_to(&peer, gid_index);
 /* No side sends a request before both can answer. */
	exchange(sock, "r", &ready, 1);

	if (server) {
		carry_out(IBV_WR_RDMA_READ, &peer);
		printf("read: %s\n", buffer + SIZE - sizeof greeting);
		memset(buffer, 0, SIZE);
		memcpy(buffer, answer, sizeof answer);
  /* The last byte tells the server that all other bytes have arrived. */
		buffer[SIZE - 1] = 1;
		carry_out(IBV_WR_RDMA_WRITE, &peer);
	} else {
		volatile char *last = buffer + SIZE - 1;

		while (*last != 1)
			usleep(100);
		printf("found in memory: %s\n", buffer);
		if (strcmp(buffer, answer) != 0)
			return 1;
	}
 /* No side ends before the other has finished. */
	exchange(sock, "d", &ready, 1);
	close(sock);
	if (ibv_destroy_qp(qp) || ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) ||
	    ibv_close_device(context))
		die("closing");
	free(buffer);
	return 0;
}
