/*
 * Reads a device's sysfs entries by the functions that compilers and old headers substitute for others:
 * those of _FORTIFY_SOURCE, and those of the C library before 2.33. The argument is the device's name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#ifdef __x86_64__
enum { STAT_VERSION = 1 };
#else
enum { STAT_VERSION = 0 };
#endif

/* Looked up by name, because headers do not declare them. */
#define CALL(result, name, ...)                                                                    \
	result (*name)(__VA_ARGS__) = dlsym(RTLD_DEFAULT, #name);                                  \
	CHECK(name)

int main(int count, char **arguments)
{
	CALL(int, __openat_2, int, const char *, int);
	CALL(int, __openat64_2, int, const char *, int);
	CALL(int, __fxstatat, int, int, const char *, struct stat *, int);
	CALL(int, __fxstatat64, int, int, const char *, struct stat *, int);
	CALL(ssize_t, __readlink_chk, const char *, char *, size_t, size_t);
	CALL(ssize_t, __readlinkat_chk, int, const char *, char *, size_t, size_t);
	char device[200], type[250], link[100];
	struct stat found;
	int fd;

	CHECK(count > 1);
	snprintf(device, sizeof device, "/sys/class/infiniband/%s", arguments[1]);
	snprintf(type, sizeof type, "%s/node_type", device);
	CHECK((fd = __openat_2(AT_FDCWD, type, O_RDONLY)) >= 0 && close(fd) == 0);
	CHECK((fd = __openat64_2(AT_FDCWD, type, O_RDONLY)) >= 0 && close(fd) == 0);
	CHECK(__fxstatat(STAT_VERSION, AT_FDCWD, type, &found, 0) == 0 && S_ISREG(found.st_mode));
	CHECK(__fxstatat64(STAT_VERSION, AT_FDCWD, type, &found, 0) == 0 && S_ISREG(found.st_mode));
	/* The entry exists, whether it is a link or not. */
	CHECK(readlink(device, link, sizeof link) > 0 || errno == EINVAL);
	CHECK(__readlink_chk(device, link, sizeof link, sizeof link) > 0 || errno == EINVAL);
	CHECK(__readlinkat_chk(AT_FDCWD, device, link, sizeof link, sizeof link) > 0 ||
	      errno == EINVAL);
	puts("all paths lead there");
	return 0;
}
