/* SPDX-License-Identifier: Apache-2.0 */
/* Linear memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, and the calls that free it. Small
 * allocations are charged when they start a block of 2 MiB (block.h), large ones by their rounded
 * size. Some are made of our own physical memory (piece.h). Managed memory is recorded by its
 * pointer (hold.h). */
#include "block.h"
#include "context.h"
#include "grant.h"
#include "hold.h"
#include "piece.h"
#include "table.h"

#define ADDRESSES (1ull << 57) /* no machine has more */

/* The parameters of every entry point. The older ones have 32-bit outputs. */
struct request {
	enum entry_point entry;
	void *pointer, *pitch;
	size_t bytes; /* of a pitched request: its width */
	size_t height;
	unsigned int element;
};

static inline CUresult call_driver(struct request r)
{
	switch (r.entry) {
	case ID_cuMemAlloc_v2:
		return DRIVER(cuMemAlloc_v2)(r.pointer, r.bytes);
	case ID_cuMemAlloc:
		return DRIVER(cuMemAlloc)(r.pointer, (unsigned int)r.bytes);
	case ID_cuMemAllocPitch_v2:
		return DRIVER(cuMemAllocPitch_v2)(r.pointer, r.pitch, r.bytes, r.height, r.element);
	default:
		return DRIVER(cuMemAllocPitch)(r.pointer, r.pitch, (unsigned int)r.bytes,
		                               (unsigned int)r.height, r.element);
	}
}

static bool is_wide(struct request r)
{
	return r.entry == ID_cuMemAlloc_v2 || r.entry == ID_cuMemAllocPitch_v2;
}

static CUdeviceptr address(struct request r)
{
	return is_wide(r) ? *(CUdeviceptr *)r.pointer : *(CUdeviceptr_v1 *)r.pointer;
}

/* Return the bytes of a request, with its real pitch if it was `made`. Rows are padded to 512 bytes
 * or more (driver observation: 1001 became 1024 on an H100). */
static uint64_t asked(struct request r, bool made)
{
	uint64_t pitch = (r.bytes + 511) & ~511ull, bytes;

	if (!r.pitch)
		return r.bytes;
	if (made)
		pitch = is_wide(r) ? *(size_t *)r.pitch : *(unsigned int *)r.pitch;
	if (pitch < r.bytes || __builtin_mul_overflow(pitch, r.height, &bytes))
		return UINT64_MAX;
	return bytes;
}

static __attribute__((noinline)) CUresult free_again(struct request r)
{
	if (is_wide(r)) {
		(void)DRIVER(cuMemFree_v2)(address(r));
		*(CUdeviceptr *)r.pointer = 0;
	} else {
		(void)DRIVER(cuMemFree)((CUdeviceptr_v1)address(r));
		*(CUdeviceptr_v1 *)r.pointer = 0;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_small(struct request r, CUdevice ordinal)
{
	const struct ledger_account *account = grant_begin_uncharged(ordinal);
	CUresult result;

	if (!account)
		return grant_error();
	result = call_driver(r);
	if (result == CUDA_SUCCESS && block_took_small(address(r), ordinal) != GRANTED)
		result = free_again(r);
	grant_end_uncharged(account, result == CUDA_SUCCESS);
	grant_settle_after(ordinal);
	return result;
}

static __attribute__((noinline)) CUresult allocate_large(struct request r, CUdevice ordinal,
                                                         uint64_t bytes)
{
	uint64_t charged = block_round(bytes), real;
	CUresult result;

	if (grant(ordinal, charged, KIND_MEMORY, LEDGER_CALL_ALLOC) != GRANTED)
		return grant_error();
	if (r.entry == ID_cuMemAlloc_v2 && piece_suits(ordinal, charged)) {
		result = THROUGH(piece_allocate)(r.pointer, ordinal, charged, context_current());
		if (result == CUDA_SUCCESS)
			grant_count(ordinal);
		else
			process_release(ordinal, charged, KIND_MEMORY);
		return result;
	}
	result = call_driver(r);
	if (result != CUDA_SUCCESS) {
		process_release(ordinal, charged, KIND_MEMORY);
		return result;
	}
	real = block_round(asked(r, true));
	if (real > charged &&
	    grant(ordinal, real - charged, KIND_MEMORY, LEDGER_CALL_PITCH) != GRANTED) {
		result = free_again(r);
		process_release(ordinal, charged, KIND_MEMORY);
		return result;
	}
	if (real < charged)
		process_release(ordinal, charged - real, KIND_MEMORY);
	block_took(address(r), ordinal, real);
	grant_count(ordinal);
	return result;
}

static __attribute__((noinline)) CUresult allocate(struct request r)
{
	CUdevice ordinal = process_current_ordinal();
	uint64_t bytes = asked(r, false);

	/* The driver refuses requests that cannot succeed. */
	if (__builtin_expect(ordinal < 0 || !r.pointer || !bytes || bytes > ADDRESSES, 0))
		return call_driver(r);
	if (__builtin_expect(bytes <= BLOCK_SMALL, 1))
		return allocate_small(r, ordinal);
	return allocate_large(r, ordinal, bytes);
}

static __attribute__((noinline)) CUresult allocate_linear(CUdeviceptr *pointer, size_t bytes)
{
	return allocate(
	    (struct request){.entry = ID_cuMemAlloc_v2, .pointer = pointer, .bytes = bytes});
}

/* The rare cases after a small allocation: it failed, or started a block. grant_begin_at_once() has
 * succeeded, so the process sees one device, of ordinal 0. */
static __attribute__((noinline)) CUresult end_small(CUdeviceptr *pointer, CUresult result)
{
	if (result == CUDA_SUCCESS && block_took_small(*pointer, 0) != GRANTED)
		result =
		    free_again((struct request){.entry = ID_cuMemAlloc_v2, .pointer = pointer});
	grant_end_at_once(result == CUDA_SUCCESS);
	grant_settle_after(0);
	return result;
}

/* A small allocation of the first thread takes one straight path: the driver's call takes a
 * microsecond, and evicts most of our lines from the nearest cache. */
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CUresult result;

	if (__builtin_expect(bytes - 1 >= BLOCK_SMALL || !pointer || !grant_begin_at_once(), 0))
		return allocate_linear(pointer, bytes);
	result = DRIVER(cuMemAlloc_v2)(pointer, bytes);
	if (__builtin_expect(result != CUDA_SUCCESS || !block_took_small_of_known(*pointer), 0))
		return end_small(pointer, result);
	grant_end_at_once(true);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
	struct request r = {.entry = ID_cuMemAlloc, .pointer = pointer, .bytes = bytes};

	return allocate(r);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
	struct request r = {.entry = ID_cuMemAllocPitch_v2,
	                    .pointer = pointer,
	                    .pitch = pitch,
	                    .bytes = width,
	                    .height = height,
	                    .element = element};

	return pitch ? allocate(r) : call_driver(r);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element)
{
	struct request r = {.entry = ID_cuMemAllocPitch,
	                    .pointer = pointer,
	                    .pitch = pitch,
	                    .bytes = width,
	                    .height = height,
	                    .element = element};

	return pitch ? allocate(r) : call_driver(r);
}

/* Managed memory moves between host and device on use. Its place is unknown, so all of it is
 * charged to the current device. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	uint64_t charged = block_round(bytes);
	CUresult result;
	CUdevice ordinal = process_current_ordinal();

	if (ordinal < 0 || !pointer || !bytes)
		return DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
	if (grant(ordinal, charged, KIND_UNLISTED, LEDGER_CALL_MANAGED) != GRANTED)
		return grant_error();
	result = DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
	return hold_or_release(result, result ? 0 : *pointer, ordinal, charged, KIND_UNLISTED);
}

typedef CUresult (*free_function)(CUdeviceptr pointer, CUstream stream);

static __attribute__((noinline)) CUresult free_other(free_function call, CUdeviceptr pointer,
                                                     CUstream stream)
{
	struct holding holding;

	/* An unknown pointer is a driver pool's (which holds the bytes), an import, or invalid. */
	if (!unhold(pointer, &holding))
		return call(pointer, stream);
	return release_or_hold(call(pointer, stream), pointer, &holding);
}

static inline __attribute__((always_inline)) CUresult free_by(free_function call,
                                                              CUdeviceptr pointer, CUstream stream)
{
	struct block block;
	CUresult result;

	if (!block_leave(pointer, &block))
		return free_other(call, pointer, stream);
	if (__builtin_expect(block.piece, 0))
		return THROUGH(piece_free)(pointer);
	result = call(pointer, stream);
	block_left(pointer, &block, result);
	return result;
}

static CUresult call_free_v2(CUdeviceptr pointer, CUstream stream)
{
	(void)stream;
	return DRIVER(cuMemFree_v2)(pointer);
}

static CUresult call_free(CUdeviceptr pointer, CUstream stream)
{
	(void)stream;
	return DRIVER(cuMemFree)((CUdeviceptr_v1)pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	return free_by(call_free_v2, pointer, NULL);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	return free_by(call_free, pointer, NULL);
}

/*
 * A driver pool keeps its memory, so most frees, those of stream-ordered programs, release nothing.
 * But the driver accepts linear memory here, too (driver observation), and does not report when the
 * stream frees it. The charge is released now; until then, driver truth shows the difference.
 */
static __attribute__((noinline)) CUresult free_linear(free_function call, CUdeviceptr pointer,
                                                      CUstream stream)
{
	return free_by(call, pointer, stream);
}

#define FREES_ASYNC(name)                                                                          \
	CUresult name(CUdeviceptr pointer, CUstream stream)                                        \
	{                                                                                          \
		if (__builtin_expect(!block_maybe(pointer), 1))                                    \
			return DRIVER(name)(pointer, stream);                                      \
		return free_linear(DRIVER(name), pointer, stream);                                 \
	}

FREES_ASYNC(cuMemFreeAsync)
FREES_ASYNC(cuMemFreeAsync_ptsz)
