/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse arrays: their tiles, and how long memory lives that is mapped into them. */
#include "conformance.h"

#include <unistd.h>

static const CUmemAllocationProp tile_pool = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
    .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
static long long before, own_before;

static void measure_from_here(void)
{
	before = held();
	own_before = listed(getpid());
}

static void say(const char *key)
{
	printf("%s: held %+lld, own %+lld\n", key, held() - before, listed(getpid()) - own_before);
}

static void shapes(void)
{
	static const struct {
		const char *name;
		CUDA_ARRAY3D_DESCRIPTOR shape;
	} list[] = {
	    {"1", {4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_SPARSE}},
	    {"2", {4096, 4096, 0, CU_AD_FORMAT_HALF, 1, CUDA_ARRAY3D_SPARSE}},
	    {"4", {4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE}},
	    {"8", {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 2, CUDA_ARRAY3D_SPARSE}},
	    {"16", {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE}},
	    {"box.4", {512, 512, 512, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE}},
	};

	for (size_t i = 0; i < COUNT(list); i++) {
		CUDA_ARRAY_SPARSE_PROPERTIES properties = {.flags = 0};
		CUresult result;
		CUarray array;

		if (cuArray3DCreate_v2(&array, &list[i].shape) != CUDA_SUCCESS) {
			printf("tile.%s: no such array\n", list[i].name);
			continue;
		}
		result = cuArrayGetSparseProperties(&properties, array);
		printf("tile.%s: %s, %u x %u x %u, tail %llu\n", list[i].name, name_of(result),
		       properties.tileExtent.width, properties.tileExtent.height,
		       properties.tileExtent.depth, properties.miptailSize);
		MUST(cuArrayDestroy(array));
	}
}

static CUarrayMapInfo operation(CUarray array, unsigned column, CUhandle memory)
{
	return (CUarrayMapInfo){.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                        .resource.array = array,
	                        .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
	                        .subresource.sparseLevel = {.offsetX = 128 * column,
	                                                    .extentWidth = 128,
	                                                    .extentHeight = 128,
	                                                    .extentDepth = 1},
	                        .memOperationType = memory ? CU_MEM_OPERATION_TYPE_MAP
	                                                   : CU_MEM_OPERATION_TYPE_UNMAP,
	                        .memHandle.memHandle = memory,
	                        .deviceBitMask = 1};
}

static CUresult run(CUarray array, unsigned column, CUhandle memory)
{
	CUarrayMapInfo info = operation(array, column, memory);
	CUresult result = cuMemMapArrayAsync(&info, 1, NULL);

	MUST(cuCtxSynchronize());
	return result;
}

/* Memory under the first two tiles, released, then unmapped tile by tile; and again, under an array
 * that is destroyed. */
static void lifetimes(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {
	    4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE};
	CUhandle memory;
	CUarray array;

	MUST(cuArray3DCreate_v2(&array, &shape));
	measure_from_here();
	MUST(cuMemCreate(&memory, 4 * MiB, &tile_pool, 0));
	say("life.created");
	say_result("life.map", run(array, 0, memory));
	MUST(run(array, 1, memory));
	say("life.mapped");
	MUST(cuMemRelease(memory));
	say("life.released_while_mapped");
	say_result("life.unmap", run(array, 0, 0));
	say("life.one_tile_left");
	MUST(run(array, 1, 0));
	say("life.unmapped");
	say_result("life.unmap_nothing", run(array, 1, 0));
	MUST(cuMemCreate(&memory, 4 * MiB, &tile_pool, 0));
	MUST(run(array, 0, memory));
	MUST(cuMemRelease(memory));
	MUST(cuArrayDestroy(array));
	say("life.array_destroyed");
}

int main(void)
{
	start_with_context();
	shapes();
	lifetimes();
	return 0;
}
