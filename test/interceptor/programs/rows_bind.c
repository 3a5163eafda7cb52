/* SPDX-License-Identifier: Apache-2.0 */
/* Other holders of physical memory: tiles of sparse arrays, and multicast objects. */
#include "rows.h"

static CUmemGenericAllocationHandle tile_pool(size_t bytes, CUresult wanted)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0;

	properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
	expect("a tile pool", cuMemCreate(&handle, bytes, &properties, 0), wanted);
	return handle;
}

static CUarray sparse(CUarrayMapInfo *info)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
	                                 .Height = 4096,
	                                 .Format = CU_AD_FORMAT_UNSIGNED_INT8,
	                                 .NumChannels = 4,
	                                 .Flags = CUDA_ARRAY3D_SPARSE};
	CUDA_ARRAY_SPARSE_PROPERTIES properties = {0};
	CUarray array = NULL;

	OK(cuArray3DCreate_v2(&array, &shape));
	OK(cuArrayGetSparseProperties(&properties, array));
	*info = (CUarrayMapInfo){.resourceType = CU_RESOURCE_TYPE_ARRAY, .deviceBitMask = 1};
	info->resource.array = array;
	info->subresource.sparseLevel.extentWidth = properties.tileExtent.width;
	info->subresource.sparseLevel.extentHeight = properties.tileExtent.height;
	info->subresource.sparseLevel.extentDepth = 1;
	return array;
}

static void map_tile(CUarrayMapInfo *info, CUmemGenericAllocationHandle handle, bool per_thread)
{
	info->memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
	info->memHandle.memHandle = handle;
	if (per_thread)
		OK(cuMemMapArrayAsync_ptsz(info, 1, NULL));
	else
		OK(cuMemMapArrayAsync(info, 1, NULL));
	OK(cuCtxSynchronize());
}

static void tiles_within(void)
{
	CUmemGenericAllocationHandle handle;
	CUarrayMapInfo info;
	CUarray array = sparse(&info);

	charged("a sparse array", 0);
	for (int per_thread = 0; per_thread < 2; per_thread++) {
		handle = tile_pool(64 * MIB, CUDA_SUCCESS);
		charged("memory for tiles", 64 * MIB);
		map_tile(&info, handle, per_thread);
		OK(cuMemRelease(handle));
		charged("a tile is mapped, and no handle", 64 * MIB);
		if (!per_thread) {
			map_tile(&info, 0, false);
			charged("unmapped", 0);
		}
	}
	OK(cuArrayDestroy(array));
	charged("the array destroyed", 0);
	report("64 MiB stay charged by a tile, until it is unmapped or the array is destroyed");
}

static void tiles_beyond(void)
{
	CUarrayMapInfo info;
	size_t bytes = part(0.6);
	CUarray array = sparse(&info);
	CUmemGenericAllocationHandle handle = tile_pool(bytes, CUDA_SUCCESS);

	map_tile(&info, handle, false);
	OK(cuMemRelease(handle));
	(void)tile_pool(bytes, CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refusal", (long long)bytes);
	map_tile(&info, 0, false);
	handle = tile_pool(bytes, CUDA_SUCCESS);
	OK(cuMemRelease(handle));
	OK(cuArrayDestroy(array));
	charged("at the end", 0);
	report("%zu MiB held by a tile: as much again is refused until it is unmapped",
	       bytes / MIB);
}

static bool one_real_device(void)
{
	if (!simulated())
		report("one device: not on a real GPU");
	return !simulated();
}

static CUmemGenericAllocationHandle multicast(size_t bytes)
{
	CUmulticastObjectProp properties = {.numDevices = 1, .size = bytes};
	CUmemGenericAllocationHandle handle = 0;

	OK(cuMulticastCreate(&handle, &properties));
	OK(cuMulticastAddDevice(handle, 0));
	return handle;
}

static CUresult bind_memory(CUmemGenericAllocationHandle object, size_t at,
                            CUmemGenericAllocationHandle handle, size_t bytes)
{
	__typeof__(&cuMulticastBindMem_v2) newer = OPTIONAL(cuMulticastBindMem_v2);

	return newer ? newer(object, 0, at, handle, 0, bytes, 0)
	             : cuMulticastBindMem(object, at, handle, 0, bytes, 0);
}

static CUresult bind_address(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr address,
                             size_t bytes)
{
	__typeof__(&cuMulticastBindAddr_v2) newer = OPTIONAL(cuMulticastBindAddr_v2);

	return newer ? newer(object, 0, at, address, bytes, 0)
	             : cuMulticastBindAddr(object, at, address, bytes, 0);
}

static void multicast_within(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle a = 0, b = 0;
	CUdeviceptr range = 0;
	CUmemGenericAllocationHandle object = multicast(128 * MIB);

	charged("a multicast object", 0);
	OK(cuMemCreate(&a, 64 * MIB, &properties, 0));
	OK(cuMemCreate(&b, 64 * MIB, &properties, 0));
	OK(bind_memory(object, 0, a, 64 * MIB));
	OK(cuMemRelease(a));
	charged("bound, and no handle", 128 * MIB);
	OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(range, 64 * MIB, 0, b, 0));
	OK(cuMemRelease(b));
	OK(bind_address(object, 64 * MIB, range, 64 * MIB));
	OK(cuMemUnmap(range, 64 * MIB));
	charged("bound by its address, and neither handle nor mapping", 128 * MIB);
	OK(cuMulticastUnbind(object, 0, 0, 64 * MIB));
	charged("the first unbound", 64 * MIB);
	OK(cuMemRelease(object));
	charged("the object released", 0);
	OK(cuMemAddressFree(range, 64 * MIB));
	report("64 and 64 MiB stay charged while they are bound");
}

static void multicast_beyond(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0, more = 0;
	size_t bytes = part(0.6);
	CUmemGenericAllocationHandle object = multicast(bytes);

	OK(cuMemCreate(&handle, bytes, &properties, 0));
	OK(bind_memory(object, 0, handle, bytes));
	OK(cuMemRelease(handle));
	OUT_OF_MEMORY("as much again", cuMemCreate(&more, bytes, &properties, 0));
	OK(cuMulticastUnbind(object, 0, 0, bytes));
	charged("unbound", 0);
	OK(cuMemCreate(&more, bytes, &properties, 0));
	OK(cuMemRelease(more));
	OK(cuMemRelease(object));
	charged("at the end", 0);
	report("%zu MiB bound: as much again is refused until they are unbound", bytes / MIB);
}

const struct row bind_rows[] = {
    {"sparse-tiles",
     "cuArray3DCreate_v2 cuMemCreate cuMemMapArrayAsync cuMemMapArrayAsync_ptsz cuMemRelease "
     "cuArrayDestroy",
     tiles_within, .beyond = tiles_beyond},
    {"multicast",
     "cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastBindMem_v2 "
     "cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastUnbind cuMemRelease",
     multicast_within, .beyond = multicast_beyond, .lacks = one_real_device},
    {0}};
