/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_PAGES_H
#define GPUSLICE_PAGES_H

#include <stddef.h>
#include <sys/mman.h>

/* Returns zeroed memory, to be freed by munmap(), or NULL. Not from malloc(), which may be the
 * program's own, and the caller. */
static inline void *pages_map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

#endif
