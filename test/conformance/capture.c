/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls invalidate a capture that is in progress. The interceptor makes some of them within
 * calls of the program. */
#include "conformance.h"

static CUcontext context;
static CUstream stream, other;
static CUdeviceptr taken;
static CUmemoryPool pool;
static CUmemGenericAllocationHandle handle;

#define QUESTION(name, call)                                                                       \
	static CUresult ask_##name(void)                                                           \
	{                                                                                          \
		return call;                                                                       \
	}

QUESTION(nothing, CUDA_SUCCESS)
QUESTION(records, cuStreamIsCapturing(stream, &(int){0}))
QUESTION(context_of_stream, cuStreamGetCtx(stream, &(CUcontext){0}))
QUESTION(device_of_stream, cuStreamGetDevice(stream, &(CUdevice){0}))
QUESTION(device_of_stream_ptsz, cuStreamGetDevice_ptsz(stream, &(CUdevice){0}))
QUESTION(device, cuCtxGetDevice(&(CUdevice){0}))
QUESTION(current, cuCtxGetCurrent(&(CUcontext){0}))
QUESTION(push, cuCtxPushCurrent_v2(context))
QUESTION(pop, cuCtxPopCurrent_v2(&(CUcontext){0}))
QUESTION(default_pool, cuDeviceGetDefaultMemPool(&(CUmemoryPool){0}, 0))
QUESTION(pool_of_device, cuDeviceGetMemPool(&(CUmemoryPool){0}, 0))
QUESTION(pool_attribute,
         cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &(uint64_t){0}))
QUESTION(graph_attribute,
         cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &(uint64_t){0}))
QUESTION(limit, cuCtxGetLimit(&(size_t){0}, CU_LIMIT_STACK_SIZE))
QUESTION(memory, cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}))
QUESTION(state, cuDevicePrimaryCtxGetState(0, &(unsigned int){0}, &(int){0}))
QUESTION(trim, cuMemPoolTrimTo(pool, 0))
QUESTION(trim_graphs, cuDeviceGraphMemTrim(0))
QUESTION(create, cuMemCreate(&handle, 2 * MiB,
                             &(CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                             0))
QUESTION(release, cuMemRelease(handle))
QUESTION(alloc, cuMemAlloc_v2(&taken, 4 * MiB))
QUESTION(free, taken ? cuMemFree_v2(taken) : CUDA_SUCCESS)
QUESTION(alloc_beside, cuMemAllocAsync(&taken, 4 * MiB, other))
QUESTION(free_beside, taken ? cuMemFreeAsync(taken, other) : CUDA_SUCCESS)
QUESTION(alloc_from_pool, cuMemAllocFromPoolAsync(&taken, 4 * MiB, pool, other))
QUESTION(free_it, taken ? cuMemFreeAsync(taken, other) : CUDA_SUCCESS)
/* Moving memory to the host and back, in another stream. */
static CUdeviceptr range, mapped;
static CUmemGenericAllocationHandle spare;
static unsigned char *page;
static const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                       CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

QUESTION(synchronize, cuCtxSynchronize())
QUESTION(synchronize_beside, cuStreamSynchronize(other))
QUESTION(synchronize_own, cuStreamSynchronize(CU_STREAM_PER_THREAD))
QUESTION(host_register, cuMemHostRegister_v2(page, 2 * MiB, 1 /* portable */))
QUESTION(host_unregister, cuMemHostUnregister(page))
QUESTION(reserve, cuMemAddressReserve(&range, 2 * MiB, 0, 0, 0))
QUESTION(map, cuMemMap(range, 2 * MiB, 0, spare, 0))
QUESTION(set_access, cuMemSetAccess(range, 2 * MiB, &access, 1))
QUESTION(copy_out, cuMemcpyDtoHAsync_v2(page, mapped, 1 * MiB, CU_STREAM_PER_THREAD))
QUESTION(copy_back, cuMemcpyHtoDAsync_v2(mapped, page, 1 * MiB, CU_STREAM_PER_THREAD))
QUESTION(unmap, cuMemUnmap(range, 2 * MiB))
QUESTION(address_free, cuMemAddressFree(range, 2 * MiB))
QUESTION(threshold, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &(uint64_t){0}))

static const struct {
	const char *name;
	CUresult (*ask)(void);
} questions[] = {
#define ROW(name) {#name, ask_##name},
    ROW(nothing) ROW(records) ROW(context_of_stream) ROW(device_of_stream)
        ROW(device_of_stream_ptsz) ROW(device) ROW(current) ROW(push) ROW(pop) ROW(default_pool)
            ROW(pool_of_device) ROW(pool_attribute) ROW(graph_attribute) ROW(limit) ROW(memory)
                ROW(state) ROW(trim) ROW(trim_graphs) ROW(create) ROW(release) ROW(alloc) ROW(free)
                    ROW(alloc_beside) ROW(free_beside) ROW(alloc_from_pool) ROW(free_it)
                        ROW(synchronize) ROW(synchronize_beside) ROW(synchronize_own)
                            ROW(host_register) ROW(reserve) ROW(map) ROW(set_access) ROW(copy_out)
                                ROW(copy_back) ROW(unmap) ROW(address_free) ROW(host_unregister)
                                    ROW(threshold)};

/* Its result, and those of a later allocation and of the capture's end. */
struct answer {
	CUresult result, after, end;
};

static struct answer record(size_t i, int mode, bool relaxed)
{
	int own = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct answer answer;
	CUdeviceptr pointer;
	CUgraph graph = NULL;

	MUST(cuStreamBeginCapture_v2(stream, mode));
	if (relaxed)
		MUST(cuThreadExchangeStreamCaptureMode(&own));
	answer.result = questions[i].ask();
	if (relaxed)
		MUST(cuThreadExchangeStreamCaptureMode(&own));
	answer.after = cuMemAllocAsync(&pointer, 2 * MiB, stream);
	answer.end = cuStreamEndCapture(stream, &graph);
	if (graph)
		MUST(cuGraphDestroy(graph));
	return answer;
}

int main(void)
{
	/* The last one is in a thread that has set the relaxed mode. */
	static const struct {
		const char *name;
		int mode;
		bool relaxed;
	} modes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL, false},
	             {"thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false},
	             {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED, false},
	             {"thread_relaxed", CU_STREAM_CAPTURE_MODE_GLOBAL, true}};
	struct answer answers[COUNT(modes)][COUNT(questions)];

	context = start_with_context();
	MUST(cuDeviceGetDefaultMemPool(&pool, 0));
	page = aligned_alloc(2 * MiB, 2 * MiB);
	if (!page)
		return 1;
	MUST(cuMemAlloc_v2(&mapped, 2 * MiB));
	MUST(cuMemCreate(&spare, 2 * MiB,
	                 &(CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
	                 0));
	MUST(cuStreamCreate(&stream, 1));
	MUST(cuStreamCreate(&other, 1));
	for (size_t mode = 0; mode < COUNT(modes); mode++)
		for (size_t i = 0; i < COUNT(questions); i++)
			answers[mode][i] = record(i, modes[mode].mode, modes[mode].relaxed);
	for (size_t i = 0; i < COUNT(questions); i++) {
		printf("%s:", questions[i].name);
		for (size_t mode = 0; mode < COUNT(modes); mode++) {
			const struct answer *is = &answers[mode][i];

			printf("%s %s %s, then %s, %s", mode ? ";" : "", modes[mode].name,
			       name_of(is->result), name_of(is->after), name_of(is->end));
		}
		printf("\n");
	}
	return 0;
}
