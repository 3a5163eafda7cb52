/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include "attach_client.h"
#include "process.h"
#include "table.h"
#include "threads.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEP ATTACH_HOST_STEP /* bytes pinned at once */
#define REGISTER_PORTABLE 1u
#define PIECE (16ull << 20) /* bytes for which a thread makes pages at once */
#define THREADS 8
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + STEP - 1) & ~(STEP - 1);
}

bool arena_reserve(struct arena *arena, CUdevice ordinal)
{
	size_t bytes = 0;
	void *memory;

	if (arena->memory)
		return true;
	if (BEHIND(cuDeviceTotalMem_v2)(&bytes, ordinal) != CUDA_SUCCESS)
		return false;
	bytes = round_up(bytes);
	memory = mmap(NULL, bytes, PROT_NONE, RESERVED, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	arena->memory = memory;
	arena->room = bytes;
	return true;
}

/* Request a part. False if it is refused; *descriptor is what to map, or -1 for own memory. */
static bool ask(const struct arena *arena, uint64_t bytes, int *descriptor)
{
	struct attach_request request = {
	    .op = ATTACH_OP_HOST, .used = arena->mapped, .bytes = bytes};
	struct attach_reply reply = {0};
	int descriptors[ASK_DESCRIPTORS];
	bool accepted;

	*descriptor = -1;
	if (ask_enforcer(&request, &reply, descriptors, NULL) != ASK_ANSWERED)
		return false;
	/* An older enforcer, which does not know the request, replies ATTACH_MALFORMED. */
	accepted = reply.status == ATTACH_OWN || reply.status == ATTACH_MALFORMED ||
	           (reply.status == ATTACH_OK && descriptors[0] >= 0);
	if (reply.status == ATTACH_OK) {
		*descriptor = descriptors[0];
		descriptors[0] = -1;
	}
	ask_close(descriptors);
	return accepted;
}

struct empty {
	unsigned char *from;
	uint64_t bytes, taken;
};

static void *make_pages(void *argument)
{
	struct empty *empty = argument;
	uint64_t at;

	while ((at = __atomic_fetch_add(&empty->taken, PIECE, __ATOMIC_RELAXED)) < empty->bytes) {
		/* A kernel before 5.14 refuses this: pages are then made when they are pinned. */
		if (madvise(empty->from + at, empty->bytes - at < PIECE ? empty->bytes - at : PIECE,
		            MADV_POPULATE_WRITE) != 0)
			break;
	}
	return NULL;
}

/* Return the number of processors on which this thread may run. */
static int processors(void)
{
	cpu_set_t mask; /* the kernel's may be larger: then the call fails */

	return sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : THREADS;
}

/* Make pages in several threads, if there are enough processors: that takes longer than to pin
 * them, and the kernel does it in parallel. Otherwise they are made when they are pinned. */
static void populate(unsigned char *from, uint64_t bytes)
{
	struct empty empty = {.from = from, .bytes = bytes};
	pthread_t thread[THREADS - 1];
	int begun = 0, most = processors();

	if (most < THREADS / 2)
		return;
	if (most > THREADS)
		most = THREADS;
	while (begun < most - 1 && threads_begin(&thread[begun], make_pages, &empty))
		begun++;
	(void)make_pages(&empty);
	while (begun)
		threads_join(thread[--begun]);
}

/* Map the next part, of `bytes` in all. */
static bool map_part(struct arena *arena, uint64_t bytes)
{
	unsigned char *next = arena->memory + arena->mapped;
	uint64_t end = arena->mapped + ATTACH_HOST_PART;
	int descriptor, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	void *there;

	if (end > bytes)
		end = bytes;
	if (!ask(arena, end, &descriptor))
		return false;
	if (descriptor >= 0)
		flags = MAP_SHARED | MAP_FIXED;
	there = mmap(next, end - arena->mapped, PROT_READ | PROT_WRITE, flags, descriptor,
	             descriptor >= 0 ? (off_t)arena->mapped : 0);
	if (descriptor >= 0)
		close(descriptor);
	if (there == MAP_FAILED)
		return false;
	/* A fork would copy pinned memory at once. */
	(void)madvise(next, end - arena->mapped, MADV_DONTFORK);
	(void)madvise(next, end - arena->mapped, MADV_HUGEPAGE);
	populate(next, end - arena->mapped);
	arena->mapped = end;
	return true;
}

bool arena_grow(struct arena *arena, CUdevice ordinal, uint64_t bytes, uint64_t whole)
{
	whole = round_up(bytes > whole ? bytes : whole);
	if (!arena_reserve(arena, ordinal) || bytes > arena->room)
		return false;
	if (whole > arena->room)
		whole = arena->room;
	while (arena->pinned < bytes) {
		if (arena->pinned == arena->mapped && !map_part(arena, whole))
			return false;
		arena->pinned += STEP;
		if (BEHIND(cuMemHostRegister_v2)(arena->memory + arena->pinned - STEP, STEP,
		                                 REGISTER_PORTABLE) != CUDA_SUCCESS) {
			arena_trim(arena, arena->pinned - STEP);
			return false;
		}
	}
	return true;
}

void arena_trim(struct arena *arena, uint64_t bytes)
{
	while (arena->pinned >= bytes + STEP) {
		arena->pinned -= STEP;
		/* This fails if the context that pinned it is gone: it is unpinned then. */
		(void)BEHIND(cuMemHostUnregister)(arena->memory + arena->pinned);
	}
	while (arena->mapped > arena->pinned) {
		arena->mapped -= STEP;
		/* Pages of a memfd stay without a mapping. (Own memory does not.) */
		(void)madvise(arena->memory + arena->mapped, STEP, MADV_REMOVE);
		(void)mmap(arena->memory + arena->mapped, STEP, PROT_NONE, RESERVED | MAP_FIXED, -1,
		           0);
	}
}
