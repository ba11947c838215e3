/* Ends the program with the line, what was expected there, and errno, where it is not so. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                \
	do {                                                                                       \
		errno = 0;                                                                         \
		if (!(what)) {                                                                     \
			printf("%s:%d: %s (errno %d)\n", __func__, __LINE__, #what, errno);        \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
