/* SPDX-License-Identifier: Apache-2.0 */
/* Figures that CUDA and NVML show to programs, and look-ups of functions by name. */
#include "rows.h"

#include "nvml_abi.h"

#include <dlfcn.h>
#include <stdio.h>

static nvmlDevice_t device;

static void *nvml_symbol(const char *name)
{
	static void *library;
	void *function;

	if (!library)
		library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	function = library ? dlsym(library, name) : NULL;
	if (!function)
		failed("NVML has no %s", name);
	return function;
}

static bool nvml_begin(void)
{
	nvmlReturn_t (*init)(void) = nvml_symbol("nvmlInit_v2");
	nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *) =
	    nvml_symbol("nvmlDeviceGetHandleByUUID");
	char text[48];
	CUuuid u;
	size_t at;

	OK(cuDeviceGetUuid_v2(&u, 0));
	at = (size_t)snprintf(text, sizeof(text), "GPU-");
	for (unsigned i = 0; i < 16; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%02x",
		                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		                       (unsigned char)u.bytes[i]);
	if (!init || !by_uuid || init() || by_uuid(text, &device)) {
		failed("NVML has no device %s", text);
		return false;
	}
	return true;
}

/* CUDA and NVML agree on the quota, and on its free bytes. */
static void agree(size_t expected)
{
	nvmlReturn_t (*info)(nvmlDevice_t, nvmlMemory_t *) = nvml_symbol("nvmlDeviceGetMemoryInfo");
	size_t available = 0, total = 0;
	nvmlMemory_t memory = {0};

	OK(cuMemGetInfo_v2(&available, &total));
	if (total != quota() || total != expected)
		failed("cuMemGetInfo shows %zu bytes, cuDeviceTotalMem %zu", total, quota());
	if (!info || info(device, &memory)) {
		failed("nvmlDeviceGetMemoryInfo fails");
		return;
	}
	if (memory.total != total || memory.used + memory.free != total)
		failed("NVML shows %llu bytes of which %llu are used and %llu free, CUDA %zu",
		       memory.total, memory.used, memory.free, total);
	/* A sample of driver truth may come between the two calls. */
	if (memory.free > available + 16 * MIB || available > memory.free + 16 * MIB)
		failed("NVML shows %llu bytes free, CUDA %zu", memory.free, available);
}

static void knows_its_context(CUdeviceptr pointer)
{
	int attribute = CU_POINTER_ATTRIBUTE_CONTEXT, on = 1;
	CUcontext current = NULL, told = NULL, listed = NULL;
	void *list = &listed;

	OK(cuCtxGetCurrent(&current));
	OK(cuPointerGetAttribute(&told, attribute, pointer));
	OK(cuPointerGetAttributes(1, &attribute, &list, pointer));
	if (!current || told != current || listed != current)
		failed("memory has the contexts %p and %p, not %p", (void *)told, (void *)listed,
		       (void *)current);
	OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
}

static void info_within(void)
{
	CUdeviceptr pointer = 0;
	unsigned int old = 0;
	size_t bytes;

	if (!nvml_begin())
		return;
	bytes = quota();
	agree(bytes);
	OK(cuDeviceTotalMem(&old, 0));
	if (old != (bytes < UINT32_MAX ? bytes : UINT32_MAX))
		failed("cuDeviceTotalMem tells %u bytes", old);
	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	charged("64 MiB", 64 * MIB);
	knows_its_context(pointer);
	agree(bytes);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("CUDA and NVML show %zu bytes, and the same free", bytes);
}

static void info_beyond(void)
{
	CUdeviceptr pointer, more;
	size_t bytes, free_then;

	if (!nvml_begin())
		return;
	bytes = quota();
	pointer = fill(0);
	agree(bytes);
	free_then = left();
	if (free_then >= 2 * MIB)
		failed("%zu bytes are free in a full slice", free_then);
	OUT_OF_MEMORY("what is shown not to be free", cuMemAlloc_v2(&more, free_then + 2 * MIB));
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	agree(bytes);
	report("a full slice shows %zu bytes free of %zu", free_then, bytes);
}

typedef CUresult (*allocate_function)(CUdeviceptr *pointer, size_t bytes);

static allocate_function found(int form)
{
	void *function = NULL;
	int status = -1;

	if (form == 0)
		OK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0));
	else
		OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
	if (!function)
		failed("cuGetProcAddress finds no cuMemAlloc");
	return (allocate_function)function;
}

static void routes_within(void)
{
	CUdeviceptr pointer = 0;

	for (int form = 0; form < 2; form++) {
		allocate_function allocate = found(form);

		if (!allocate)
			return;
		OK(allocate(&pointer, 64 * MIB));
		charged("64 MiB by a function that was found by name", 64 * MIB);
		OK(cuMemFree_v2(pointer));
		charged("freed", 0);
	}
	report("64 MiB charge 64, by both forms");
}

static CUresult make(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	allocate_function allocate = found(1);
	CUresult result = allocate ? allocate(&pointer, bytes) : CUDA_ERROR_NOT_FOUND;

	*made = pointer;
	return result;
}

static CUresult drop(uint64_t made)
{
	return cuMemFree_v2(made);
}

static void processes(size_t least)
{
	nvmlReturn_t (*list)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *) =
	    nvml_symbol("nvmlDeviceGetComputeRunningProcesses_v3");
	nvmlProcessInfo_v2_t process[8];
	unsigned int count = 8;

	if (!list || list(device, &count, process))
		failed("nvmlDeviceGetComputeRunningProcesses_v3 fails");
	else if (count != 1)
		failed("NVML lists %u processes, of a slice with one", count);
	else if (process[0].usedGpuMemory < least)
		failed("NVML lists %llu bytes, of at least %zu", process[0].usedGpuMemory, least);
}

static void processes_within(void)
{
	CUdeviceptr pointer = 0;

	if (!nvml_begin())
		return;
	processes(1);
	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	processes(64 * MIB);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("NVML lists the one process of the slice");
}

static void processes_beyond(void)
{
	CUdeviceptr pointer, more;
	size_t room;

	if (!nvml_begin())
		return;
	room = left();
	pointer = fill(0);
	processes(room - 2 * MIB);
	OUT_OF_MEMORY("32 MiB more", cuMemAlloc_v2(&more, 32 * MIB));
	processes(room - 2 * MIB);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("NVML lists what a process holds that filled the slice");
}

const struct row info_rows[] = {
    {"info",
     "cuMemGetInfo_v2 cuDeviceTotalMem cuDeviceTotalMem_v2 nvmlDeviceGetMemoryInfo "
     "cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute",
     info_within, .beyond = info_beyond},
    {"routes", "cuGetProcAddress cuGetProcAddress_v2", routes_within, .kind = {make, drop}},
    {"processes", "nvmlDeviceGetComputeRunningProcesses_v3", processes_within,
     .beyond = processes_beyond},
    {0}};
