/*
 * A library like the extension module of a Python wheel: it is linked with a libibverbs, which may be the
 * wheel's own copy under another name.
 */
#include "moves.h"

void run(const char *device);

void run(const char *device)
{
	move_bytes(device);
}
