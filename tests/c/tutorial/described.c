/*
 * Like tutorials of librdmacm's simple calls: the client sends a description of a buffer (address, key,
 * length). The server fetches that buffer by RDMA READ and answers with what it found.
 *
 *     described ADDRESS         the server
 *     described -c ADDRESS      the client
 */
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 100000 };

/* A description of a buffer, in network byte order. */
struct description {
	uint64_t address;
	uint32_t rkey;
	uint32_t length;
};

struct found {
	uint64_t sum;
};

static char *const port = "20081";

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t sum(const unsigned char *bytes, uint32_t length)
{
	uint64_t sum = 0;

	while (length-- > 0)
		sum = sum * 31 + *bytes++;
	return sum;
}

static void completed(int (*get)(struct rdma_cm_id *, struct ibv_wc *), struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	int count;

	while ((count = get(id, &wc)) == 0)
		;
	if (count < 0)
		die("completion");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "failed: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void serve(struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .rnr_retry_count = 7 };
	struct description of;
	struct found answer;
	struct ibv_mr *of_mr, *answer_mr, *mr;
	struct rdma_cm_id *id;
	unsigned char *copy;
	uint32_t length;

	if (rdma_listen(listener, 0) != 0)
		die("rdma_listen");
	if (rdma_get_request(listener, &id) != 0)
		die("rdma_get_request");
	of_mr = rdma_reg_msgs(id, &of, sizeof of);
	answer_mr = rdma_reg_msgs(id, &answer, sizeof answer);
	if (!of_mr || !answer_mr)
		die("rdma_reg_msgs");
	if (rdma_post_recv(id, NULL, &of, sizeof of, of_mr) != 0)
		die("rdma_post_recv");
	if (rdma_accept(id, &param) != 0)
		die("rdma_accept");
	completed(rdma_get_recv_comp, id);

	length = be32toh(of.length);
	if (length > SIZE)
		die("more than there is room for");
	copy = calloc(1, length);
	mr = rdma_reg_msgs(id, copy, length);
	if (!mr)
		die("rdma_reg_msgs");
	if (rdma_post_read(id, NULL, copy, length, mr, IBV_SEND_SIGNALED, be64toh(of.address),
			   be32toh(of.rkey)) != 0)
		die("rdma_post_read");
	completed(rdma_get_send_comp, id);
	answer.sum = htobe64(sum(copy, length));
	printf("read %u bytes, sum %016llx\n", length, (unsigned long long)be64toh(answer.sum));
	if (rdma_post_send(id, NULL, &answer, sizeof answer, answer_mr, IBV_SEND_SIGNALED) != 0)
		die("rdma_post_send");
	completed(rdma_get_send_comp, id);

	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_dereg_mr(of_mr);
	rdma_dereg_mr(answer_mr);
	free(copy);
	rdma_destroy_ep(id);
}

static void ask(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	unsigned char *bytes = malloc(SIZE);
	struct description of;
	struct found answer;
	struct ibv_mr *mr, *of_mr, *answer_mr;

	for (int i = 0; i < SIZE; i++)
		bytes[i] = i * 7 + i / 251;
	mr = rdma_reg_read(id, bytes, SIZE);
	of_mr = rdma_reg_msgs(id, &of, sizeof of);
	answer_mr = rdma_reg_msgs(id, &answer, sizeof answer);
	if (!mr || !of_mr || !answer_mr)
		die("rdma_reg_read");
	of.address = htobe64((uintptr_t)bytes);
	of.rkey = htobe32(mr->rkey);
	of.length = htobe32(SIZE);
	if (rdma_post_recv(id, NULL, &answer, sizeof answer, answer_mr) != 0)
		die("rdma_post_recv");
	if (rdma_connect(id, &param) != 0)
		die("rdma_connect");
	if (rdma_post_send(id, NULL, &of, sizeof of, of_mr, IBV_SEND_SIGNALED) != 0)
		die("rdma_post_send");
	completed(rdma_get_send_comp, id);
	completed(rdma_get_recv_comp, id);
	if (be64toh(answer.sum) != sum(bytes, SIZE)) {
		fprintf(stderr, "the server has read something else\n");
		exit(1);
	}
	printf("the server has read it\n");

	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_dereg_mr(of_mr);
	rdma_dereg_mr(answer_mr);
	free(bytes);
}

int main(int argc, char **argv)
{
	int client = argc == 3 && strcmp(argv[1], "-c") == 0;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *address;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_id *id;

	if (argc != 2 && !client)
		return 2;
	hints.ai_flags = client ? 0 : RAI_PASSIVE;
	if (rdma_getaddrinfo(argv[argc - 1], port, &hints, &address) != 0)
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&id, address, NULL, &attr) != 0)
		die("rdma_create_ep");
	rdma_freeaddrinfo(address);
	if (client)
		ask(id);
	else
		serve(id);
	rdma_destroy_ep(id);
	return 0;
}
