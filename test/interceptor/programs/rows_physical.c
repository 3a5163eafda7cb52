/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory, and its holders: handles and mappings. */
#include "rows.h"

static void physical_within(void)
{
	CUmemAllocationProp properties = on_device(0), told;
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr address = 0;

	OK(cuMemCreate(&handle, 64 * MIB, &properties, 0));
	OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
	if (told.location.type != properties.location.type ||
	    told.location.id != properties.location.id)
		failed("the handle is of another place");
	charged("64 MiB", 64 * MIB);
	OK(cuMemAddressReserve(&address, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
	access_to(address, 64 * MIB);
	usable("mapped memory", address, 64 * MIB);
	OK(cuMemUnmap(address, 64 * MIB));
	charged("unmapped", 64 * MIB);
	OK(cuMemRelease(handle));
	charged("released", 0);
	OK(cuMemAddressFree(address, 64 * MIB));
	report("64 MiB charge 64");
}

static CUresult make(size_t bytes, uint64_t *made)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = cuMemCreate(&handle, bytes, &properties, 0);

	*made = handle;
	return result;
}

static CUresult drop(uint64_t made)
{
	return cuMemRelease(made);
}

/* 64 MiB of the host, while `bytes` are charged. Some drivers lack such memory. */
static const char *on_host(long long bytes)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
	CUmemGenericAllocationHandle handle = 0;
	const char *name = "granted";
	CUresult result = cuMemCreate(&handle, 64 * MIB, &properties, 0);

	if (result == CUDA_ERROR_OUT_OF_MEMORY || (result != CUDA_SUCCESS && simulated()))
		expect("64 MiB of the host", result, CUDA_SUCCESS);
	charged("64 MiB of the host", bytes);
	if (result == CUDA_SUCCESS)
		OK(cuMemRelease(handle));
	else
		cuGetErrorName(result, &name);
	charged("released", bytes);
	return name;
}

static void host_within(void)
{
	report("64 MiB of the host (%s) charge nothing", on_host(0));
}

static void host_beyond(void)
{
	uint64_t more;
	size_t room = left();
	CUdeviceptr pointer = fill(0);
	const char *answer = on_host(whole_blocks(room));

	OUT_OF_MEMORY("32 MiB of the device", make(32 * MIB, &more));
	OK(cuMemFree_v2(pointer));
	charged("at the end", 0);
	report("with the quota full: 64 MiB of the host (%s), 32 of the device refused", answer);
}

static void order_within(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle a = 0, b = 0;
	CUdeviceptr range = 0;

	OK(cuMemAddressReserve(&range, 256 * MIB, 0, 0, 0));
	OK(cuMemCreate(&a, 64 * MIB, &properties, 0));
	OK(cuMemCreate(&b, 32 * MIB, &properties, 0));
	OK(cuMemMap(range, 64 * MIB, 0, a, 0));
	OK(cuMemMap(range + 64 * MIB, 32 * MIB, 0, b, 0));
	OK(cuMemMap(range + 96 * MIB, 64 * MIB, 0, a, 0));
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	charged("three mappings of two, and no handle", 96 * MIB);
	access_to(range, 160 * MIB);
	usable("mapped memory", range, 160 * MIB);
	expect("to unmap a part", cuMemUnmap(range, 32 * MIB), CUDA_ERROR_INVALID_VALUE);
	charged("after that failed", 96 * MIB);
	OK(cuMemUnmap(range, 96 * MIB));
	charged("two unmapped at once", 64 * MIB);
	OK(cuMemUnmap(range + 96 * MIB, 64 * MIB));
	charged("all unmapped", 0);
	OK(cuMemAddressFree(range, 256 * MIB));
	report("64 and 32 MiB stay charged until their last mapping is gone");
}

/* Memory that is mapped without a handle is refused and released alike. */
static void order_beyond(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr range = 0;
	uint64_t more = 0;
	size_t bytes = part(0.6);

	OK(cuMemAddressReserve(&range, bytes, 0, 0, 0));
	OK(cuMemCreate(&handle, bytes, &properties, 0));
	OK(cuMemMap(range, bytes, 0, handle, 0));
	OK(cuMemRelease(handle));
	OUT_OF_MEMORY("as much again", make(bytes, &more));
	charged("after a refusal", (long long)bytes);
	OK(cuMemUnmap(range, bytes));
	charged("unmapped", 0);
	OK(make(bytes, &more));
	OK(drop(more));
	charged("released", 0);
	OK(cuMemAddressFree(range, bytes));
	report("%zu MiB mapped and released: as much again is refused until they are unmapped",
	       bytes / MIB);
}

static void retain_within(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0, again = 0;
	CUdeviceptr range = 0;

	OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
	OK(cuMemCreate(&handle, 64 * MIB, &properties, 0));
	OK(cuMemMap(range, 64 * MIB, 0, handle, 0));
	OK(cuMemRelease(handle));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 4096)));
	OK(cuMemUnmap(range, 64 * MIB));
	charged("a retained handle and no mapping", 64 * MIB);
	OK(cuMemMap(range, 64 * MIB, 0, again, 0));
	OK(cuMemRelease(again));
	charged("mapped anew, and no handle", 64 * MIB);
	OK(cuMemUnmap(range, 64 * MIB));
	charged("neither", 0);
	OK(cuMemAddressFree(range, 64 * MIB));
	report("64 MiB stay charged by a retained handle");
}

static void retain_beyond(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle = 0, again = 0;
	CUdeviceptr range = 0;
	uint64_t more = 0;
	size_t bytes = part(0.6);

	OK(cuMemAddressReserve(&range, bytes, 0, 0, 0));
	OK(cuMemCreate(&handle, bytes, &properties, 0));
	OK(cuMemMap(range, bytes, 0, handle, 0));
	OK(cuMemRelease(handle));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)range));
	OK(cuMemUnmap(range, bytes));
	OUT_OF_MEMORY("as much again", make(bytes, &more));
	OK(cuMemRelease(again));
	charged("released", 0);
	OK(make(bytes, &more));
	OK(drop(more));
	charged("at the end", 0);
	OK(cuMemAddressFree(range, bytes));
	report("%zu MiB retained: as much again is refused until they are released", bytes / MIB);
}

static void addresses_within(void)
{
	CUdeviceptr range = 0;
	size_t bytes = 8 * quota() / (2 * MIB) * (2 * MIB);

	OK(cuMemAddressReserve(&range, bytes, 0, 0, 0));
	charged("addresses of eight times the quota", 0);
	OK(cuMemAddressFree(range, bytes));
	charged("freed", 0);
	report("%zu MiB of addresses charge nothing", bytes / MIB);
}

/* As much of the addresses is mapped as there is memory. */
static void addresses_beyond(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr range = 0;
	size_t bytes, room, step = 256 * MIB, mapped = 0;
	CUresult result;

	room = left();
	bytes = 8 * quota() / (2 * MIB) * (2 * MIB);
	OK(cuMemAddressReserve(&range, bytes, 0, 0, 0));
	while ((result = cuMemCreate(&handle, step, &properties, 0)) == CUDA_SUCCESS &&
	       mapped < bytes) {
		OK(cuMemMap(range + mapped, step, 0, handle, 0));
		OK(cuMemRelease(handle));
		mapped += step;
	}
	OUT_OF_MEMORY("one more", result);
	charged("mapped", (long long)mapped);
	if (mapped > room || mapped + step + 16 * MIB < room)
		failed("%zu bytes fit in %zu", mapped, room);
	OK(cuMemUnmap(range, mapped));
	charged("unmapped", 0);
	OK(cuMemAddressFree(range, bytes));
	report("%zu MiB of %zu could be mapped", mapped / MIB, bytes / MIB);
}

const struct row physical_rows[] = {
    {"physical",
     "cuMemCreate cuMemGetAllocationPropertiesFromHandle cuMemMap cuMemSetAccess cuMemUnmap "
     "cuMemRelease",
     physical_within, .kind = {make, drop}},
    {"physical-host", "cuMemCreate cuMemRelease", host_within, .beyond = host_beyond},
    {"physical-order", "cuMemCreate cuMemMap cuMemUnmap cuMemRelease", order_within,
     .beyond = order_beyond},
    {"physical-retain", "cuMemCreate cuMemMap cuMemRetainAllocationHandle cuMemUnmap cuMemRelease",
     retain_within, .beyond = retain_beyond},
    {"addresses", "cuMemCreate cuMemMap cuMemUnmap cuMemRelease", addresses_within,
     .beyond = addresses_beyond},
    {0}};
