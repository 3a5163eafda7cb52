/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: how long physical memory lives, and what may be unmapped. */
#include "conformance.h"

#define PIECE (2 * MiB)

static const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc open_to_card = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                             .flags = 3};
static long long before;

static void say_held(const char *key)
{
	printf("%s: %lld\n", key, held() - before);
}

static void without_context(void)
{
	CUhandle handle;
	CUresult result;

	before = held();
	result = cuMemCreate(&handle, PIECE, &on_card, 0);
	say_result("no_context.create", result);
	if (result != CUDA_SUCCESS)
		return;
	printf("no_context.held_something: %d\n", held() > before);
	MUST(cuMemRelease(handle));
}

static void sizes(void)
{
	static const size_t list[] = {0, 1, 4 * KiB, 1 * MiB, PIECE, 3 * MiB, 4 * MiB, 1 * GiB};
	size_t granularity;
	CUhandle handle;

	MUST(cuMemGetAllocationGranularity(&granularity, &on_card, 0));
	printf("granularity.minimum: %zu\n", granularity);
	MUST(cuMemGetAllocationGranularity(&granularity, &on_card, 1));
	printf("granularity.recommended: %zu\n", granularity);
	for (size_t i = 0; i < COUNT(list); i++) {
		char text[32];
		CUresult result;

		before = held();
		result = cuMemCreate(&handle, list[i], &on_card, 0);
		printf("create.%s: %s, held %lld\n", size_text(text, list[i]), name_of(result),
		       held() - before);
		if (result == CUDA_SUCCESS)
			MUST(cuMemRelease(handle));
	}
	say_result("release.unknown", cuMemRelease(0));
}

/* Every order in which handle, mapping and address space can be freed. */
static void lifetimes(CUdeviceptr space)
{
	CUhandle handle, again;

	before = held();
	MUST(cuMemCreate(&handle, PIECE, &on_card, 0));
	MUST(cuMemMap(space, PIECE, 0, handle, 0));
	MUST(cuMemSetAccess(space, PIECE, &open_to_card, 1));
	say_held("life.mapped");
	MUST(cuMemRelease(handle));
	say_held("life.released_while_mapped");
	MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)space));
	printf("retain.same_handle: %d\n", again == handle);
	MUST(cuMemUnmap(space, PIECE));
	say_held("life.unmapped_but_retained");
	MUST(cuMemRelease(again));
	say_held("life.gone");

	MUST(cuMemCreate(&handle, PIECE, &on_card, 0));
	MUST(cuMemMap(space, PIECE, 0, handle, 0));
	MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)space));
	printf("retain.same_handle_while_held: %d\n", again == handle);
	MUST(cuMemUnmap(space, PIECE));
	MUST(cuMemRelease(handle));
	say_held("retain.one_of_two_released");
	MUST(cuMemRelease(again));
	say_held("retain.both_released");

	MUST(cuMemCreate(&handle, PIECE, &on_card, 0));
	MUST(cuMemMap(space, PIECE, 0, handle, 0));
	MUST(cuMemMap(space + PIECE, PIECE, 0, handle, 0));
	say_held("twice.mapped");
	MUST(cuMemRelease(handle));
	MUST(cuMemUnmap(space, PIECE));
	say_held("twice.one_left");
	MUST(cuMemUnmap(space + PIECE, PIECE));
	say_held("twice.none_left");
}

static void unmapping(CUdeviceptr space)
{
	CUhandle handles[2], large;

	before = held();
	for (int i = 0; i < 2; i++) {
		MUST(cuMemCreate(&handles[i], PIECE, &on_card, 0));
		MUST(cuMemMap(space + (size_t)i * PIECE, PIECE, 0, handles[i], 0));
	}
	say_held("unmap.two_mapped");
	say_result("map.over_another", cuMemMap(space, PIECE, 0, handles[0], 0));
	for (int i = 0; i < 2; i++)
		MUST(cuMemRelease(handles[i]));
	say_result("unmap.with_gap", cuMemUnmap(space, 3 * PIECE));
	say_held("unmap.with_gap.held");
	say_result("unmap.both_at_once", cuMemUnmap(space, 2 * PIECE));
	say_held("unmap.both_at_once.held");
	cuMemUnmap(space, PIECE);
	cuMemUnmap(space + PIECE, PIECE);

	before = held();
	MUST(cuMemCreate(&large, 2 * PIECE, &on_card, 0));
	MUST(cuMemMap(space, 2 * PIECE, 0, large, 0));
	say_result("unmap.first_half", cuMemUnmap(space, PIECE));
	say_result("unmap.second_half", cuMemUnmap(space + PIECE, PIECE));
	say_result("unmap.whole", cuMemUnmap(space, 2 * PIECE));
	say_result("unmap.nothing", cuMemUnmap(space, 2 * PIECE));
	say_result("map.half_of_it", cuMemMap(space, PIECE, 0, large, 0));
	cuMemUnmap(space, PIECE);
	say_result("map.offset", cuMemMap(space, PIECE, PIECE, large, 0));
	cuMemUnmap(space, PIECE);
	say_result("map.outside", cuMemMap(space - PIECE, PIECE, 0, large, 0));
	MUST(cuMemRelease(large));
	say_held("unmap.end");
}

static void address_space(void)
{
	CUdeviceptr space;
	CUhandle handle;

	before = held();
	MUST(cuMemAddressReserve(&space, 1 * GiB, 0, 0, 0));
	say_held("reserve.1GiB");
	MUST(cuMemCreate(&handle, PIECE, &on_card, 0));
	MUST(cuMemMap(space, PIECE, 0, handle, 0));
	say_result("free_space.mapped", cuMemAddressFree(space, 1 * GiB));
	cuMemUnmap(space, PIECE);
	say_result("free_space.half", cuMemAddressFree(space, 512 * MiB));
	say_result("free_space.unmapped", cuMemAddressFree(space, 1 * GiB));
	MUST(cuMemRelease(handle));
	say_held("free_space.end");
	say_result("reserve.odd", cuMemAddressReserve(&space, 1 * MiB, 0, 0, 0));
}

int main(void)
{
	CUdeviceptr space;
	CUcontext context;

	start();
	without_context();
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	sizes();
	MUST(cuMemAddressReserve(&space, 8 * PIECE, 0, 0, 0));
	lifetimes(space);
	unmapping(space);
	MUST(cuMemAddressFree(space, 8 * PIECE));
	address_space();
	return 0;
}
