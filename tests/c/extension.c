/*
 * What a wheel's extension does, as a library: it is linked with a libibverbs, which may be a copy of the
 * wheel's own under another name.
 */
#include "moves.h"

void run(const char *device);

void run(const char *device)
{
	move_bytes(device);
}
