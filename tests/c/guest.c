/*
 * A program may unmap registered memory, and may use signals and descriptors freely, although the device is
 * in its process. The first argument is the device, the second names the test. The two ends are two
 * contexts of this process, so each has its own library threads.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"

enum { PAGE = 4096, SIZE = 2 * PAGE, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* One end of a connection, and its context. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	int file;
};

static const char *device;

static void open_end(struct end *e)
{
	e->context = open_device(device);
	CHECK(e->pd = ibv_alloc_pd(e->context));
}

/* Returns an address far below those that the kernel chooses, so that nothing else is mapped into a page
 * that was unmapped. */
static void *far_away(void)
{
	static uintptr_t last = 0x300000000000;

	last += 1 << 20;
	return (void *)last;
}

/* Creates a queue pair, and a buffer of two pages that are mapped from a file. */
static void make(struct end *e)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
						  .max_send_sge = 1, .max_recv_sge = 1 } };

	CHECK(e->cq = ibv_create_cq(e->context, 16, NULL, NULL, 0));
	attr.send_cq = attr.recv_cq = e->cq;
	CHECK(e->qp = ibv_create_qp(e->pd, &attr));
	CHECK((e->file = memfd_create("memory", MFD_CLOEXEC)) >= 0);
	CHECK(ftruncate(e->file, SIZE) == 0);
	e->memory = mmap(far_away(), SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, e->file, 0);
	CHECK(e->memory != MAP_FAILED);
	memset(e->memory, 'm', SIZE);
	CHECK(e->mr = ibv_reg_mr(e->pd, e->memory, SIZE, RIGHTS));
}

static void make_both(struct end *a, struct end *b)
{
	make(a);
	make(b);
	connect_qp(a->qp, b->qp, RIGHTS);
	connect_qp(b->qp, a->qp, RIGHTS);
}

static void post(struct end *a, struct end *b, enum ibv_wr_opcode opcode, size_t at, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a->memory + at, .length = length, .lkey = a->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	name_remote(&wr, b->memory + at, b->mr);
	CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
}

static void receive(struct end *e, size_t at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->memory + at, .length = PAGE, .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(e->qp, &wr, &bad) == 0);
}

static void destroy(struct end *e)
{
	CHECK(ibv_destroy_qp(e->qp) == 0);
	CHECK(ibv_destroy_cq(e->cq) == 0);
	CHECK(ibv_dereg_mr(e->mr) == 0);
	munmap(e->memory, SIZE);
	close(e->file);
}

/* Makes the second page of the buffer inaccessible, in one of several ways. */
static void vanish(struct end *e, int way)
{
	switch (way) {
	case 0:
		CHECK(munmap(e->memory + PAGE, PAGE) == 0);
		break;
	case 1:
		CHECK(mprotect(e->memory + PAGE, PAGE, PROT_NONE) == 0);
		break;
	default:
		CHECK(ftruncate(e->file, PAGE) == 0);
	}
}

static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
					      IBV_WR_ATOMIC_FETCH_AND_ADD };

/* Tests each way to lose the memory, for each operation, at either end. Other connections must continue. */
static void memory(void)
{
	struct end a = { 0 }, b = { 0 }, c, d;

	open_end(&a);
	open_end(&b);
	c = a;
	d = b;
	make_both(&c, &d);
	for (int way = 0; way < 3; way++)
		for (int i = 0; i < 4; i++)
			for (int local = 0; local < 2; local++) {
				enum ibv_wr_opcode opcode = opcodes[i];
				enum ibv_wc_status want = local ? IBV_WC_LOC_PROT_ERR :
							  opcode == IBV_WR_SEND ? IBV_WC_REM_OP_ERR :
										  IBV_WC_REM_ACCESS_ERR,
						   got;

				make_both(&a, &b);
				vanish(local ? &a : &b, way);
				if (opcode == IBV_WR_SEND)
					receive(&b, PAGE);
				post(&a, &b, opcode, PAGE, i == 3 ? 8 : 2000);
				got = next_status(a.cq);
				if (got != want)
					printf("way %d, operation %d, local %d: %s\n", way, i, local,
					       ibv_wc_status_str(got));
				CHECK(got == want);
				destroy(&a);
				destroy(&b);
				memset(c.memory, 'x' + way, SIZE);
				post(&c, &d, IBV_WR_RDMA_WRITE, 0, SIZE);
				CHECK(next_status(c.cq) == IBV_WC_SUCCESS);
				CHECK(d.memory[SIZE - 1] == 'x' + way);
			}
	destroy(&c);
	destroy(&d);
	printf("memory: done\n");
}

static sigjmp_buf back;
static volatile sig_atomic_t handled;
static char *volatile last;
static volatile int on_alternate;
static char alternate[1 << 16];

static void on_fault(int signal, siginfo_t *info, void *context)
{
	char here;

	(void)context;
	CHECK(signal == SIGSEGV);
	handled++;
	last = info->si_addr;
	on_alternate = &here >= alternate && &here < alternate + sizeof alternate;
	siglongjmp(back, 1);
}

/* Causes a fault in the program itself, which must reach the program's handler. */
static void fault(void)
{
	int before = handled;
	char *volatile nowhere = (char *)16;

	if (sigsetjmp(back, 1) == 0)
		*nowhere = 1;
	CHECK(handled == before + 1 && last == nowhere && on_alternate);
}

static void use(struct sigaction *old)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigaddset(&action.sa_mask, SIGUSR1);
	CHECK(sigaction(SIGSEGV, &action, old) == 0);
}

/* Runs a child that must end by this signal. */
static void dies_by(int signal, void (*how)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		how();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal);
}

static void fault_without_handler(void)
{
	char *volatile nowhere = (char *)16;

	*nowhere = 1;
}

static void send_itself_a_fault(void)
{
	kill(getpid(), SIGSEGV);
}

/* The program installs its own handler, before the device is opened and after. */
static void handlers(void)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
	struct end a = { 0 }, b = { 0 };
	struct sigaction now, old;

	CHECK(sigaltstack(&stack, NULL) == 0);
	use(NULL);
	fault();
	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	fault();
	CHECK(sigaction(SIGSEGV, NULL, &now) == 0);
	CHECK(now.sa_sigaction == on_fault && now.sa_flags & SA_ONSTACK && sigismember(&now.sa_mask, SIGUSR1));
	CHECK((void *)signal(SIGSEGV, SIG_DFL) == (void *)on_fault);
	dies_by(SIGSEGV, fault_without_handler);
	dies_by(SIGSEGV, send_itself_a_fault);
	use(&old);
	CHECK(old.sa_handler == SIG_DFL);
	fault();
	vanish(&b, 0);
	post(&a, &b, IBV_WR_RDMA_WRITE, PAGE, 8);
	CHECK(next_status(a.cq) == IBV_WC_REM_ACCESS_ERR);
	vanish(&a, 0);
	CHECK(handled == 3);
	fault();
	printf("handlers: done\n");
}

static pthread_t main_thread;
static volatile sig_atomic_t elsewhere, seen;

static void on_usr1(int signal)
{
	(void)signal;
	seen++;
	if (!pthread_equal(pthread_self(), main_thread))
		elsewhere++;
}

/* Signals reach only threads of the program: no handler runs on a library thread, and a signal that the
 * program blocks after opening a device stays pending for its signalfd. */
static void signals(void)
{
	struct end a = { 0 }, b = { 0 };
	struct signalfd_siginfo info;
	sigset_t set;
	int fd;

	main_thread = pthread_self();
	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	signal(SIGUSR1, on_usr1);
	for (int i = 0; i < 100; i++) {
  /* The main thread blocks the signal, so a library thread that does not block it would run the handler. */
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
		CHECK(kill(getpid(), SIGUSR1) == 0);
		post(&a, &b, IBV_WR_RDMA_WRITE, 0, SIZE);
		CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
		CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
		CHECK(seen == i + 1 && elsewhere == 0);
	}
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK((fd = signalfd(-1, &set, SFD_CLOEXEC)) >= 0);
	/* The default action of this signal would end the process. */
	CHECK(kill(getpid(), SIGUSR2) == 0);
	CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
	printf("signals: done\n");
}

/* The program's own files at descriptors that it has closed before, low and high, with known content. */
enum { FILES = 64 };
static int files[FILES], high[FILES];

static void open_files(void)
{
	char path[32];

	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "file-%d", i);
		CHECK((files[i] = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
		CHECK(write(files[i], "mine", 4) == 4 && lseek(files[i], 0, SEEK_SET) == 0);
		/* The library's own descriptors begin at 512. */
		CHECK((high[i] = fcntl(files[i], F_DUPFD_CLOEXEC, 512)) >= 512);
	}
	/* A library thread may temporarily use some of these descriptors. */
	CHECK(high[0] < 520);
}

/* Checks that the library has not written, read or closed these files. */
static void check_files(void)
{
	char path[32];

	for (int i = 0; i < FILES; i++) {
		char text[16] = "";

		snprintf(path, sizeof path, "file-%d", i);
		int again = open(path, O_RDONLY);

		CHECK(again >= 0 && read(again, text, sizeof text) == 4 && memcmp(text, "mine", 4) == 0);
		close(again);
		CHECK(fcntl(files[i], F_GETFD) >= 0 && lseek(files[i], 0, SEEK_CUR) == 0);
		CHECK(fcntl(high[i], F_GETFD) >= 0);
		CHECK(close(files[i]) == 0 && close(high[i]) == 0);
	}
}

/* Calls everything that a program may call on a device. The calls may fail, but must not hang. */
static void use_and_close(struct end *a, struct end *b, struct ibv_comp_channel *channel)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_async_event event;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	for (int i = 0; i < 4; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)a->memory, .length = 64, .lkey = a->mr->lkey };

		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.wr.rdma.remote_addr = (uintptr_t)b->memory;
		wr.wr.rdma.rkey = b->mr->rkey;
		ibv_post_send(a->qp, &wr, &bad);
		ibv_poll_cq(a->cq, 1, &wc);
		usleep(20000);
	}
	CHECK(ibv_post_send(a->qp, &wr, &bad) != 0);
	CHECK(ibv_get_cq_event(channel, &cq, &context) != 0);
	/* One of these events reports the failure of the device, if it can still be delivered. */
	while (ibv_get_async_event(a->context, &event) == 0)
		ibv_ack_async_event(&event);
	ibv_destroy_qp(a->qp);
	ibv_destroy_qp(b->qp);
	ibv_destroy_cq(a->cq);
	ibv_destroy_cq(b->cq);
	ibv_destroy_comp_channel(channel);
	ibv_dereg_mr(a->mr);
	ibv_dereg_mr(b->mr);
	ibv_dealloc_pd(a->pd);
	ibv_dealloc_pd(b->pd);
	ibv_close_device(a->context);
	ibv_close_device(b->context);
}

/* The program closes every descriptor and opens its own files, which get the same numbers. Then it opens
 * the device again, which must work. */
static void descriptors(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_comp_channel *channel;

	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	CHECK(channel = ibv_create_comp_channel(a.context));
	post(&a, &b, IBV_WR_RDMA_WRITE, 0, 64);
	CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
	CHECK(close_range(3, ~0U, 0) == 0);
	open_files();
	use_and_close(&a, &b, channel);
	check_files();
	a = b = (struct end){ 0 };
	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	post(&a, &b, IBV_WR_RDMA_WRITE, 0, 64);
	CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
	destroy(&a);
	destroy(&b);
	ibv_dealloc_pd(a.pd);
	ibv_dealloc_pd(b.pd);
	ibv_close_device(a.context);
	ibv_close_device(b.context);
	printf("descriptors: done\n");
}

/* Returns the number of library threads. */
static int threads(void)
{
	DIR *all = opendir("/proc/self/task");
	char path[64], name[32];
	struct dirent *entry;
	int n = 0;

	while ((entry = readdir(all))) {
		FILE *comm;

		snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", entry->d_name);
		if (!(comm = fopen(path, "r")))
			continue;
		n += fgets(name, sizeof name, comm) && strncmp(name, "rxe-", 4) == 0;
		fclose(comm);
	}
	closedir(all);
	return n;
}

/* The threads of a device whose descriptors are closed are not woken: they check periodically, and end.
 * The next call says why the device has failed. */
static void threads_end(void)
{
	struct end a = { 0 };
	struct ibv_wc wc;

	open_end(&a);
	make(&a);
	/* A thread gets its name a moment after its creation. */
	while (threads() < 2)
		usleep(10000);
	CHECK(close_range(3, ~0U, 0) == 0);
	while (threads() > 0)
		usleep(10000);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) < 0);
	printf("threads_end: done\n");
}

/* A daemon closes all low descriptors in a loop. The library's descriptors are higher, so the device
 * continues to work. */
static void low_descriptors(void)
{
	struct end a = { 0 }, b = { 0 };
	int low[64];

	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	for (int i = 3; i < 256; i++)
		close(i);
	for (int i = 0; i < 64; i++)
		CHECK((low[i] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
	for (int i = 0; i < 100; i++) {
		post(&a, &b, IBV_WR_RDMA_WRITE, 0, SIZE);
		CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
		usleep(1000);
	}
	ibv_destroy_qp(a.qp);
	ibv_destroy_qp(b.qp);
	ibv_destroy_cq(a.cq);
	ibv_destroy_cq(b.cq);
	ibv_dereg_mr(a.mr);
	ibv_dereg_mr(b.mr);
	ibv_dealloc_pd(a.pd);
	ibv_dealloc_pd(b.pd);
	CHECK(ibv_close_device(a.context) == 0 && ibv_close_device(b.context) == 0);
	for (int i = 0; i < 64; i++)
		CHECK(fcntl(low[i], F_GETFD) >= 0);
	printf("low_descriptors: done\n");
}

/* Opens a device, uses it, and closes it. */
static void plain(void)
{
	struct end a = { 0 }, b = { 0 };

	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	for (int i = 0; i < 4; i++) {
		if (opcodes[i] == IBV_WR_SEND)
			receive(&b, PAGE);
		post(&a, &b, opcodes[i], 0, i == 3 ? 8 : 4000);
		CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
	}
	destroy(&a);
	destroy(&b);
	printf("plain: done\n");
}

/* The pipe by which the first process learns that the daemon is done. The daemon's parent exits immediately. */
static int told[2];

/* Runs a function in a child that becomes a daemon. */
static void in_daemon(void (*run)(void))
{
	char done = 0;

	CHECK(pipe(told) == 0);
	if (fork() == 0) {
		close(told[0]);
		run();
		CHECK(write(told[1], "+", 1) == 1);
		exit(0);
	}
	close(told[1]);
	CHECK(read(told[0], &done, 1) == 1 && done == '+');
}

static void become_daemon(void)
{
	CHECK(daemon(1, 1) == 0);
	for (int i = 3; i < 1024; i++)
		if (i != told[1])
			close(i);
}

/* Calls daemon(), closes all descriptors, and then opens the device: the correct order. */
static void child_daemon_then_open(void)
{
	become_daemon();
	plain();
	printf("daemon_then_open: done\n");
}

/* Opens the device and then calls daemon(). The device belongs to the parent; closing it in the child has
 * no effect, and opening it again works. */
static void child_open_then_daemon(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_wc wc;

	open_end(&a);
	open_end(&b);
	make_both(&a, &b);
	post(&a, &b, IBV_WR_RDMA_WRITE, 0, 64);
	CHECK(next_status(a.cq) == IBV_WC_SUCCESS);
	become_daemon();
	open_files();
	CHECK(ibv_alloc_pd(a.context) == NULL && errno == EIO);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) < 1);
	ibv_destroy_qp(a.qp);
	ibv_destroy_cq(a.cq);
	ibv_dereg_mr(a.mr);
	ibv_dealloc_pd(a.pd);
	ibv_close_device(a.context);
	check_files();
	plain();
	printf("open_then_daemon: done\n");
}

static void daemon_then_open(void)
{
	in_daemon(child_daemon_then_open);
}

static void open_then_daemon(void)
{
	in_daemon(child_open_then_daemon);
}

/* Returns the number of descriptors of this process. */
static int count(void)
{
	DIR *all = opendir("/proc/self/fd");
	int n = -3; /* ".", ".." and the directory itself */

	while (readdir(all))
		n++;
	closedir(all);
	return n;
}

/* Returns the minimum of several counts, because a library thread may open a descriptor temporarily. */
static int least(void)
{
	int n = count();

	for (int i = 0; i < 50; i++) {
		int now = count();

		n = now < n ? now : n;
		usleep(10000);
	}
	return n;
}

/* Counts the additional descriptors of no, one and two open devices with a queue pair. */
static void counted(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_device **list = ibv_get_device_list(NULL);
	int begin = count();

	CHECK(list);
	ibv_free_device_list(list);
	open_end(&a);
	make(&a);
	close(a.file);
	printf("one %d\n", least() - begin);
	open_end(&b);
	make(&b);
	close(b.file);
	printf("two %d\n", least() - begin);
	printf("counted: done\n");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "memory", memory }, { "handlers", handlers }, { "signals", signals },
		    { "threads_end", threads_end }, { "descriptors", descriptors }, { "low_descriptors", low_descriptors },
		    { "daemon_then_open", daemon_then_open },
		    { "open_then_daemon", open_then_daemon }, { "counted", counted },
		    { "plain", plain } };

	CHECK(argc == 3);
	setvbuf(stdout, NULL, _IONBF, 0);
	device = argv[1];
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(argv[2], all[i].name) == 0) {
			all[i].run();
			return 0;
		}
	return 2;
}
