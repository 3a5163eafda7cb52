/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: pools of all locations, and the calls that shrink them. */
#include "rows.h"

static CUmemPoolProps properties(int type, int location)
{
	return (CUmemPoolProps){.allocType = type, .location = {.type = location}};
}

/* Freed in order, and the pool trimmed: by default a pool keeps nothing after a synchronization. */
static CUresult drop(uint64_t made)
{
	CUresult result = cuMemFreeAsync(made, NULL);

	return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}

static CUresult make_default(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	CUresult result = cuMemAllocAsync(&pointer, bytes, NULL);

	*made = pointer;
	return result;
}

static void default_within(void)
{
	CUdeviceptr a = 0, b = 0;

	OK(cuMemAllocAsync(&a, 40 * MIB, NULL));
	charged("40 MiB", 64 * MIB);
	OK(cuMemAllocAsync(&b, 20 * MIB, NULL));
	charged("20 MiB more, in the same steps", 64 * MIB);
	OK(cuCtxSynchronize());
	usable("a pool's memory", a, 40 * MIB);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuMemFree_v2(b));
	OK(cuCtxSynchronize());
	charged("freed and synchronised", 0);
	report("40 and 20 MiB charge 64 in steps of 32, and 0 when they are freed and waited for");
}

static void waits_within(void)
{
	__typeof__(&cuCtxSynchronize_v2) of_context = OPTIONAL(cuCtxSynchronize_v2);
	CUstream stream = NULL;
	CUevent event = NULL;
	CUdeviceptr pointer = 0;

	OK(cuStreamCreate(&stream, 1));
	OK(cuEventCreate(&event, 0));
	for (unsigned way = 0; way < 3; way++) {
		if (way == 2 && !of_context)
			continue;
		OK(cuMemAllocAsync(&pointer, 64 * MIB, stream));
		charged("64 MiB", 64 * MIB);
		OK(cuMemFreeAsync(pointer, stream));
		if (way == 0) {
			OK(cuStreamSynchronize(stream));
		} else if (way == 1) {
			OK(cuEventRecord(event, stream));
			OK(cuEventSynchronize(event));
		} else {
			OK(of_context(own_context));
		}
		charged("freed and waited for", 0);
	}
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(stream));
	report("a stream, an event%s: each wait gives 64 MiB back",
	       of_context ? ", the context by its handle" : "");
}

/* The program need not synchronize: a pool's free bytes are released for another request. */
static void waits_beyond(void)
{
	unsigned long long keep = UINT64_MAX, none = 0;
	CUmemoryPool pool = NULL;
	CUdeviceptr pointer = 0, more;
	size_t bytes = part(0.6);

	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocAsync(&pointer, bytes, NULL));
	OUT_OF_MEMORY("as much again", cuMemAllocAsync(&more, bytes, NULL));
	charged("after a refusal", (long long)bytes);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuStreamSynchronize(NULL));
	charged("kept by the threshold", (long long)bytes);
	OK(cuMemAlloc_v2(&pointer, bytes));
	charged("linear memory in place of what the pool kept", (long long)bytes);
	OK(cuMemFree_v2(pointer));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
	charged("freed", 0);
	report("%zu MiB that a pool kept are released for a larger request", bytes / MIB);
}

static void own_within(void)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	__typeof__(&cuMemSetMemPool) set = OPTIONAL(cuMemSetMemPool);
	unsigned long long keep = UINT64_MAX;
	CUmemoryPool pool = NULL, usual = NULL;
	CUdeviceptr a = 0, b = 0;

	OK(cuMemPoolCreate(&pool, &shape));
	charged("an empty pool", 0);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocFromPoolAsync(&a, 100 * MIB, pool, NULL));
	charged("100 MiB from it", 128 * MIB);
	OK(cuCtxSynchronize());
	usable("the pool's memory", a, 100 * MIB);
	OK(cuDeviceGetDefaultMemPool(&usual, 0));
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuMemAllocAsync(&b, 20 * MIB, NULL));
	charged("20 MiB of the device's pool, which is this", 128 * MIB);
	OK(cuMemFreeAsync(b, NULL));
	if (set) {
		OK(set(&location, CU_MEM_ALLOCATION_TYPE_PINNED, usual));
		OK(set(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
	}
	OK(cuDeviceSetMemPool(0, usual));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	charged("freed, kept by the threshold", 128 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	charged("trimmed", 0);
	OK(cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, NULL));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	charged("40 MiB, freed and kept", 64 * MIB);
	OK(cuMemPoolDestroy(pool));
	charged("destroyed", 0);
	report(
	    "100 MiB charge 128 until they are trimmed, 40 charge 64 until the pool is destroyed");
}

static CUmemoryPool pool_in_use;

static CUresult make_own(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	CUresult result = cuMemAllocFromPoolAsync(&pointer, bytes, pool_in_use, NULL);

	*made = pointer;
	return result;
}

static void beyond_in(CUmemPoolProps shape)
{
	static const struct kind kind = {make_own, drop};

	OK(cuMemPoolCreate(&pool_in_use, &shape));
	refused_beyond(&kind);
	OK(cuMemPoolDestroy(pool_in_use));
	charged("the pool destroyed", 0);
}

static void own_beyond(void)
{
	beyond_in(properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE));
}

static void managed_within(void)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE);
	CUmemoryPool pool = NULL;
	CUdeviceptr pointer = 0;

	OK(cuMemPoolCreate(&pool, &shape));
	OK(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
	OK(cuCtxSynchronize());
	charged("64 MiB", 64 * MIB);
	usable("managed memory of a pool", pointer, 64 * MIB);
	charged("touched", 64 * MIB);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
	charged("freed and synchronised", 0);
	OK(cuMemPoolDestroy(pool));
	report("64 MiB charge 64");
}

static void managed_beyond(void)
{
	beyond_in(properties(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE));
}

/* 256 MiB of the host, while `bytes` are charged. */
static void on_host(long long bytes)
{
	CUmemPoolProps shape = properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
	CUmemoryPool pool = NULL;
	CUdeviceptr pointer = 0;

	OK(cuMemPoolCreate(&pool, &shape));
	OK(cuMemAllocFromPoolAsync(&pointer, 256 * MIB, pool, NULL));
	OK(cuCtxSynchronize());
	charged("256 MiB of the host", bytes);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(pool));
	charged("freed", bytes);
}

static void host_within(void)
{
	on_host(0);
	report("256 MiB of the host charge nothing");
}

static void host_beyond(void)
{
	CUdeviceptr more;
	size_t room = left();
	CUdeviceptr pointer = fill(0);

	on_host(whole_blocks(room));
	OUT_OF_MEMORY("32 MiB of the device", cuMemAlloc_v2(&more, 32 * MIB));
	OK(cuMemFree_v2(pointer));
	charged("at the end", 0);
	report("with the quota full: 256 MiB of the host are granted, 32 of the device refused");
}

static void threads_within(void)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	CUmemoryPool pool = NULL;
	CUdeviceptr a = 0, b = 0;

	OK(cuMemPoolCreate(&pool, &shape));
	OK(cuMemAllocAsync_ptsz(&a, 40 * MIB, NULL));
	charged("40 MiB", 64 * MIB);
	OK(cuMemAllocFromPoolAsync_ptsz(&b, 100 * MIB, pool, NULL));
	charged("100 MiB of another pool", 192 * MIB);
	OK(cuStreamSynchronize_ptsz(NULL));
	usable("a pool's memory", b, 100 * MIB);
	OK(cuMemFreeAsync_ptsz(a, NULL));
	OK(cuMemFreeAsync_ptsz(b, NULL));
	OK(cuStreamSynchronize_ptsz(NULL));
	charged("freed and waited for", 0);
	OK(cuMemPoolDestroy(pool));
	OK(cuMemAlloc_v2(&a, 64 * MIB));
	OK(cuMemFreeAsync_ptsz(a, NULL));
	OK(cuStreamSynchronize_ptsz(NULL));
	charged("linear memory freed in the stream", 0);
	report("40 and 100 MiB charge 64 and 128, and 0 when they are freed and waited for");
}

static CUresult make_thread(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	CUresult result = cuMemAllocAsync_ptsz(&pointer, bytes, NULL);

	*made = pointer;
	return result;
}

static CUresult drop_thread(uint64_t made)
{
	CUresult result = cuMemFreeAsync_ptsz(made, NULL);

	return result == CUDA_SUCCESS ? cuStreamSynchronize_ptsz(NULL) : result;
}

/* After the device's current pool is destroyed, the default pool is current. */
static void begin_without_current(void)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	CUmemoryPool pool = NULL, usual = NULL, current = NULL;
	CUdeviceptr pointer = 0;

	begin();
	OK(cuMemPoolCreate(&pool, &shape));
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuMemAllocAsync(&pointer, 40 * MIB, NULL));
	charged("40 MiB of the current pool", 64 * MIB);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuMemPoolDestroy(pool));
	OK(cuCtxSynchronize());
	charged("it is destroyed", 0);
	OK(cuDeviceGetDefaultMemPool(&usual, 0));
	OK(cuDeviceGetMemPool(&current, 0));
	if (current != usual)
		failed("the current pool is not the default one");
}

static void current_within(void)
{
	CUdeviceptr a = 0, b = 0;

	OK(cuMemAllocAsync(&a, 40 * MIB, NULL));
	charged("40 MiB", 64 * MIB);
	OK(cuMemAllocAsync(&b, 20 * MIB, NULL));
	charged("20 MiB more, in the same steps", 64 * MIB);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuMemFreeAsync(b, NULL));
	OK(cuCtxSynchronize());
	charged("freed and synchronised", 0);
	report("with the current pool destroyed, 40 and 20 MiB charge 64");
}

static const char *const found_names[] = {"cuMemGetDefaultMemPool", "cuMemGetMemPool"};

static CUmemoryPool find_managed(unsigned which)
{
	__typeof__(&cuMemGetMemPool) find =
	    which ? OPTIONAL(cuMemGetMemPool) : OPTIONAL(cuMemGetDefaultMemPool);
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemoryPool pool = NULL;

	if (!find)
		report("no %s", found_names[which]);
	else
		expect(found_names[which], find(&pool, &location, CU_MEM_ALLOCATION_TYPE_MANAGED),
		       CUDA_SUCCESS);
	return pool;
}

static void found_within(void)
{
	for (unsigned which = 0; which < 2; which++) {
		CUmemoryPool pool = find_managed(which);
		CUdeviceptr pointer = 0;

		if (!pool)
			continue;
		OK(cuMemAllocFromPoolAsync(&pointer, 100 * MIB, pool, NULL));
		OK(cuCtxSynchronize());
		charged("100 MiB", 128 * MIB);
		usable("managed memory of a pool", pointer, 100 * MIB);
		OK(cuMemFreeAsync(pointer, NULL));
		OK(cuCtxSynchronize());
		OK(cuMemPoolTrimTo(pool, 0));
		charged("freed and trimmed", 0);
		report("%s: 100 MiB charge 128", found_names[which]);
	}
}

static void found_beyond(void)
{
	static const struct kind kind = {make_own, drop};

	for (unsigned which = 0; which < 2; which++) {
		pool_in_use = find_managed(which);
		if (pool_in_use)
			refused_beyond(&kind);
	}
}

/* Pools are destroyed while their memory is in use: it is released when it is freed. */
static void destroy_many(unsigned rounds)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);

	for (unsigned i = 0; i < rounds; i++) {
		CUmemoryPool pool = NULL;
		CUdeviceptr pointer = 0;
		CUresult result;

		OK(cuMemPoolCreate(&pool, &shape));
		result = cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL);
		if (result != CUDA_SUCCESS) {
			failed("round %u", i);
			expect("1 MiB of a new pool", result, CUDA_SUCCESS);
			return;
		}
		OK(cuMemPoolDestroy(pool));
		OK(cuMemFreeAsync(pointer, NULL));
		OK(cuCtxSynchronize());
	}
}

#define ROUNDS 300

static void destroyed_within(void)
{
	CUmemPoolProps shape =
	    properties(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
	CUmemoryPool pool = NULL;
	CUdeviceptr a = 0, b = 0;

	OK(cuMemPoolCreate(&pool, &shape));
	OK(cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&b, MIB, pool, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(pool));
	charged("destroyed in use", 64 * MIB);
	usable("memory of a destroyed pool", a, 40 * MIB);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	charged("40 MiB freed", 32 * MIB);
	OK(cuMemFreeAsync(b, NULL));
	OK(cuCtxSynchronize());
	charged("all freed", 0);
	destroy_many(ROUNDS);
	charged("at the end", 0);
	report("a pool destroyed in use charges until its memory is freed: %u times in a row",
	       ROUNDS);
}

static void destroyed_beyond(void)
{
	long long room = (long long)left();

	(void)fill(64 * MIB);
	room -= (long long)left();
	destroy_many(ROUNDS);
	charged("at the end", room);
	report("%u pools in turn, with room for two", ROUNDS);
}

const struct row pool_rows[] = {
    {"pool-default", "cuMemAllocAsync cuMemFreeAsync cuMemFree_v2 cuCtxSynchronize", default_within,
     .kind = {make_default, drop}},
    {"pool-waits",
     "cuMemAllocAsync cuMemFreeAsync cuStreamSynchronize cuEventSynchronize cuCtxSynchronize_v2 "
     "cuMemPoolSetAttribute",
     waits_within, .beyond = waits_beyond},
    {"pool-own",
     "cuMemPoolCreate cuMemAllocFromPoolAsync cuMemPoolSetAttribute cuMemPoolTrimTo "
     "cuMemPoolDestroy cuDeviceSetMemPool cuMemSetMemPool cuMemAllocAsync cuMemFreeAsync",
     own_within, .beyond = own_beyond},
    {"pool-managed", "cuMemPoolCreate cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolDestroy",
     managed_within, .beyond = managed_beyond},
    {"pool-current",
     "cuMemPoolCreate cuDeviceSetMemPool cuMemPoolDestroy cuMemAllocAsync cuMemFreeAsync",
     current_within, .kind = {make_default, drop}, .begin = begin_without_current},
    {"pool-found",
     "cuMemGetDefaultMemPool cuMemGetMemPool cuMemAllocFromPoolAsync cuMemFreeAsync "
     "cuMemPoolTrimTo",
     found_within, .beyond = found_beyond},
    {"pool-destroyed", "cuMemPoolCreate cuMemAllocFromPoolAsync cuMemPoolDestroy cuMemFreeAsync",
     destroyed_within, .beyond = destroyed_beyond},
    {"pool-host", "cuMemPoolCreate cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolDestroy",
     host_within, .beyond = host_beyond},
    {"pool-threads",
     "cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync_ptsz cuMemFreeAsync_ptsz "
     "cuStreamSynchronize_ptsz",
     threads_within, .kind = {make_thread, drop_thread}},
    {0}};
