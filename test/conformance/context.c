/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: the card's memory that each takes, and what is freed with it. */
#include "conformance.h"

static long long before;

static void say_held(const char *key)
{
	printf("%s: %lld\n", key, held() - before);
}

static void say_primary(const char *key)
{
	unsigned int flags;
	int active;

	MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
	printf("%s: active %d, held %lld\n", key, active, held() - before);
}

static void primary(void)
{
	CUcontext first, second;

	say_primary("primary.before");
	MUST(cuDevicePrimaryCtxRetain(&first, 0));
	say_primary("primary.retained");
	MUST(cuDevicePrimaryCtxRetain(&second, 0));
	say_primary("primary.retained_twice");
	printf("primary.same: %d\n", first == second);
	MUST(cuDevicePrimaryCtxRelease_v2(0));
	say_primary("primary.released_once");
	MUST(cuDevicePrimaryCtxRelease_v2(0));
	say_primary("primary.released_twice");
	say_result("primary.released_thrice", cuDevicePrimaryCtxRelease_v2(0));
	MUST(cuDevicePrimaryCtxRetain(&first, 0));
	say_primary("primary.again");
	MUST(cuDevicePrimaryCtxReset_v2(0));
	say_primary("primary.reset");
	say_result("primary.set_current_after_reset", cuCtxSetCurrent(first));
	MUST(cuCtxSetCurrent(NULL));
	say_result("primary.release_after_reset", cuDevicePrimaryCtxRelease_v2(0));
	say_primary("primary.end");
}

static void create(const char *key, CUresult result, CUcontext context)
{
	printf("%s: %s, held %lld\n", key, name_of(result), held() - before);
	if (result == CUDA_SUCCESS)
		MUST(cuCtxDestroy_v2(context));
}

static void versions(void)
{
	CUcontext context, second, current;
	CUresult result;

	result = cuCtxCreate(&context, 0, 0);
	create("create.v1", result, context);
	result = cuCtxCreate_v2(&context, 0, 0);
	create("create.v2", result, context);
	if (cuCtxCreate_v3) {
		result = cuCtxCreate_v3(&context, NULL, 0, 0, 0);
		create("create.v3", result, context);
	}
	if (cuCtxCreate_v4) {
		result = cuCtxCreate_v4(&context, NULL, 0, 0);
		create("create.v4", result, context);
	}
	say_held("create.all_destroyed");
	say_result("create.no_device", cuCtxCreate_v2(&context, 0, 1000));

	MUST(cuCtxCreate_v2(&context, 0, 0));
	say_held("second.first");
	MUST(cuCtxCreate_v2(&second, 0, 0));
	say_held("second.both");
	MUST(cuCtxGetCurrent(&current));
	printf("second.is_current: %d\n", current == second);
	MUST(cuCtxDestroy_v2(context));
	say_held("second.first_destroyed");
	MUST(cuCtxDestroy_v2(second));
	say_held("second.both_destroyed");
	MUST(cuCtxGetCurrent(&current));
	printf("second.current_after_destroy: %s\n", current ? "some" : "none");
	MUST(cuCtxSetCurrent(NULL));

	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	say_held("beside_primary.primary");
	MUST(cuCtxCreate_v2(&second, 0, 0));
	say_held("beside_primary.both");
	MUST(cuCtxDestroy_v2(second));
	MUST(cuDevicePrimaryCtxRelease_v2(0));
	say_held("beside_primary.none");
	MUST(cuCtxSetCurrent(NULL));
}

/* One allocation of each kind is freed with its context. */
static void what_goes(const char *key, bool is_primary)
{
	CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
	CUcontext context;
	CUdeviceptr plain, pooled;
	CUarray array;
	CUhandle handle;
	long long empty;

	if (is_primary)
		MUST(cuDevicePrimaryCtxRetain(&context, 0));
	else
		MUST(cuCtxCreate_v2(&context, 0, 0));
	MUST(cuCtxSetCurrent(context));
	empty = held();
	MUST(cuMemAlloc_v2(&plain, 64 * MiB));
	printf("%s.plain: %lld\n", key, held() - empty);
	MUST(cuArray3DCreate_v2(&array, &shape));
	printf("%s.array: %lld\n", key, held() - empty);
	MUST(cuMemAllocAsync(&pooled, 96 * MiB, NULL));
	printf("%s.pooled: %lld\n", key, held() - empty);
	MUST(cuMemCreate(&handle, 256 * MiB, &on_card, 0));
	printf("%s.physical: %lld\n", key, held() - empty);
	if (is_primary)
		MUST(cuDevicePrimaryCtxReset_v2(0));
	else
		MUST(cuCtxDestroy_v2(context));
	printf("%s.left: %lld\n", key, held() - before);
	cuCtxSetCurrent(NULL);
	say_result("left.release_physical", cuMemRelease(handle));
	if (is_primary)
		cuDevicePrimaryCtxRelease_v2(0);
	printf("%s.end: %lld\n", key, held() - before);
}

int main(void)
{
	start();
	before = held();
	primary();
	versions();
	what_goes("created", false);
	what_goes("primary", true);
	return 0;
}
