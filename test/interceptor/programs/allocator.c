/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with a malloc of its own that sometimes allocates memory of the card, like one that
 * spills pages there. It does so whenever the interceptor calls it. A hang is ended by SIGALRM.
 * (malloc calls of the driver itself are not tested.) Exits 0 if at the end nothing is charged.
 */
#define _GNU_SOURCE
#include "driver.h"

#include "charged.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA (16ull << 30) /* bytes of addresses */
#define ALIGNMENT ((size_t)16)

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .requestedHandleTypes =
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static char *arena;
static size_t used;
static bool spills; /* set once the program has its context */
static unsigned long spilled;
static uintptr_t interceptor, interceptor_end;
static __thread bool within __attribute__((tls_model("initial-exec")));

/* Never reuses memory: the program is short. */
static void *allocate(size_t bytes, const void *caller)
{
	size_t whole = (bytes + 2 * ALIGNMENT - 1) & ~(ALIGNMENT - 1);
	size_t at = __atomic_fetch_add(&used, whole, __ATOMIC_RELAXED);
	char *block;

	/* The loader makes the first call, before there are threads. */
	if (!arena)
		arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
		             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == MAP_FAILED || at + whole + ALIGNMENT > ARENA)
		return NULL;
	block = arena + at + ALIGNMENT;
	memcpy(block - sizeof(size_t), &bytes, sizeof(size_t));
	if (spills && !within && (uintptr_t)caller >= interceptor &&
	    (uintptr_t)caller < interceptor_end) {
		CUmemGenericAllocationHandle handle;

		within = true;
		if (cuMemCreate(&handle, 2 * MIB, &properties, 0) == CUDA_SUCCESS) {
			__atomic_fetch_add(&spilled, 1, __ATOMIC_RELAXED);
			(void)cuMemRelease(handle);
		}
		within = false;
	}
	return block;
}

void *malloc(size_t bytes)
{
	return allocate(bytes, __builtin_return_address(0));
}

void free(void *block)
{
	(void)block;
}

void *calloc(size_t count, size_t bytes)
{
	if (bytes && count > SIZE_MAX / bytes)
		return NULL;
	return allocate(count * bytes, __builtin_return_address(0));
}

void *realloc(void *block, size_t bytes)
{
	void *other = allocate(bytes, __builtin_return_address(0));
	size_t former;

	if (block && other) {
		memcpy(&former, (char *)block - sizeof(size_t), sizeof(size_t));
		memcpy(other, block, former < bytes ? former : bytes);
	}
	return other;
}

static int find(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size, (void)data;
	if (!strstr(info->dlpi_name, "libgpuslice.so"))
		return 0;
	interceptor = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_LOAD &&
		    info->dlpi_addr + part->p_vaddr + part->p_memsz > interceptor_end)
			interceptor_end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
	}
	return 1;
}

static CUcontext context;

/* More objects and mappings than the interceptor's tables have room for at first. */
static void *work(void *argument)
{
	enum { COUNT = 300 };
	const size_t bytes = 2 * MIB;
	CUmemGenericAllocationHandle handles[COUNT], again;
	CUdeviceptr base = 0;

	OK(cuCtxSetCurrent(context));
	OK(cuMemAddressReserve(&base, COUNT * bytes, 0, 0, 0));
	for (unsigned i = 0; i < COUNT; i++) {
		OK(cuMemCreate(&handles[i], bytes, &properties, 0));
		OK(cuMemMap(base + i * bytes, bytes, 0, handles[i], 0));
	}
	for (unsigned i = 0; i < COUNT; i++) {
		int number = -1;

		if (i % 16 == 0) {
			OK(cuMemExportToShareableHandle(
			    &number, handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
			OK(cuMemImportFromShareableHandle(
			    &again, (void *)(intptr_t)number,
			    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
			OK(cuMemRelease(again));
			close(number);
		}
		OK(cuMemRelease(handles[i]));
		OK(cuMemUnmap(base + i * bytes, bytes));
	}
	return argument;
}

int main(void)
{
	pthread_t threads[4];
	size_t before;
	bool back;

	alarm(30);
	context = use_primary();
	before = left();
	if (!dl_iterate_phdr(find, NULL))
		return 1;
	spills = true;
	work(NULL); /* a thread that hangs now waits for itself */
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	spills = false;
	back = left_becomes(before);
	printf("%lu times from inside malloc, %lld bytes charged at the end\n", spilled,
	       (long long)before - (long long)left());
	return wrong || !back;
}
