/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "address.h"

#include <search.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* of Linux 4.17: older C libraries lack the name */
#endif

struct ranges allocations;

CUdeviceptr address_reserve(size_t size, size_t alignment)
{
	uintptr_t whole, start;
	size_t slack = size + alignment;
	void *memory;

	if (slack < size)
		return 0;
	memory = mmap(NULL, slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return 0;
	whole = (uintptr_t)memory;
	start = round_up(whole, alignment);
	if (start > whole)
		munmap(memory, start - whole);
	munmap((void *)(start + size), whole + slack - (start + size));
	return start;
}

CUdeviceptr address_reserve_at(CUdeviceptr start, size_t size)
{
	void *memory =
	    mmap((void *)(uintptr_t)start, size, PROT_NONE,
	         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == (void *)(uintptr_t)start)
		return start;
	/* A kernel before 4.17 treats the address as a hint. */
	if (memory != MAP_FAILED)
		munmap(memory, size);
	return address_reserve(size, ADDRESS_STEP);
}

void address_free(CUdeviceptr start, size_t size)
{
	munmap((void *)(uintptr_t)start, size);
}

bool address_back(CUdeviceptr start, size_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)start / page * page;
	uintptr_t end = round_up((uintptr_t)start + size, page);

	return mprotect((void *)first, end - first, PROT_READ | PROT_WRITE) == 0;
}

static bool place(CUdeviceptr start, size_t size, int flags, int file)
{
	return mmap((void *)(uintptr_t)start, size, PROT_NONE, flags | MAP_NORESERVE | MAP_FIXED,
	            file, 0) != MAP_FAILED;
}

bool address_share(CUdeviceptr start, CUdeviceptr other, size_t size, int *file)
{
	if (!*file) {
		int made = (int)syscall(SYS_memfd_create, "shared", 1u);

		if (made <= 0 || ftruncate(made, (off_t)size) != 0 || !address_back(start, size) ||
		    pwrite(made, (void *)(uintptr_t)start, size, 0) != (ssize_t)size ||
		    !place(start, size, MAP_SHARED, made)) {
			close(made);
			return false;
		}
		*file = made;
	}
	return place(other, size, MAP_SHARED, *file);
}

void address_forget(CUdeviceptr start, size_t size)
{
	(void)place(start, size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

/* Overlapping ranges compare equal, so a tree of disjoint ranges finds any address in them. */
static int compare(const void *left, const void *right)
{
	const struct range *a = left, *b = right;

	if (a->start + a->size <= b->start)
		return -1;
	return a->start >= b->start + b->size;
}

bool ranges_add(struct ranges *ranges, struct range *range)
{
	return tsearch(range, &ranges->root, compare) != NULL;
}

void ranges_remove(struct ranges *ranges, struct range *range)
{
	tdelete(range, &ranges->root, compare);
}

struct range *ranges_overlapping(const struct ranges *ranges, CUdeviceptr start, size_t size)
{
	struct range wanted = {.start = start, .size = size};
	void *node = tfind(&wanted, &ranges->root, compare);

	return node ? *(struct range **)node : NULL;
}

struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address)
{
	return ranges_overlapping(ranges, address, 1);
}
