/*
 * Finds libibverbs like programs that are not linked with it: with dlopen, and with dlvsym and the
 * versions of rdma-core. Prints the names of the devices.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	struct ibv_device **(*list)(int *);
	const char *(*name)(struct ibv_device *);
	struct ibv_device **devices;
	int count;

	if (!library || !dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8")) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	list = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
	name = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
	devices = list(&count);
	for (int i = 0; devices && i < count; i++)
		puts(name(devices[i]));
	return 0;
}
