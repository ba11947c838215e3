/* A library that prints a line when it is loaded. */
#include <unistd.h>

__attribute__((constructor)) static void loaded(void)
{
	static const char said[] = "a library of the user's is loaded\n";
	ssize_t written = write(2, said, sizeof said - 1);

	(void)written;
}
