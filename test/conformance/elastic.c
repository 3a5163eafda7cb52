/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patterns of PyTorch's expandable segments, of vLLM's sleep mode, and of pools that reserve
 * more addresses than the card has memory. Figures are the increase of the card's used memory since
 * the start of their part.
 */
#include "conformance.h"

#include <unistd.h>

#define PIECE (20 * MiB)
#define MANY 64

static const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc open_to_card = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                             .flags = 3};
static long long before;

static void say_held(const char *key)
{
	printf("%s: %lld\n", key, held() - before);
}

static CUhandle put(CUdeviceptr at, size_t size)
{
	CUhandle handle;

	MUST(cuMemCreate(&handle, size, &on_card, 0));
	MUST(cuMemMap(at, size, 0, handle, 0));
	MUST(cuMemSetAccess(at, size, &open_to_card, 1));
	return handle;
}

static void drop(CUdeviceptr at, size_t size, CUhandle handle)
{
	MUST(cuMemUnmap(at, size));
	MUST(cuMemRelease(handle));
}

static void expandable(void)
{
	CUhandle handles[MANY];
	CUdeviceptr space;

	before = held();
	MUST(cuMemAddressReserve(&space, 16 * GiB / PIECE * PIECE, 0, 0, 0));
	say_held("expandable.reserved");
	for (size_t i = 0; i < MANY; i++) {
		handles[i] = put(space + i * PIECE, PIECE);
		if (i % 16 == 15) {
			say_held(keyed("expandable.%zu_pieces", i + 1));
		}
	}
	MUST(cuMemsetD8_v2(space, 1, MANY * PIECE));
	/* The fill continues after the call; its memory must stay mapped until it is done. */
	MUST(cuCtxSynchronize());
	for (size_t i = 16; i < 48; i++)
		drop(space + i * PIECE, PIECE, handles[i]);
	say_held("expandable.middle_dropped");
	for (size_t i = 16; i < 32; i++)
		handles[i] = put(space + i * PIECE, PIECE);
	say_held("expandable.half_of_it_again");
	MUST(cuMemsetD8_v2(space, 1, 32 * PIECE));
	MUST(cuCtxSynchronize());
	for (size_t i = 0; i < MANY; i++)
		if (i < 32 || i >= 48)
			drop(space + i * PIECE, PIECE, handles[i]);
	say_held("expandable.all_dropped");
	MUST(cuMemAddressFree(space, 16 * GiB / PIECE * PIECE));
	say_held("expandable.end");
}

/* During sleep only the addresses are kept. */
static void sleep_mode(void)
{
	static const size_t sizes[] = {2 * MiB, 48 * MiB, 256 * MiB, 1 * GiB};
	CUdeviceptr spaces[COUNT(sizes)];
	CUhandle handles[COUNT(sizes)];

	before = held();
	for (size_t i = 0; i < COUNT(sizes); i++) {
		MUST(cuMemAddressReserve(&spaces[i], sizes[i], 0, 0, 0));
		handles[i] = put(spaces[i], sizes[i]);
	}
	say_held("sleep.awake");
	for (int round = 1; round <= 2; round++) {
		MUST(cuCtxSynchronize());
		for (size_t i = 0; i < COUNT(sizes); i++)
			drop(spaces[i], sizes[i], handles[i]);
		say_held(keyed("sleep.asleep.%d", round));
		for (size_t i = 0; i < COUNT(sizes); i++) {
			handles[i] = put(spaces[i], sizes[i]);
			MUST(cuMemsetD8_v2(spaces[i], 1, sizes[i]));
		}
		say_held(keyed("sleep.awake_again.%d", round));
	}
	MUST(cuCtxSynchronize());
	for (size_t i = 0; i < COUNT(sizes); i++) {
		drop(spaces[i], sizes[i], handles[i]);
		MUST(cuMemAddressFree(spaces[i], sizes[i]));
	}
	say_held("sleep.end");
}

/* Like sleep_mode(), but the handles are released while mapped, so only the mappings hold the
 * memory. Does NVML list it for the process? */
static void handles_dropped(void)
{
	long long own = listed(getpid());
	CUhandle retained;
	CUdeviceptr space;

	before = held();
	MUST(cuMemAddressReserve(&space, 8 * PIECE, 0, 0, 0));
	for (size_t i = 0; i < 8; i++)
		MUST(cuMemRelease(put(space + i * PIECE, PIECE)));
	say_held("mapped_only.live");
	printf("mapped_only.live: own %+lld\n", listed(getpid()) - own);
	MUST(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)space));
	printf("mapped_only.one_retained: own %+lld\n", listed(getpid()) - own);
	MUST(cuMemRelease(retained));
	MUST(cuMemUnmap(space, 4 * PIECE));
	say_held("mapped_only.half_unmapped");
	MUST(cuMemUnmap(space + 4 * PIECE, 4 * PIECE));
	say_held("mapped_only.unmapped");
	MUST(cuMemAddressFree(space, 8 * PIECE));
}

/* Eight times as many addresses as the card has memory; the first and the last piece are used. */
static void oversubscribed(void)
{
	size_t total, available, left, size;
	CUdeviceptr space;
	CUhandle first, last;

	before = held();
	MUST(cuMemGetInfo_v2(&available, &total));
	size = 8 * (total / PIECE) * PIECE;
	MUST(cuMemAddressReserve(&space, size, 0, 0, 0));
	MUST(cuMemGetInfo_v2(&left, &total));
	say_held("oversubscribed.reserved");
	printf("oversubscribed.reserved: free %zd less\n", (ssize_t)(available - left));
	first = put(space, PIECE);
	last = put(space + size - PIECE, PIECE);
	MUST(cuMemGetInfo_v2(&left, &total));
	say_held("oversubscribed.two_pieces");
	printf("oversubscribed.two_pieces: free %zd less\n", (ssize_t)(available - left));
	drop(space, PIECE, first);
	drop(space + size - PIECE, PIECE, last);
	MUST(cuMemAddressFree(space, size));
	say_held("oversubscribed.end");
}

static void say_access(const char *key, int type, CUdeviceptr at)
{
	CUmemLocation location = {.type = type};
	unsigned long long flags = 99;
	CUresult result = cuMemGetAccess(&flags, &location, at);

	printf("access.%s: %s, %llu\n", key, name_of(result), result == CUDA_SUCCESS ? flags : 0);
}

static CUresult set_access(CUdeviceptr at, size_t size, int flags)
{
	CUmemAccessDesc access = open_to_card;

	access.flags = flags;
	return cuMemSetAccess(at, size, &access, 1);
}

static void accesses(void)
{
	CUhandle handles[2];
	CUdeviceptr space;

	MUST(cuMemAddressReserve(&space, 4 * PIECE, 0, 0, 0));
	say_access("reserved", CU_MEM_LOCATION_TYPE_DEVICE, space);
	for (size_t i = 0; i < 2; i++) {
		MUST(cuMemCreate(&handles[i], PIECE, &on_card, 0));
		MUST(cuMemMap(space + i * PIECE, PIECE, 0, handles[i], 0));
	}
	say_access("mapped", CU_MEM_LOCATION_TYPE_DEVICE, space);
	say_access("mapped.host", CU_MEM_LOCATION_TYPE_HOST, space);
	say_result("access.set_both", set_access(space, 2 * PIECE, 3));
	say_access("first", CU_MEM_LOCATION_TYPE_DEVICE, space);
	say_access("inside_second", CU_MEM_LOCATION_TYPE_DEVICE, space + PIECE + 4096);
	say_access("host", CU_MEM_LOCATION_TYPE_HOST, space);
	say_result("access.set_read", set_access(space, PIECE, 1));
	say_access("read", CU_MEM_LOCATION_TYPE_DEVICE, space);
	say_access("beside_read", CU_MEM_LOCATION_TYPE_DEVICE, space + PIECE);
	say_result("access.set_none", set_access(space, PIECE, 0));
	say_access("none", CU_MEM_LOCATION_TYPE_DEVICE, space);
	say_result("access.set_again", set_access(space, PIECE, 3));
	say_access("again", CU_MEM_LOCATION_TYPE_DEVICE, space);
	say_result("access.set_part", set_access(space, 2 * MiB, 3));
	MUST(cuMemUnmap(space, 2 * PIECE));
	say_access("unmapped", CU_MEM_LOCATION_TYPE_DEVICE, space);
	MUST(cuMemMap(space, PIECE, 0, handles[0], 0));
	say_access("mapped_again", CU_MEM_LOCATION_TYPE_DEVICE, space);
	drop(space, PIECE, handles[0]);
	MUST(cuMemRelease(handles[1]));
	MUST(cuMemAddressFree(space, 4 * PIECE));
}

#define PART (4 * MiB)

/* Memory with two mappings is replaced below the same addresses, between two unchanged neighbours:
 * copied out, unmapped, released, created, mapped and copied back. */
static void exchange(void)
{
	static unsigned char was[PART], is[PART];
	CUdeviceptr space, other;
	CUhandle left, handle, right;

	before = held();
	MUST(cuMemAddressReserve(&space, 3 * PART, 0, 0, 0));
	MUST(cuMemAddressReserve(&other, PART, 0, 0, 0));
	left = put(space, PART);
	handle = put(space + PART, PART);
	right = put(space + 2 * PART, PART);
	say_result("exchange.map_twice", cuMemMap(other, PART, 0, handle, 0));
	MUST(set_access(other, PART, 1));
	MUST(cuMemsetD8_v2(space, 7, 3 * PART));
	MUST(cuCtxSynchronize());
	MUST(cuMemcpyDtoH_v2(was, other, PART));
	printf("exchange.same_bytes: %d\n", was[0] == 7 && was[PART - 1] == 7);
	say_result("exchange.write_to_read", cuMemcpyHtoD_v2(other, was, PART));
	for (int round = 0; round < 2; round++) {
		MUST(cuMemUnmap(other, PART));
		MUST(cuMemUnmap(space + PART, PART));
		MUST(cuMemRelease(handle));
		say_held("exchange.away");
		MUST(cuMemCreate(&handle, PART, &on_card, 0));
		MUST(cuMemMap(other, PART, 0, handle, 0));
		MUST(cuMemMap(space + PART, PART, 0, handle, 0));
		MUST(set_access(other, PART, 1));
		MUST(set_access(space + PART, PART, 3));
		MUST(cuMemcpyHtoD_v2(space + PART, was, PART));
		MUST(cuMemcpyDtoH_v2(is, other, PART));
		printf("exchange.back: %d\n", memcmp(was, is, PART) == 0);
		say_held("exchange.back.held");
	}
	MUST(cuMemcpyDtoH_v2(is, space + PART / 2, PART));
	printf("exchange.across: %d\n", memcmp(was, is, PART) == 0);
	MUST(cuMemUnmap(other, PART));
	MUST(cuMemRelease(left));
	MUST(cuMemRelease(handle));
	MUST(cuMemRelease(right));
	MUST(cuMemUnmap(space, 3 * PART));
	MUST(cuMemAddressFree(space, 3 * PART));
	MUST(cuMemAddressFree(other, PART));
	say_held("exchange.end");
}

static void asked_for(void)
{
	CUmemAllocationProp wanted = on_card, told = {0};
	CUhandle handle = 0;

	wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	wanted.allocFlags.gpuDirectRDMACapable = 1;
	say_result("asked.create", cuMemCreate(&handle, PIECE, &wanted, 0));
	if (!handle)
		return;
	printf("asked.handle_is_an_address: %d\n", handle >> 47 == 0);
	MUST(cuMemGetAllocationPropertiesFromHandle(&told, handle));
	printf("asked.told: type %d, handles %d, location %d %d, compression %d, rdma %d, usage "
	       "%d\n",
	       told.type, told.requestedHandleTypes, told.location.type, told.location.id,
	       told.allocFlags.compressionType, told.allocFlags.gpuDirectRDMACapable,
	       told.allocFlags.usage);
	MUST(cuMemRelease(handle));
}

int main(void)
{
	start_with_context();
	expandable();
	sleep_mode();
	handles_dropped();
	oversubscribed();
	accesses();
	exchange();
	asked_for();
	return 0;
}
