/* CHECK ends the program if its condition is false, and prints the line, the condition and errno. */
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
