/* SPDX-License-Identifier: Apache-2.0 */
/* The pools that CUDA 13.0 has for each location and kind of memory: which ones exist, and the
 * card's memory for an allocation from each. */
#include "conformance.h"

#include <unistd.h>

enum { ATTRIBUTE_LAST = 13 };

static long long before, before_listed;

static uint64_t attribute(CUmemoryPool pool, int which)
{
	uint64_t value = 0;

	MUST(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

static void say(CUmemoryPool pool, const char *place, const char *what)
{
	printf("%s.%s: reserved %llu, used %llu, held %lld, listed %lld\n", place, what,
	       (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
	       (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
	       held() - before, listed(getpid()) - before_listed);
}

static void younger_attributes(CUmemoryPool pool, const char *place)
{
	printf("%s.attributes:", place);
	for (int which = CU_MEMPOOL_ATTR_USED_MEM_HIGH + 1; which <= ATTRIBUTE_LAST; which++) {
		unsigned char value[256] = {0};

		printf(" %d %s", which, name_of(cuMemPoolGetAttribute(pool, which, value)));
	}
	printf("\n");
}

static void allocate(CUmemoryPool pool, const char *place)
{
	CUdeviceptr pointer;
	CUresult result = cuMemAllocFromPoolAsync(&pointer, 100 * MiB, pool, NULL);

	printf("%s.alloc: %s\n", place, name_of(result));
	if (result != CUDA_SUCCESS)
		return;
	MUST(cuCtxSynchronize());
	say(pool, place, "live");
	printf("%s.touch: %s\n", place, name_of(cuMemsetD8_v2(pointer, 1, 100 * MiB)));
	MUST(cuCtxSynchronize());
	say(pool, place, "touched");
	MUST(cuMemFreeAsync(pointer, NULL));
	say(pool, place, "freed");
	MUST(cuCtxSynchronize());
	say(pool, place, "waited");
	MUST(cuMemPoolTrimTo(pool, 0));
	say(pool, place, "trimmed");
}

static void place(int location_type, const char *location_name, int type, const char *type_name)
{
	CUmemLocation location = {.type = location_type};
	CUmemoryPool fallback = NULL, current = NULL, of_device;
	CUresult result;
	char name[64];

	snprintf(name, sizeof(name), "%s.%s", location_name, type_name);
	before = held();
	before_listed = listed(getpid());
	result = cuMemGetDefaultMemPool(&fallback, &location, type);
	printf("%s.default: %s, current %s\n", name, name_of(result),
	       name_of(cuMemGetMemPool(&current, &location, type)));
	if (result != CUDA_SUCCESS)
		return;
	MUST(cuDeviceGetDefaultMemPool(&of_device, 0));
	printf("%s.same: current %d, the device's %d\n", name, fallback == current,
	       fallback == of_device);
	allocate(fallback, name);
	younger_attributes(fallback, name);
}

/* The current pool after the custom current one is destroyed. */
static void current(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemLocation location = properties.location;
	CUmemoryPool fallback, pool, now = NULL;
	int type = CU_MEM_ALLOCATION_TYPE_MANAGED;

	if (cuMemGetDefaultMemPool(&fallback, &location, type) != CUDA_SUCCESS)
		return;
	MUST(cuMemPoolCreate(&pool, &properties));
	say_result("current.set", cuMemSetMemPool(&location, type, pool));
	MUST(cuMemGetMemPool(&now, &location, type));
	printf("current.set.is: %d\n", now == pool);
	say_result("current.wrong_type",
	           cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
	MUST(cuMemPoolDestroy(pool));
	now = NULL;
	say_result("current.destroyed", cuMemGetMemPool(&now, &location, type));
	printf("current.destroyed.default: %d\n", now == fallback);
}

/* A pool that grows while in use first uses the rest of its last step. */
static void growth(int type, const char *name)
{
	CUmemPoolProps properties = {.allocType = type,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool;
	CUdeviceptr small, large;

	before = held();
	before_listed = listed(getpid());
	MUST(cuMemPoolCreate(&pool, &properties));
	MUST(cuMemAllocFromPoolAsync(&small, 1 * MiB, pool, NULL));
	say(pool, name, "1MiB");
	MUST(cuMemAllocFromPoolAsync(&large, 100 * MiB, pool, NULL));
	say(pool, name, "and_100MiB");
	MUST(cuMemFreeAsync(small, NULL));
	MUST(cuMemFreeAsync(large, NULL));
	MUST(cuCtxSynchronize());
	MUST(cuMemPoolDestroy(pool));
}

int main(void)
{
	static const struct {
		int type;
		const char *name;
	} locations[] = {{CU_MEM_LOCATION_TYPE_DEVICE, "device"},
	                 {CU_MEM_LOCATION_TYPE_HOST, "host"},
	                 {CU_MEM_LOCATION_TYPE_HOST_NUMA, "numa"},
	                 {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, "numa_current"}};

	start_with_context();
	if (!cuMemGetDefaultMemPool || !cuMemGetMemPool || !cuMemSetMemPool) {
		printf("pools of places: none\n");
		return 0;
	}
	for (size_t i = 0; i < COUNT(locations); i++) {
		place(locations[i].type, locations[i].name, CU_MEM_ALLOCATION_TYPE_PINNED,
		      "pinned");
		place(locations[i].type, locations[i].name, CU_MEM_ALLOCATION_TYPE_MANAGED,
		      "managed");
	}
	current();
	growth(CU_MEM_ALLOCATION_TYPE_PINNED, "grow.pinned");
	growth(CU_MEM_ALLOCATION_TYPE_MANAGED, "grow.managed");
	return 0;
}
