/*
 * A program linked with the library, to be installed with the setuid bit. It prints whether the kernel
 * treats it as privileged and which devices it finds, and uses the first.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "check.h"

int main(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list);
	printf("secure %lu, user %d of %d\n", getauxval(AT_SECURE), geteuid(), getuid());
	printf("devices:");
	for (int i = 0; i < count; i++)
		printf(" %s", ibv_get_device_name(list[i]));
	printf("\n");
	if (count > 0) {
		struct ibv_context *context = ibv_open_device(list[0]);
		CHECK(context);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		CHECK(pd);
		CHECK(ibv_create_cq(context, 1, NULL, NULL, 0));
		/* A call that is written to a capture. */
		CHECK(ibv_dealloc_pd(pd) == 0);
	}
	printf("used\n");
	return 0;
}
