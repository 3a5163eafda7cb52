/* SPDX-License-Identifier: Apache-2.0 */
#include "piece.h"

#include "context.h"
#include "process.h"
#include "recording.h"
#include "say.h"
#include "state.h"

static CUmemAllocationProp properties_of(CUdevice ordinal)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
}

/* Reports whether the device's memory is mapped in blocks, as needed here. */
static bool in_blocks(CUdevice ordinal)
{
	CUmemAllocationProp properties = properties_of(ordinal);
	size_t granularity = 0;

	return DRIVER_HAS(cuMemAddressReserve) && DRIVER_HAS(cuMemAddressFree) &&
	       DRIVER_HAS(cuMemSetAccess) && DRIVER_HAS(cuMemCreate) &&
	       DRIVER_HAS(cuMemGetAllocationGranularity) &&
	       DRIVER(cuMemGetAllocationGranularity)(&granularity, &properties, 0) ==
	           CUDA_SUCCESS &&
	       BLOCK_BYTES % granularity == 0;
}

/* A peer device can have access to memory of cuMemAlloc, but would have none to a piece. */
bool piece_suits(CUdevice ordinal, uint64_t bytes)
{
	static unsigned char known; /* 0 unknown, 1 no, 2 yes */

	if (bytes < PIECE_LEAST || !process_seen()->gate.moves || !process_has_one_device())
		return false;
	if (!__atomic_load_n(&known, __ATOMIC_RELAXED))
		__atomic_store_n(&known, in_blocks(ordinal) ? 2 : 1, __ATOMIC_RELAXED);
	return __atomic_load_n(&known, __ATOMIC_RELAXED) == 2;
}

/* Without a handle, unmapping frees the memory. */
CUresult piece_map(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes)
{
	CUmemAllocationProp properties = properties_of(ordinal);
	CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUresult result = BEHIND(cuMemCreate)(&handle, bytes, &properties, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = BEHIND(cuMemMap)(pointer, bytes, 0, handle, 0);
	if (result == CUDA_SUCCESS) {
		result = BEHIND(cuMemSetAccess)(pointer, bytes, &access, 1);
		if (result != CUDA_SUCCESS)
			(void)BEHIND(cuMemUnmap)(pointer, bytes);
	}
	(void)BEHIND(cuMemRelease)(handle);
	return result;
}

CUresult piece_unmap(CUdeviceptr pointer, uint64_t bytes)
{
	return BEHIND(cuMemUnmap)(pointer, bytes);
}

CUresult piece_allocate(CUdeviceptr *pointer, CUdevice ordinal, uint64_t bytes, uint64_t owner)
{
	CUresult result = BEHIND(cuMemAddressReserve)(pointer, bytes, 0, 0, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = piece_map(*pointer, ordinal, bytes);
	if (result == CUDA_SUCCESS && block_took_piece(*pointer, &(struct block){.bytes = bytes,
	                                                                         .owner = owner,
	                                                                         .ordinal = ordinal,
	                                                                         .uses = 1,
	                                                                         .piece = true}))
		return result;
	if (result == CUDA_SUCCESS) {
		(void)piece_unmap(*pointer, bytes);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	(void)BEHIND(cuMemAddressFree)(*pointer, bytes);
	*pointer = 0;
	return result;
}

static void end(CUdeviceptr pointer, const struct block *block)
{
	(void)piece_unmap(pointer, block->bytes);
	(void)BEHIND(cuMemAddressFree)(pointer, block->bytes);
	process_release(block->ordinal, block->bytes, KIND_MEMORY);
}

static CUresult end_freed(void)
{
	struct block_at at;
	CUresult result = CUDA_SUCCESS;

	while (block_pieces(0, true, &at, 1) && result == CUDA_SUCCESS) {
		result = recording_wait(at.block.owner);
		if (result == CUDA_SUCCESS && block_leave_piece(at.pointer, at.block.serial))
			end(at.pointer, &at.block);
	}
	return result;
}

bool piece_end_freed(void)
{
	struct block_at at;

	return process_seen()->gate.moves && block_pieces(0, true, &at, 1) &&
	       THROUGH(end_freed)() == CUDA_SUCCESS;
}

static bool make_room(CUdevice ordinal)
{
	(void)ordinal; /* such a process has one device */
	return piece_end_freed();
}
UPCALL(grant_room, make_room);

CUresult piece_free(CUdeviceptr pointer)
{
	struct block block;
	CUresult result;

	if (!block_find_piece(pointer, &block))
		return CUDA_ERROR_INVALID_VALUE; /* another thread has freed it */
	if (gate_is_leaving())
		return block_free_piece(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	/* cuMemFree waits for work that uses the memory; cuMemUnmap does not. */
	result = recording_wait(block.owner);
	if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
		if (!block_free_piece(pointer))
			return CUDA_ERROR_INVALID_VALUE;
	} else if (result != CUDA_SUCCESS) {
		return result;
	} else if (block_leave_piece(pointer, block.serial)) {
		end(pointer, &block);
	} else {
		return CUDA_ERROR_INVALID_VALUE;
	}
	(void)end_freed(); /* also this one, if the capture has just ended */
	return CUDA_SUCCESS;
}

static CUresult end_all_of(uint64_t owner)
{
	struct block_at at;

	while (block_pieces(owner, false, &at, 1) && block_leave_piece(at.pointer, at.block.serial))
		end(at.pointer, &at.block);
	return CUDA_SUCCESS;
}

void piece_owner_gone(uint64_t owner)
{
	if (process_seen()->gate.moves)
		(void)THROUGH(end_all_of)(owner);
}

CUcontext piece_context(CUdeviceptr address)
{
	CUdeviceptr base = 0;
	struct block block;
	size_t bytes;

	if (!process_seen()->gate.moves ||
	    DRIVER(cuMemGetAddressRange_v2)(&base, &bytes, address) != CUDA_SUCCESS ||
	    !block_find_piece(base, &block))
		return NULL;
	return (CUcontext)(uintptr_t)block.owner;
}

bool piece_has(CUdeviceptr address, const char *lent)
{
	if (!piece_context(address))
		return false;
	if (lent)
		say_once(process_get(), ONCE_LENT,
		         "%s is refused: the slice is elastic and moves its memory itself, so that "
		         "other processes cannot share it",
		         lent);
	return true;
}
