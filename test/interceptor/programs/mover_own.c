/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program creates and maps itself, as PyTorch's expandable segments do, in a
 * process that moves its memory itself. */
#define _GNU_SOURCE
#include "mover.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const CUmemLocation card = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
static const CUmemAccessDesc of_host = {{CU_MEM_LOCATION_TYPE_HOST, 0},
                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUmemAccessDesc both_ways = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                          CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUmemAccessDesc read_only = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                          CU_MEM_ACCESS_FLAGS_PROT_READ};

/* Memory stays on the card if the process sees an RDMA device that may access it. */
static bool rdma;

static CUmemGenericAllocationHandle make(size_t bytes, int types)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .requestedHandleTypes = types,
	                                  .location = card,
	                                  .allocFlags.gpuDirectRDMACapable = rdma};
	CUmemGenericAllocationHandle handle = 0;

	EXPECT(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
	return handle;
}

static CUdeviceptr reserve(size_t bytes)
{
	CUdeviceptr space = 0;

	EXPECT(cuMemAddressReserve(&space, bytes, 0, 0, 0) == CUDA_SUCCESS);
	return space;
}

static CUdeviceptr map_alone(CUmemGenericAllocationHandle handle, size_t bytes,
                             const CUmemAccessDesc *access)
{
	CUdeviceptr space = reserve(bytes);

	EXPECT(cuMemMap(space, bytes, 0, handle, 0) == CUDA_SUCCESS);
	EXPECT(!access || cuMemSetAccess(space, bytes, access, 1) == CUDA_SUCCESS);
	return space;
}

static void unmap_alone(CUdeviceptr space, size_t bytes)
{
	EXPECT(cuMemUnmap(space, bytes) == CUDA_SUCCESS);
	EXPECT(cuMemAddressFree(space, bytes) == CUDA_SUCCESS);
}

static unsigned long long access_at(CUdeviceptr address)
{
	unsigned long long flags = 99;

	EXPECT(cuMemGetAccess(&flags, &card, address) == CUDA_SUCCESS);
	return flags;
}

static int types_of(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp told = {0};

	EXPECT(cuMemGetAllocationPropertiesFromHandle(&told, handle) == CUDA_SUCCESS);
	EXPECT(told.type == CU_MEM_ALLOCATION_TYPE_PINNED && told.location.type == card.type &&
	       told.location.id == 0 && told.allocFlags.gpuDirectRDMACapable == rdma);
	return told.requestedHandleTypes;
}

/* --- a segment that grew, and lost some of its middle ----------------------------------------- */

#define PARTS 9
#define GONE 3
#define MOVE (118 * MIB) /* without the part that is gone */
#define STAY (10 * MIB)
#define SPACE (256 * MIB)

static const size_t sizes[PARTS] = {20 * MIB, 2 * MIB, 20 * MIB, 20 * MIB, 2 * MIB,
                                    20 * MIB, 2 * MIB, 20 * MIB, 32 * MIB};

static struct {
	CUdeviceptr space, part[PARTS], again, unwritten, closed, sent;
	CUmemGenericAllocationHandle handle[PARTS], unmapped, plain, retained;
} segment;

/* A part with a released handle: only the mapping holds the memory. */
static bool kept(size_t part)
{
	return part % 2 == 0;
}

static void grow_segment(void)
{
	size_t bytes = 0;

	segment.space = reserve(SPACE);
	for (size_t i = 0; i < PARTS; i++) {
		segment.part[i] = segment.space + bytes;
		segment.handle[i] =
		    make(sizes[i], i == 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0);
		EXPECT(cuMemMap(segment.part[i], sizes[i], 0, segment.handle[i], 0) ==
		       CUDA_SUCCESS);
		bytes += sizes[i];
	}
	EXPECT(cuMemSetAccess(segment.space, bytes, &both_ways, 1) == CUDA_SUCCESS);
	write_marks(7, segment.space, bytes);
	EXPECT(cuMemMap(segment.part[0], sizes[0], 0, segment.handle[0], 0) != CUDA_SUCCESS);
	EXPECT(cuMemUnmap(segment.part[0], 2 * MIB) != CUDA_SUCCESS);
	for (size_t i = 0; i < PARTS; i++) {
		write_marks(i, segment.part[i], sizes[i]);
		if (!kept(i))
			EXPECT(cuMemRelease(segment.handle[i]) == CUDA_SUCCESS);
	}
	EXPECT(cuMemUnmap(segment.part[GONE], sizes[GONE]) == CUDA_SUCCESS);
	EXPECT(cuMemRelease(segment.handle[GONE]) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemMap(segment.part[GONE], sizes[GONE], 0, segment.handle[GONE], 0) ==
	       CUDA_ERROR_INVALID_VALUE);
	/* One part is also mapped read-only at another address, and retained. */
	segment.again = map_alone(segment.handle[0], sizes[0], &read_only);
	EXPECT(cuMemRetainAllocationHandle(
	           &segment.retained, (void *)(uintptr_t)(segment.part[1] + 4096)) == CUDA_SUCCESS);
	EXPECT(segment.retained == segment.handle[1]);
}

/* Memory that does not move: unmapped, read-only, or exported. */
static void make_what_stays(void)
{
	CUmemGenericAllocationHandle handle =
	    make(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	int descriptor = -1;

	segment.unmapped = make(2 * MIB, 0);
	segment.sent = map_alone(handle, 2 * MIB, &both_ways);
	write_marks(20, segment.sent, 2 * MIB);
	EXPECT(cuMemExportToShareableHandle(&descriptor, handle,
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                    0) == CUDA_SUCCESS);
	close(descriptor);
	EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
	handle = make(2 * MIB, 0);
	segment.unwritten = map_alone(handle, 2 * MIB, &read_only);
	EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
	handle = make(2 * MIB, 0);
	segment.closed = map_alone(handle, 2 * MIB, NULL);
	EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
	segment.plain = make(2 * MIB, 0);
	EXPECT(cuMemExportToShareableHandle(&descriptor, segment.plain,
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                    0) != CUDA_SUCCESS);
}

static void check_segment(void)
{
	CUmemGenericAllocationHandle handle = 0;
	char byte = 1;

	for (size_t i = 0; i < PARTS; i++) {
		if (i == GONE)
			continue;
		EXPECT(has_marks(i, segment.part[i], sizes[i]));
		EXPECT(access_at(segment.part[i]) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		EXPECT(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)segment.part[i]) ==
		       CUDA_SUCCESS);
		EXPECT(handle == segment.handle[i]);
		EXPECT(types_of(handle) == (i == 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0));
		EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
	}
	EXPECT(has_marks(0, segment.again, sizes[0]));
	EXPECT(access_at(segment.again) == CU_MEM_ACCESS_FLAGS_PROT_READ);
	EXPECT(cuMemcpyHtoD_v2(segment.again, &byte, 1) != CUDA_SUCCESS);
	EXPECT(cuMemsetD8_v2(segment.part[0], 5, 4096) == CUDA_SUCCESS);
	EXPECT(cuCtxSynchronize() == CUDA_SUCCESS);
	EXPECT(!has_marks(0, segment.again, sizes[0]));
	write_marks(0, segment.part[0], sizes[0]);
	EXPECT(has_marks(0, segment.again, sizes[0]));
}

static void check_what_stays(void)
{
	EXPECT(has_marks(20, segment.sent, 2 * MIB));
	EXPECT(access_at(segment.unwritten) == CU_MEM_ACCESS_FLAGS_PROT_READ);
	EXPECT(access_at(segment.closed) == 0);
}

static void end_segment(void)
{
	unmap_alone(segment.again, sizes[0]);
	EXPECT(cuMemRelease(segment.retained) == CUDA_SUCCESS);
	/* Unmap all at once, with the gap; one part lives on by its handle. */
	EXPECT(cuMemUnmap(segment.space, SPACE) == CUDA_SUCCESS);
	EXPECT(cuMemMap(segment.space, sizes[8], 0, segment.handle[8], 0) == CUDA_SUCCESS);
	EXPECT(cuMemUnmap(segment.space, sizes[8]) == CUDA_SUCCESS);
	EXPECT(cuMemAddressFree(segment.space, SPACE) == CUDA_SUCCESS);
	for (size_t i = 0; i < PARTS; i++) {
		if (kept(i))
			EXPECT(cuMemRelease(segment.handle[i]) == CUDA_SUCCESS);
		EXPECT(cuMemRelease(segment.handle[i]) == CUDA_ERROR_INVALID_VALUE);
	}
}

static void end_what_stays(void)
{
	unmap_alone(segment.unwritten, 2 * MIB);
	unmap_alone(segment.closed, 2 * MIB);
	unmap_alone(segment.sent, 2 * MIB);
	EXPECT(cuMemRelease(segment.unmapped) == CUDA_SUCCESS);
	EXPECT(cuMemRelease(segment.plain) == CUDA_SUCCESS);
}

/* --- the cases -------------------------------------------------------------------------------- */

static void keep_segment(void)
{
	uint64_t before;

	attach();
	before = charged();
	grow_segment();
	make_what_stays();
	EXPECT(charged() - before == MOVE + STAY);
	for (int round = 1; round <= 3; round++) {
		stop_at(round);
		check_segment();
		check_what_stays();
		EXPECT(charged() - before == MOVE + STAY);
	}
	end_segment();
	end_what_stays();
	EXPECT(charged() == before);
	stop_at(4);
}

static void move_segment(void)
{
	long long full, away;

	for (int round = 1; round <= 3; round++) {
		await_step(round);
		full = used();
		shut();
		for (int i = 0; i < round; i++) {
			EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && used() == full);
			EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
			EXPECT(place() == LEDGER_ASIDE);
			away = used();
			EXPECT(full - away == (long long)MOVE);
			EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && used() == full);
		}
		EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
		open_for(round);
	}
	await_step(4);
	EXPECT(used() == full - (long long)(MOVE + STAY));
	set(&control->over, 4);
}

/* Threads create, map, use and free memory while the slice is moved again and again. */
static void *use(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;

	EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	for (size_t round = 0; !get(&control->over); round++) {
		size_t bytes = 2 * (1 + (size_t)rand_r(&seed) % 4) * MIB;
		bool early = rand_r(&seed) % 2, twice = rand_r(&seed) % 2;
		CUmemGenericAllocationHandle handle = make(bytes, 0), again = 0;
		CUdeviceptr space = map_alone(handle, bytes, &both_ways), other = 0;

		if (twice)
			other = map_alone(handle, bytes, &both_ways);
		if (early)
			EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
		write_marks(round, twice ? other : space, bytes);
		EXPECT(has_marks(round, space, bytes));
		EXPECT(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)space) ==
		       CUDA_SUCCESS);
		EXPECT(again == handle && types_of(again) == 0);
		unmap_alone(space, bytes);
		if (twice)
			unmap_alone(other, bytes);
		EXPECT(cuMemRelease(again) == CUDA_SUCCESS);
		if (!early)
			EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
		set(&control->ready, 1);
	}
	return NULL;
}

const struct memory segment_memory = {MOVE, grow_segment, check_segment, end_segment, use};

static bool sees_a_network(void)
{
	return access("/dev/infiniband", F_OK) == 0 || access("/dev/hfi1_0", F_OK) == 0 ||
	       access("/dev/gdrdrv", F_OK) == 0 || access("/dev/nvidia-fs0", F_OK) == 0;
}

static void keep_for_rdma(void)
{
	rdma = true;
	keep_and_check();
}

static void move_unless_reached(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == (sees_a_network() ? LEDGER_MOVE_FEW : LEDGER_MOVE_DONE));
	EXPECT(place() == (sees_a_network() ? LEDGER_RUNNING : LEDGER_ASIDE));
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	open_until_the_end();
}

/* A forked child has none of it, and releases none of it. */
static void fork_and_check(void)
{
	int status = 1;
	pid_t forked;

	attach();
	grow_segment();
	stop_at(1);
	forked = fork();
	if (forked == 0)
		_exit(!emulated &&
		      (cuMemRelease(segment.handle[0]) == CUDA_SUCCESS ||
		       cuMemMap(segment.space, sizes[0], 0, segment.handle[0], 0) == CUDA_SUCCESS));
	EXPECT(forked > 0 && waitpid(forked, &status, 0) == forked && status == 0);
	stop_at(2);
	check_segment();
	end_segment();
}

static void move_twice(void)
{
	for (int round = 1; round <= 2; round++) {
		await_step(round);
		shut();
		EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
		EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
		open_for(round);
	}
}

/* All but `stay` bytes move, the oldest first. */
static void part_goes(uint64_t stay, long long full, uint64_t goes)
{
	set_stay(stay);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(full - used() == (long long)goes);
}

static void move_a_part(void)
{
	long long full;

	await_step(1);
	full = used();
	shut();
	part_goes(charged() - 30 * MIB, full, 42 * MIB);
	part_goes(charged() - 60 * MIB, full, 64 * MIB);
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && used() == full);
	part_goes(0, full, MOVE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	open_until_the_end();
}

/* Memory that another process may hold never moves: here, most of it. */
static void lend(void)
{
	CUmulticastObjectProp wanted = {.numDevices = 1, .size = 64 * MIB};
	CUmemGenericAllocationHandle bound, mapped, object, sent;
	CUdeviceptr address, place;
	int descriptor = -1;

	attach();
	bound = make(32 * MIB, 0);
	mapped = make(32 * MIB, 0);
	EXPECT(cuMulticastCreate(&object, &wanted) == CUDA_SUCCESS);
	EXPECT(cuMulticastAddDevice(object, 0) == CUDA_SUCCESS);
	EXPECT(cuMulticastAddDevice(bound, 0) != CUDA_SUCCESS);
	place = map_alone(bound, 32 * MIB, &both_ways);
	EXPECT(cuMulticastBindMem(object, 0, bound, 0, 32 * MIB, 0) == CUDA_SUCCESS);
	address = map_alone(mapped, 32 * MIB, &both_ways);
	EXPECT(cuMulticastBindAddr(object, 32 * MIB, address, 32 * MIB, 0) == CUDA_SUCCESS);
	sent = make(32 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	(void)map_alone(sent, 32 * MIB, &both_ways);
	EXPECT(cuMemExportToShareableHandle(
	           &descriptor, sent, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	(void)map_alone(make(8 * MIB, 0), 8 * MIB, &both_ways);
	/* (It may fail on some drivers.) */
	(void)cuMemSetAccess(map_alone(make(32 * MIB, 0), 32 * MIB, &both_ways), 32 * MIB, &of_host,
	                     1);
	stop_at(1);
	EXPECT(cuMulticastUnbind(object, 0, 0, 32 * MIB) == CUDA_SUCCESS);
	unmap_alone(place, 32 * MIB);
	unmap_alone(address, 32 * MIB);
	EXPECT(cuMemRelease(object) == CUDA_SUCCESS && cuMemRelease(bound) == CUDA_SUCCESS);
	EXPECT(cuMemRelease(mapped) == CUDA_SUCCESS && cuMemRelease(sent) == CUDA_SUCCESS);
}

/* The driver fails in the middle of an object, which must then be unchanged. */
static void map_thrice(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at[3];

	attach();
	handle = make(32 * MIB, 0);
	at[0] = map_alone(handle, 32 * MIB, &both_ways);
	at[1] = map_alone(handle, 32 * MIB, &read_only);
	at[2] = map_alone(handle, 32 * MIB, &both_ways);
	write_marks(3, at[0], 32 * MIB);
	stop_at(1);
	for (int i = 0; i < 3; i++) {
		EXPECT(has_marks(3, at[i], 32 * MIB));
		EXPECT(access_at(at[i]) == (i == 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ
		                                   : CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
		unmap_alone(at[i], 32 * MIB);
	}
	EXPECT(cuMemRelease(handle) == CUDA_SUCCESS);
}

static void move_with_faults(void)
{
	long long full;

	await_step(1);
	full = used();
	shut();
	fail_with("cuMemUnmap");
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DRIVER && place() == LEDGER_LOCKED);
	EXPECT(used() == full);
	fail_with("cuMemSetAccess");
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(full - used() == (long long)(32 * MIB));
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DRIVER && place() == LEDGER_ASIDE);
	EXPECT(full - used() == (long long)(32 * MIB));
	fail_with("");
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	open_for(1);
}

static void move_what_is_not_lent(void)
{
	long long full;

	await_step(1);
	full = used();
	shut();
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_FEW && place() == LEDGER_RUNNING);
	part_goes(charged() - 8 * MIB, full, 8 * MIB);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	open_for(1);
}

const struct mover_case own_cases[] = {{"own", keep_segment, move_segment},
                                       {"own-again", use_all, move_again_and_again},
                                       {"own-full", keep_and_check, move_to_a_full_card},
                                       {"own-lent", lend, move_what_is_not_lent},
                                       {"own-part", keep_and_check, move_a_part},
                                       {"own-fault", map_thrice, move_with_faults},
                                       {"own-rdma", keep_for_rdma, move_unless_reached},
                                       {"own-released", go_on_alone, release},
                                       {"own-killed", keep_and_check, move_and_kill},
                                       {"own-fork", fork_and_check, move_twice},
                                       {0}};
