/* Opens the device that a test program is told to use. */
#include <dirent.h>
#include <infiniband/verbs.h>
#include <string.h>

#include "check.h"

/* Opens the device of this name. The program ends if there is none. */
static struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	CHECK(list);
	for (int i = 0; list[i] && !context; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* Counts the entries of a directory, such as this process's descriptors in /proc/self/fd. */
__attribute__((unused)) static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	CHECK(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}
