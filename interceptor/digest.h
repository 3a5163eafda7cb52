/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel on the device computes a digest of 128 bits of each block of BLOCK_BYTES that a mover
 * moves. If the block's copy in host memory has the same digest, it is not copied again.
 *
 * Blocks that differ in one word of 64 bits have different digests. Other blocks have the same one
 * with a probability of 2^-128. A program can make such blocks: it corrupts its own memory only.
 */
#ifndef GPUSLICE_DIGEST_H
#define GPUSLICE_DIGEST_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct digest {
	uint64_t half[2]; /* both 0: unknown */
};

struct digests {
	CUkernel kernel;
	struct digest *now;  /* of the blocks on the device, as computed last */
	struct digest *kept; /* of the blocks in host memory */
	size_t room;         /* blocks */
	CUdeviceptr results; /* `now` for the device, between digest_open() and digest_close() */
};

/* Called in a context. Prepares for up to `blocks` of at most `most`. False if that is impossible:
 * all of `now` is unknown then. */
bool digest_open(struct digests *digests, size_t blocks, size_t most);

/* Called in a context. Begins to compute the digests of blocks from `pointer` on, to now[first] and
 * those after it, in the thread's default stream. */
bool digest_begin(const struct digests *digests, CUdeviceptr pointer, size_t first, size_t blocks);

/* Called in a context, when all digests are computed. If not `well`, all are unknown. */
void digest_close(struct digests *digests, bool well);

/* Forgets what is on the device. */
void digest_forget(struct digests *digests);

/* Notes that blocks from `first` to `end` are in host memory. */
void digest_keep(struct digests *digests, size_t first, size_t end);

/* Notes that blocks from `first` on have no host memory any more. */
void digest_lose(struct digests *digests, size_t first);

static inline bool digest_known(const struct digest *digest)
{
	return digest->half[0] || digest->half[1];
}

/* Reports whether a block in host memory is that on the device. */
static inline bool digest_same(const struct digests *digests, size_t block)
{
	const struct digest *now = &digests->now[block], *kept = &digests->kept[block];

	return digest_known(now) && now->half[0] == kept->half[0] && now->half[1] == kept->half[1];
}

#endif
