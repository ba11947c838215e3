/*
 * Uses MPI in several ways, one after the other: messages around a ring, many messages simultaneously,
 * collective and one-sided operations. Each is done with sizes for one packet, for several packets, and
 * for rendezvous. Every received byte is compared.
 *
 * The argument is the number of hosts that the ranks must be on. On success, the first rank prints one
 * line. Any error ends all ranks, with a line that says what is wrong.
 */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static const size_t SIZES[] = { 0, 1, 8, 1000, 1024, 8191, 65536, 300001 };
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define LARGEST ((size_t)300001)

#define CHECK(condition, ...)								\
	do {										\
		if (!(condition)) {							\
			fprintf(stderr, "rank %d, line %d: ", rank, __LINE__);		\
			fprintf(stderr, __VA_ARGS__);					\
			fprintf(stderr, "\n");						\
			MPI_Abort(MPI_COMM_WORLD, 1);					\
		}									\
	} while (0)

static void *room(size_t size)
{
	void *memory = malloc(size ? size : 1);
	CHECK(memory, "no memory");
	return memory;
}

/* Returns byte `at` of the data from rank `from` to rank `to` in the operation `kind`. */
static unsigned char pattern(int kind, int from, int to, size_t at)
{
	return (unsigned char)(kind * 61 + from * 31 + to * 17 + at * 7 + (at >> 8) * 13);
}

static void fill(unsigned char *memory, size_t size, int kind, int from, int to)
{
	for (size_t at = 0; at < size; at++)
		memory[at] = pattern(kind, from, to, at);
}

static void compare(const unsigned char *memory, size_t size, int kind, int from, int to)
{
	for (size_t at = 0; at < size; at++)
		CHECK(memory[at] == pattern(kind, from, to, at),
			  "kind %d, %zu bytes from %d to %d: byte %zu is %d instead of %d", kind, size, from, to,
			  at, memory[at], pattern(kind, from, to, at));
}

/* Each rank sends to its right neighbour, all simultaneously. */
static void ring(void)
{
	unsigned char *out = room(LARGEST), *in = room(LARGEST);
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

	for (size_t i = 0; i < COUNT(SIZES); i++) {
		MPI_Status status;
		int count;
		fill(out, SIZES[i], 1, rank, right);
		memset(in, 0, SIZES[i]);
		MPI_Sendrecv(out, SIZES[i], MPI_BYTE, right, i, in, LARGEST, MPI_BYTE, left, i,
					 MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		CHECK((size_t)count == SIZES[i], "%d bytes came instead of %zu", count, SIZES[i]);
		compare(in, SIZES[i], 1, left, rank);
	}
	free(out);
	free(in);
}

/* Each rank has many outstanding messages to each other rank; they are received in the opposite order. */
static void crowd(void)
{
	enum { EACH = 32 };
	static const size_t sizes[] = {1, 700, 5000, 40000};
	int total = EACH * ranks;
	MPI_Request *requests = room(2 * total * sizeof *requests);
	unsigned char **out = room(total * sizeof *out), **in = room(total * sizeof *in);
	int used = 0;

	for (int i = 0; i < total; i++) {
		int peer = i % ranks, tag = i / ranks;
		size_t size = sizes[tag % COUNT(sizes)];
		out[i] = room(size);
		fill(out[i], size, 2 + tag, rank, peer);
		if (peer != rank)
			MPI_Isend(out[i], size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[used++]);
	}
	for (int i = total - 1; i >= 0; i--) {
		int peer = i % ranks, tag = i / ranks;
		size_t size = sizes[tag % COUNT(sizes)];
		in[i] = room(size);
		if (peer != rank)
			MPI_Irecv(in[i], size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[used++]);
	}
	MPI_Waitall(used, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < total; i++) {
		int peer = i % ranks, tag = i / ranks;
		if (peer != rank)
			compare(in[i], sizes[tag % COUNT(sizes)], 2 + tag, peer, rank);
		free(out[i]);
		free(in[i]);
	}
	free(requests);
	free(out);
	free(in);
}

static void allreduce(void)
{
	static const int counts[] = {1, 100, 5000, 100000};

	for (size_t i = 0; i < COUNT(counts); i++) {
		int64_t *out = room(counts[i] * sizeof *out), *in = room(counts[i] * sizeof *in);
		int64_t sum = 0, most = (int64_t)(ranks - 1) * ranks;
		for (int r = 0; r < ranks; r++)
			sum += (int64_t)r * ranks;
		for (int at = 0; at < counts[i]; at++)
			out[at] = (int64_t)rank * ranks + at;
		MPI_Allreduce(out, in, counts[i], MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int at = 0; at < counts[i]; at++)
			CHECK(in[at] == sum + (int64_t)ranks * at, "sum %d of %d", at, counts[i]);
		MPI_Allreduce(out, in, counts[i], MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
		for (int at = 0; at < counts[i]; at++)
			CHECK(in[at] == most + at, "maximum %d of %d", at, counts[i]);
		free(out);
		free(in);
	}
}

static void alltoall(void)
{
	for (size_t i = 0; i < COUNT(SIZES); i++) {
		size_t size = SIZES[i];
		unsigned char *out = room(size * ranks), *in = room(size * ranks);
		for (int to = 0; to < ranks; to++)
			fill(out + to * size, size, 3, rank, to);
		MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			compare(in + from * size, size, 3, from, rank);
		free(out);
		free(in);
	}
}

static void broadcast(void)
{
	unsigned char *memory = room(LARGEST);

	for (size_t i = 0; i < COUNT(SIZES); i++) {
		for (int root = 0; root < ranks; root++) {
			if (rank == root)
				fill(memory, SIZES[i], 4, root, root);
			else
				memset(memory, 0, SIZES[i]);
			MPI_Bcast(memory, SIZES[i], MPI_BYTE, root, MPI_COMM_WORLD);
			compare(memory, SIZES[i], 4, root, root);
		}
	}
	free(memory);
}

/* Each rank has a window with a part for each rank. */
static void one_sided(void)
{
	unsigned char *window, *memory = room(LARGEST);
	MPI_Win win;

	MPI_Win_allocate(LARGEST * ranks, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	memset(window, 0, LARGEST * ranks);
	MPI_Win_fence(0, win);
	for (size_t i = 1; i < COUNT(SIZES); i++) {
		size_t size = SIZES[i];
		for (int peer = 0; peer < ranks; peer++) {
			fill(memory, size, 5 + i, rank, peer);
			MPI_Put(memory, size, MPI_BYTE, peer, rank * LARGEST, size, MPI_BYTE, win);
   /* Only after the fence may the source of the put be overwritten. */
			MPI_Win_fence(0, win);
		}
		for (int peer = 0; peer < ranks; peer++)
			compare(window + peer * LARGEST, size, 5 + i, peer, rank);
		MPI_Win_fence(0, win);
		for (int peer = 0; peer < ranks; peer++) {
   /* The data that the left neighbour has put there. */
			int third = (peer + 1) % ranks;
			memset(memory, 0, size);
			MPI_Get(memory, size, MPI_BYTE, peer, third * LARGEST, size, MPI_BYTE, win);
			MPI_Win_fence(0, win);
			compare(memory, size, 5 + i, third, peer);
		}
	}
	MPI_Win_free(&win);
	free(memory);
}

/* All ranks add to the same words of each rank. */
static void accumulate(void)
{
	enum { PLACES = 2000 };
	int64_t *window, one = 1, got, *parts = room(PLACES * sizeof *parts);
	MPI_Win win;

	MPI_Win_allocate(PLACES * sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window,
					 &win);
	memset(window, 0, PLACES * sizeof *window);
	for (int at = 0; at < PLACES; at++)
		parts[at] = (int64_t)(rank + 1) * at;
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < ranks; peer++)
		MPI_Accumulate(parts, PLACES, MPI_INT64_T, peer, 0, PLACES, MPI_INT64_T, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int at = 0; at < PLACES; at++)
		CHECK(window[at] == (int64_t)at * ranks * (ranks + 1) / 2, "place %d: %lld", at,
			  (long long)window[at]);
	MPI_Win_fence(0, win);

	/* Tickets: each number is drawn once. */
	enum { DRAWS = 50 };
	char *drawn = room((size_t)DRAWS * ranks), *all = room((size_t)DRAWS * ranks);
	memset(drawn, 0, (size_t)DRAWS * ranks);
	for (int i = 0; i < DRAWS; i++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		MPI_Fetch_and_op(&one, &got, MPI_INT64_T, 0, 0, MPI_SUM, win);
		MPI_Win_unlock(0, win);
		CHECK(got >= 0 && got < (int64_t)DRAWS * ranks, "ticket %lld", (long long)got);
		drawn[got]++;
	}
	MPI_Allreduce(drawn, all, DRAWS * ranks, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
	for (int at = 0; at < DRAWS * ranks; at++)
		CHECK(all[at] == 1, "ticket %d was drawn %d times", at, all[at]);

 /* Each rank tries to write its number into an empty word of the last rank. Only one may succeed. */
	int64_t nothing = 0, mine = rank + 1, found;
	int winners = 0, won;
	MPI_Win_lock(MPI_LOCK_SHARED, ranks - 1, 0, win);
	MPI_Compare_and_swap(&mine, &nothing, &found, MPI_INT64_T, ranks - 1, 0, win);
	MPI_Win_unlock(ranks - 1, win);
	won = found == 0;
	MPI_Allreduce(&won, &winners, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(winners == 1, "%d ranks found nothing", winners);
	MPI_Win_free(&win);
	free(parts);
	free(drawn);
	free(all);
}

/* Returns the number of hosts. */
static int hosts(void)
{
	MPI_Comm here;
	int place, first, count;

	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
	MPI_Comm_rank(here, &place);
	first = place == 0;
	MPI_Allreduce(&first, &count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Comm_free(&here);
	return count;
}

int main(int argc, char **argv)
{
	int wanted = argc > 1 ? atoi(argv[1]) : 1, there;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	there = hosts();
	CHECK(there == wanted, "on %d hosts instead of %d", there, wanted);

	double start = MPI_Wtime();
	ring();
	crowd();
	allreduce();
	alltoall();
	broadcast();
	one_sided();
	accumulate();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks on %d hosts: all as MPI says, in %.1f s\n", ranks, there,
			   MPI_Wtime() - start);
	MPI_Finalize();
	return 0;
}
