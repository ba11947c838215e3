/*
 * A program that is not linked with libibverbs. It loads the library with dlopen, and finds the functions by
 * the symbol versions of rdma-core (dlvsym). Then it transfers bytes over the device in the first argument.
 * With a second argument it loads that library instead, as Python loads an extension, and calls its run().
 * With `as NAME` it loads libibverbs under this name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#undef ibv_reg_mr
#define FUNCTIONS(of)                                                                              \
	of(ibv_get_device_list) of(ibv_get_device_name) of(ibv_free_device_list)                   \
	of(ibv_open_device) of(ibv_close_device) of(ibv_query_gid)                                 \
	of(ibv_alloc_pd) of(ibv_dealloc_pd) of(ibv_reg_mr) of(ibv_dereg_mr)                        \
	of(ibv_create_cq) of(ibv_resize_cq) of(ibv_destroy_cq)                                     \
	of(ibv_create_qp) of(ibv_modify_qp) of(ibv_destroy_qp) of(ibv_wc_status_str)

#define DECLARE(name) static __typeof__(name) *loaded_##name;
FUNCTIONS(DECLARE)

static void *found(void *library, const char *name, const char *version)
{
	void *function = version ? dlvsym(library, name, version) : dlsym(library, name);

	if (!function) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return function;
}

static void *load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return library;
}

static void load_functions(const char *name)
{
	void *library = load(name);

#define FIND(name) loaded_##name = found(library, #name, "IBVERBS_1.1");
	FUNCTIONS(FIND)
	/* A symbol of a newer version. */
	found(library, "ibv_reg_mr_iova2", "IBVERBS_1.8");
}

#define ibv_get_device_list loaded_ibv_get_device_list
#define ibv_get_device_name loaded_ibv_get_device_name
#define ibv_free_device_list loaded_ibv_free_device_list
#define ibv_open_device loaded_ibv_open_device
#define ibv_close_device loaded_ibv_close_device
#define ibv_query_gid loaded_ibv_query_gid
#define ibv_alloc_pd loaded_ibv_alloc_pd
#define ibv_dealloc_pd loaded_ibv_dealloc_pd
#define ibv_reg_mr loaded_ibv_reg_mr
#define ibv_dereg_mr loaded_ibv_dereg_mr
#define ibv_create_cq loaded_ibv_create_cq
#define ibv_resize_cq loaded_ibv_resize_cq
#define ibv_destroy_cq loaded_ibv_destroy_cq
#define ibv_create_qp loaded_ibv_create_qp
#define ibv_modify_qp loaded_ibv_modify_qp
#define ibv_destroy_qp loaded_ibv_destroy_qp
#define ibv_wc_status_str loaded_ibv_wc_status_str
#include "moves.h"

int main(int count, char **arguments)
{
	if (count == 3) {
		void (*run)(const char *) = found(load(arguments[2]), "run", NULL);

		run(arguments[1]);
	} else {
		load_functions(count == 4 ? arguments[3] : "libibverbs.so.1");
		move_bytes(arguments[1]);
	}
	return 0;
}
