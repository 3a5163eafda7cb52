/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <stdio.h>
#include <string.h>

static CUdeviceptr kept[MEASURE_MOST];

/* --- linear memory ------------------------------------------------------------------------- */

static void alloc_kept(int i)
{
	CALL(cuMemAlloc, &kept[i], 1024);
}

static void alloc_all(int n)
{
	for (int i = 0; i < n; i++)
		alloc_kept(i);
}

static void free_kept(int i)
{
	CALL(cuMemFree, kept[i]);
}

static void free_all(int n)
{
	for (int i = 0; i < n; i++)
		free_kept(i);
}

static void pair(size_t bytes)
{
	CUdeviceptr p;

	CALL(cuMemAlloc, &p, bytes);
	CALL(cuMemFree, p);
}

static void pair_1k(int i)
{
	(void)i;
	pair(1024);
}

static void pair_1m(int i)
{
	(void)i;
	pair(1u << 20);
}

static void pair_2m(int i)
{
	(void)i;
	pair(2u << 20);
}

static void pair_1g(int i)
{
	(void)i;
	pair(1u << 30);
}

static bool can_pitch(void)
{
	return DRIVER_CAN(cuMemAllocPitch);
}

static void pitched(int i)
{
	CUdeviceptr p;
	size_t pitch;

	(void)i;
	CALL(cuMemAllocPitch, &p, &pitch, 4000, 1000, 4);
	CALL(cuMemFree, p);
}

static bool can_manage(void)
{
	return DRIVER_CAN(cuMemAllocManaged);
}

static void managed(int i)
{
	CUdeviceptr p;

	(void)i;
	CALL(cuMemAllocManaged, &p, 1u << 20, 1 /* CU_MEM_ATTACH_GLOBAL */);
	CALL(cuMemFree, p);
}

/* --- pools --------------------------------------------------------------------------------- */

static void async(int i)
{
	CUdeviceptr p;

	(void)i;
	CALL(cuMemAllocAsync, &p, 1u << 20, NULL);
	CALL(cuMemFreeAsync, p, NULL);
}

static void wait_for_all(int n)
{
	(void)n;
	must(way->cuCtxSynchronize(), "cuCtxSynchronize");
}

/* --- physical memory ------------------------------------------------------------------------ */

#define PHYSICAL_BYTES (2u << 20)

static CUmemGenericAllocationHandle create(void)
{
	static const CUmemAllocationProp properties = {
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;

	CALL(cuMemCreate, &handle, PHYSICAL_BYTES, &properties, 0);
	return handle;
}

static void create_release(int i)
{
	(void)i;
	CALL(cuMemRelease, create());
}

static CUmemGenericAllocationHandle mapped;
static CUdeviceptr address;

static bool can_map(void)
{
	if (!DRIVER_CAN(cuMemAddressReserve) || !DRIVER_CAN(cuMemMap) || !DRIVER_CAN(cuMemUnmap))
		return false;
	CALL(cuMemAddressReserve, &address, PHYSICAL_BYTES, 0, 0, 0);
	return true;
}

static void map_before(int n)
{
	(void)n;
	mapped = create();
}

static void map_unmap(int i)
{
	(void)i;
	CALL(cuMemMap, address, PHYSICAL_BYTES, 0, mapped, 0);
	CALL(cuMemUnmap, address, PHYSICAL_BYTES);
}

static void map_after(int n)
{
	(void)n;
	CALL(cuMemRelease, mapped);
}

/* --- arrays --------------------------------------------------------------------------------- */

static bool can_array(void)
{
	return DRIVER_CAN(cuArrayCreate) && DRIVER_CAN(cuArrayDestroy);
}

static void array(int i)
{
	static const CUDA_ARRAY_DESCRIPTOR shape = {
	    .Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUarray made;

	(void)i;
	CALL(cuArrayCreate, &made, &shape);
	CALL(cuArrayDestroy, made);
}

static bool can_mipmap(void)
{
	return DRIVER_CAN(cuMipmappedArrayCreate) && DRIVER_CAN(cuMipmappedArrayDestroy);
}

static void mipmap(int i)
{
	static const CUDA_ARRAY3D_DESCRIPTOR shape = {
	    .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUmipmappedArray made;

	(void)i;
	CALL(cuMipmappedArrayCreate, &made, &shape, 11);
	CALL(cuMipmappedArrayDestroy, made);
}

/* --- calls that move no memory --------------------------------------------------------------- */

static void context(int i)
{
	CUcontext made;

	(void)i;
	CALL(cuDevicePrimaryCtxRetain, &made, 0);
	CALL(cuDevicePrimaryCtxRelease, 0);
}

static void info(int i)
{
	size_t available, total;

	(void)i;
	CALL(cuMemGetInfo, &available, &total);
}

static nvmlDevice_t card;

static bool can_nvml(void)
{
	return DRIVER_CAN(nvmlInit) && DRIVER_CAN(nvmlDeviceGetHandleByIndex) &&
	       DRIVER_CAN(nvmlDeviceGetMemoryInfo) && program.nvmlInit() == 0 &&
	       program.nvmlDeviceGetHandleByIndex(0, &card) == 0;
}

static void nvml_info(int i)
{
	nvmlMemory_t memory;

	(void)i;
	CALL(nvmlDeviceGetMemoryInfo, card, &memory);
}

/* PTX, which the driver compiles once. */
static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry nothing()\n{\n ret;\n}\n";

static void load(int i)
{
	void *module;

	(void)i;
	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleUnload, module);
}

static void *kernel;

static bool can_launch(void)
{
	void *module;

	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleGetFunction, &kernel, module, "nothing");
	return true;
}

static void launch(int i)
{
	(void)i;
	CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* A library's kernel, in a process with a second context where the library is not loaded: as in a
 * process that has several devices and uses one. */
static void *kernel_of_library;

static bool can_launch_kernel(void)
{
	CUcontext first, second;
	void *library;

	if (!DRIVER_CAN(cuCtxCreate) || !DRIVER_CAN(cuLibraryLoadData) ||
	    !DRIVER_CAN(cuLibraryGetKernel))
		return false;
	CALL(cuDevicePrimaryCtxRetain, &first, 0);
	CALL(cuCtxCreate, &second, 0, 0);
	CALL(cuCtxSetCurrent, first);
	CALL(cuLibraryLoadData, &library, ptx, NULL, NULL, 0, NULL, NULL, 0);
	CALL(cuLibraryGetKernel, &kernel_of_library, library, "nothing");
	return true;
}

static void launch_kernel(int i)
{
	(void)i;
	CALL(cuLaunchKernel, kernel_of_library, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static CUgraphExec graph;

static bool can_graph(void)
{
	CUgraph recorded;
	CUgraphNode node;

	if (!DRIVER_CAN(cuGraphCreate) || !DRIVER_CAN(cuGraphAddEmptyNode) ||
	    !DRIVER_CAN(cuGraphInstantiateWithFlags) || !DRIVER_CAN(cuGraphLaunch))
		return false;
	CALL(cuGraphCreate, &recorded, 0);
	CALL(cuGraphAddEmptyNode, &node, recorded, NULL, 0);
	CALL(cuGraphInstantiateWithFlags, &graph, recorded, 0);
	return true;
}

static void launch_graph(int i)
{
	(void)i;
	CALL(cuGraphLaunch, graph, NULL);
}

static void synchronize(int i)
{
	(void)i;
	CALL(cuStreamSynchronize, NULL);
}

/* --- all of them ----------------------------------------------------------------------------- */

static const struct call call_context = {.name = "a context, made and destroyed", .once = context};

const struct call call_small_kept = {
    .name = "cuMemAlloc 1 KiB, kept", .once = alloc_kept, .after = free_all};
const struct call call_small_pair = {.name = "cuMemAlloc + cuMemFree 1 KiB", .once = pair_1k};
const struct call call_2m = {.name = "cuMemAlloc + cuMemFree 2 MiB", .once = pair_2m};
const struct call call_async = {
    .name = "cuMemAllocAsync + cuMemFreeAsync 1 MiB, warm", .once = async, .after = wait_for_all};

/* In the order of the table. */
static const struct call *const calls[] = {
    &call_small_kept,
    &(const struct call){.name = "cuMemFree of those", .before = alloc_all, .once = free_kept},
    &(const struct call){.name = "cuMemAlloc + cuMemFree 1 MiB", .once = pair_1m},
    &call_2m,
    &(const struct call){.name = "cuMemAlloc + cuMemFree 1 GiB", .once = pair_1g},
    &(const struct call){
        .name = "cuMemAllocPitch + cuMemFree 4 MB", .can = can_pitch, .once = pitched},
    &(const struct call){
        .name = "cuMemAllocManaged + cuMemFree 1 MiB", .can = can_manage, .once = managed},
    &call_async,
    &(const struct call){.name = "cuMemCreate + cuMemRelease 2 MiB", .once = create_release},
    &(const struct call){.name = "cuMemMap + cuMemUnmap 2 MiB",
                         .can = can_map,
                         .before = map_before,
                         .once = map_unmap,
                         .after = map_after},
    &(const struct call){
        .name = "cuArrayCreate + cuArrayDestroy 4 MB", .can = can_array, .once = array},
    &(const struct call){
        .name = "cuMipmappedArrayCreate + Destroy 5 MB", .can = can_mipmap, .once = mipmap},
    &call_ipc,
    &(const struct call){.name = "cuMemGetInfo", .once = info},
    &(const struct call){.name = "nvmlDeviceGetMemoryInfo", .can = can_nvml, .once = nvml_info},
    /* The driver queues about a thousand launches; one more waits. */
    &(const struct call){.name = "cuLaunchKernel, empty",
                         .can = can_launch,
                         .most = 500,
                         .once = launch,
                         .after = wait_for_all},
    &(const struct call){.name = "cuGraphLaunch, no allocation in it",
                         .can = can_graph,
                         .most = 500,
                         .once = launch_graph,
                         .after = wait_for_all},
    &(const struct call){.name = "cuStreamSynchronize, idle", .once = synchronize},
    &(const struct call){.name = "cuModuleLoadData + cuModuleUnload, small", .once = load},
    /* Last, as its context stays. */
    &(const struct call){.name = "cuLaunchKernel, one of two contexts",
                         .can = can_launch_kernel,
                         .most = 500,
                         .once = launch_kernel,
                         .after = wait_for_all},
};

static void show(const struct call *call, double milliseconds)
{
	struct cost cost;

	printf("{");
	if (call->can && !call->can()) {
		printf("\"call\":\"%s\",\"skipped\":true", call->name);
	} else {
		cost = measure(call, milliseconds);
		print_cost(call, &cost);
	}
	printf("}\n");
	fflush(stdout);
}

/* Returns whether a call is selected: its name contains one of the texts, which NULL ends. Without
 * texts all are. */
static int wanted(const struct call *call, char *const *texts)
{
	for (char *const *text = texts; *text; text++)
		if (strstr(call->name, *text))
			return 1;
	return !*texts;
}

void calls_measure(double milliseconds, char *const *texts)
{
	/* The primary context is measured before it is retained. */
	CALL(cuInit, 0);
	if (wanted(&call_context, texts))
		show(&call_context, milliseconds);
	driver_begin();
	measure_stay();
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
		if (wanted(calls[i], texts))
			show(calls[i], milliseconds);
}
