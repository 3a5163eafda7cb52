/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests for each kind of allocation its charge, its release, and that it fails with an
 * out-of-memory error when it does not fit. Run it in a slice of 4 GiB with otherwise idle
 * processes. Prints a line per failed step, and exits 0 if there is none.
 */
#include "driver.h"

#include "charged.h"

static void linear(void)
{
	CUdeviceptr p = 0, q = 0, small[16];
	size_t pitch;

	expect("alloc 1 byte", cuMemAlloc_v2(&p, 1), CUDA_SUCCESS);
	charged("alloc 1 byte", 2 * MIB);
	for (int i = 0; i < 16; i++)
		expect("alloc 64 KiB", cuMemAlloc_v2(&small[i], 65536), CUDA_SUCCESS);
	charged("and 1 MiB more in the same block", 2 * MIB);
	expect("alloc 3 MiB", cuMemAlloc_v2(&q, 3 * MIB), CUDA_SUCCESS);
	charged("alloc 3 MiB", 6 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	charged("free of one in the block", 6 * MIB);
	for (int i = 0; i < 15; i++)
		expect("free", cuMemFree_v2(small[i]), CUDA_SUCCESS);
	expect("free by cuMemFreeAsync", cuMemFreeAsync(small[15], NULL), CUDA_SUCCESS);
	charged("free of all in the block", 4 * MIB);
	expect("free", cuMemFree_v2(q), CUDA_SUCCESS);
	charged("after free", 0);
	expect("free twice", cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
	charged("after freeing twice", 0);
	expect("alloc 0", cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	expect("alloc nearly 2^64", cuMemAlloc_v2(&p, (size_t)-6), CUDA_ERROR_OUT_OF_MEMORY);
	expect("alloc more than the quota", cuMemAlloc_v2(&p, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	charged("after refusals", 0);
	expect("pitch", cuMemAllocPitch_v2(&p, &pitch, 1001, 3000, 4), CUDA_SUCCESS);
	charged("pitch", (pitch * 3000 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
	expect("free of pitch", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("pitch beyond the quota", cuMemAllocPitch_v2(&p, &pitch, GIB, 5, 4),
	       CUDA_ERROR_OUT_OF_MEMORY);
	expect("managed", cuMemAllocManaged(&p, 64 * MIB, 1), CUDA_SUCCESS);
	charged("managed", 64 * MIB);
	expect("free of managed", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("managed beyond the quota", cuMemAllocManaged(&p, 5 * GIB, 1),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after linear memory", 0);
}

static void pools(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	unsigned long long keep = UINT64_MAX, none = 0;
	CUmemoryPool pool, fallback;
	CUdeviceptr p, q;

	cuDeviceGetDefaultMemPool(&fallback, 0);
	expect("async", cuMemAllocAsync(&p, MIB, NULL), CUDA_SUCCESS);
	charged("async 1 MiB", 32 * MIB);
	expect("async again", cuMemAllocAsync(&q, 20 * MIB, NULL), CUDA_SUCCESS);
	charged("async 20 MiB more", 32 * MIB);
	expect("free async", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("free of an async pointer by cuMemFree", cuMemFree_v2(q), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	charged("async, freed and synchronised", 0);

	OK(cuMemPoolSetAttribute(fallback, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	expect("async, per-thread stream", cuMemAllocAsync_ptsz(&p, 100 * MIB, NULL), CUDA_SUCCESS);
	charged("async 100 MiB", 128 * MIB);
	expect("free async", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	charged("async, kept by the threshold", 128 * MIB);
	/* It fits only once the pool releases the memory that it keeps. */
	OK(cuMemAlloc_v2(&p, base - 64 * MIB));
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	charged("after the pool let go", 0);
	expect("async beyond the quota", cuMemAllocAsync(&p, 5 * GIB, NULL),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after an async refusal", 0);
	expect("async", cuMemAllocAsync(&p, MIB, NULL), CUDA_SUCCESS);
	expect("free async", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	expect("trim", cuMemPoolTrimTo(fallback, 0), CUDA_SUCCESS);
	charged("after trim", 0);
	cuMemPoolSetAttribute(fallback, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);

	expect("pool", cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
	charged("an empty pool", 0);
	expect("from pool", cuMemAllocFromPoolAsync(&p, 40 * MIB, pool, NULL), CUDA_SUCCESS);
	charged("from pool 40 MiB", 64 * MIB);
	expect("free async", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	expect("destroy the pool", cuMemPoolDestroy(pool), CUDA_SUCCESS);
	charged("after the pool", 0);
	properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
	properties.location.id = 0;
	if (cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS) {
		OK(cuMemAllocFromPoolAsync(&p, 5 * GIB, pool, NULL));
		charged("from a host pool", 0);
		expect("free async", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
		cuCtxSynchronize();
		cuMemPoolDestroy(pool);
	}
}

static void physical(void)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle a, b, again;
	CUdeviceptr range;

	OK(cuMemAddressReserve(&range, 512 * GIB, 0, 0, 0));
	charged("addresses", 0);
	expect("create", cuMemCreate(&a, 64 * MIB, &properties, 0), CUDA_SUCCESS);
	charged("create", 64 * MIB);
	expect("release", cuMemRelease(a), CUDA_SUCCESS);
	charged("create, release", 0);
	expect("release twice", cuMemRelease(a), CUDA_ERROR_INVALID_VALUE);
	charged("release twice", 0);

	expect("create", cuMemCreate(&a, 64 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("map", cuMemMap(range, 64 * MIB, 0, a, 0), CUDA_SUCCESS);
	expect("release while mapped", cuMemRelease(a), CUDA_SUCCESS);
	charged("mapped without a handle", 64 * MIB);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 4096)));
	expect("unmap", cuMemUnmap(range, 64 * MIB), CUDA_SUCCESS);
	charged("retained without a mapping", 64 * MIB);
	expect("release", cuMemRelease(again), CUDA_SUCCESS);
	charged("neither", 0);

	expect("create", cuMemCreate(&a, 64 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("create", cuMemCreate(&b, 32 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("map", cuMemMap(range, 64 * MIB, 0, a, 0), CUDA_SUCCESS);
	expect("map where there is a mapping", cuMemMap(range, 32 * MIB, 0, b, 0),
	       CUDA_ERROR_INVALID_VALUE);
	expect("map to no addresses", cuMemMap(64 * MIB, 32 * MIB, 0, b, 0),
	       CUDA_ERROR_INVALID_VALUE);
	charged("after failed maps", 96 * MIB);
	expect("release", cuMemRelease(b), CUDA_SUCCESS);
	charged("released, and mapped nowhere", 64 * MIB);
	expect("unmap", cuMemUnmap(range, 64 * MIB), CUDA_SUCCESS);
	charged("a handle and no mapping", 64 * MIB);
	expect("release", cuMemRelease(a), CUDA_SUCCESS);
	charged("neither", 0);

	expect("create", cuMemCreate(&a, 64 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("create", cuMemCreate(&b, 32 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("map", cuMemMap(range, 64 * MIB, 0, a, 0), CUDA_SUCCESS);
	expect("map beside it", cuMemMap(range + 64 * MIB, 32 * MIB, 0, b, 0), CUDA_SUCCESS);
	expect("map again", cuMemMap(range + 96 * MIB, 64 * MIB, 0, a, 0), CUDA_SUCCESS);
	expect("release", cuMemRelease(a), CUDA_SUCCESS);
	expect("release", cuMemRelease(b), CUDA_SUCCESS);
	charged("three mappings of two", 96 * MIB);
	expect("unmap half of one", cuMemUnmap(range, 32 * MIB), CUDA_ERROR_INVALID_VALUE);
	charged("after a failed unmap", 96 * MIB);
	expect("unmap two at once", cuMemUnmap(range, 96 * MIB), CUDA_SUCCESS);
	charged("one mapping left", 64 * MIB);
	expect("unmap", cuMemUnmap(range + 96 * MIB, 64 * MIB), CUDA_SUCCESS);
	charged("none left", 0);
	expect("create beyond the quota", cuMemCreate(&a, 5 * GIB, &properties, 0),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refused create", 0);
	cuMemAddressFree(range, 512 * GIB);
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR square = {
	    .Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR cube = {.Width = 256,
	                                .Height = 256,
	                                .Depth = 256,
	                                .Format = CU_AD_FORMAT_FLOAT,
	                                .NumChannels = 1};
	CUmipmappedArray mipmapped;
	CUarray a, b;

	expect("array", cuArrayCreate_v2(&a, &square), CUDA_SUCCESS);
	charged("array 1000 x 1000 float", 4 * MIB);
	expect("3D array", cuArray3DCreate_v2(&b, &cube), CUDA_SUCCESS);
	charged("3D array 256 x 256 x 256 float", 68 * MIB);
	expect("destroy", cuArrayDestroy(a), CUDA_SUCCESS);
	expect("destroy", cuArrayDestroy(b), CUDA_SUCCESS);
	charged("after arrays", 0);
	cube.Flags = CUDA_ARRAY3D_SPARSE;
	cube.Depth = 0;
	if (cuArray3DCreate_v2(&a, &cube) == CUDA_SUCCESS) {
		charged("sparse array", 0);
		expect("destroy", cuArrayDestroy(a), CUDA_SUCCESS);
	}
	square.Width = square.Height = 40000;
	expect("array beyond the quota", cuArrayCreate_v2(&a, &square), CUDA_ERROR_OUT_OF_MEMORY);
	cube.Flags = 0;
	cube.Depth = 256;
	expect("mipmapped array", cuMipmappedArrayCreate(&mipmapped, &cube, 4), CUDA_SUCCESS);
	if (base - left() < 64 * MIB) {
		printf("mipmapped array: only %zu bytes are charged\n", base - left());
		wrong = 1;
	}
	expect("destroy", cuMipmappedArrayDestroy(mipmapped), CUDA_SUCCESS);
	charged("after arrays", 0);
}

/* A block that a wrong call frees stays with its context, whichever is current. */
static void wrong_frees(void)
{
	CUcontext first, second;
	CUdeviceptr p, q;

	cuCtxGetCurrent(&first);
	expect("alloc 1 byte", cuMemAlloc_v2(&p, 1), CUDA_SUCCESS);
	expect("alloc 3 MiB", cuMemAlloc_v2(&q, 3 * MIB), CUDA_SUCCESS);
	expect("second context", cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
	expect("free inside", cuMemFree_v2(p + 1), CUDA_ERROR_INVALID_VALUE);
	expect("free inside", cuMemFree_v2(q + 1), CUDA_ERROR_INVALID_VALUE);
	expect("destroy it", cuCtxDestroy_v2(second), CUDA_SUCCESS);
	cuCtxSetCurrent(first);
	charged("after wrong frees in another context", 6 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("free", cuMemFree_v2(q), CUDA_SUCCESS);
	charged("after frees", 0);
}

static void contexts(void)
{
	CUcontext second, primary;
	CUdeviceptr p;
	size_t before, with;

	expect("second context", cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
	with = left();
	if (with >= base) {
		printf("a second context costs nothing\n");
		wrong = 1;
	}
	expect("alloc in it", cuMemAlloc_v2(&p, 100 * MIB), CUDA_SUCCESS);
	expect("async in it", cuMemAllocAsync(&p, 100 * MIB, NULL), CUDA_SUCCESS);
	expect("destroy it with what it holds", cuCtxDestroy_v2(second), CUDA_SUCCESS);
	cuDevicePrimaryCtxRetain(&primary, 0);
	cuCtxSetCurrent(primary);
	cuCtxSynchronize();
	/* The device's default pool outlives a context of cuCtxCreate. */
	cuMemFree_v2(p);
	cuCtxSynchronize();
	charged("after a context with live allocations", 0);
	before = left();
	expect("alloc", cuMemAlloc_v2(&p, 300 * MIB), CUDA_SUCCESS);
	expect("reset the primary context", cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	cuDevicePrimaryCtxRelease_v2(0);
	cuDevicePrimaryCtxRelease_v2(0);
	expect("retain anew", cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	cuCtxSetCurrent(primary);
	if (left() != before) {
		printf("after a reset: %zu bytes free, %zu before\n", left(), before);
		wrong = 1;
	}
}

int main(void)
{
	use_primary();
	base = left();
	linear();
	pools();
	physical();
	arrays();
	wrong_frees();
	contexts();
	if (!wrong)
		printf("every kind is charged, refused and given back\n");
	return wrong;
}
