/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the simulated libcuda share: the process's view of the cards, contexts, and
 * the bookkeeping of what belongs to a context.
 *
 * One lock guards all of a process's driver state. An entry point is
 *
 *	CUresult result = driver_enter();
 *	if (result == CUDA_SUCCESS)
 *		result = driver_leave(the work);
 *
 * or the same with driver_enter_context for those that need a current context. Functions without a
 * `cu` prefix are called with the lock held.
 */
#ifndef FAKECUDA_DRIVER_H
#define FAKECUDA_DRIVER_H

#include "../../interceptor/cuda_abi.h"
#include "abi.h"
#include "latency.h"
#include "machine.h"

#include <stdbool.h>

#define CUDA_API __attribute__((visibility("default")))

#define BLOCK_BYTES (2 * MiB) /* what the card hands out: see README.md */

static inline uint64_t round_up(uint64_t bytes, uint64_t step)
{
	return (bytes + step - 1) / step * step;
}

/* A thing that the destruction of a context takes along. Its first member, so that a pointer
 * to the one is a pointer to the other. */
struct owned {
	struct owned *next, **link;
	void (*destroy)(struct owned *);
};

struct CUctx_st {
	struct device *device;
	struct owned *owned;
	bool alive;
	bool primary;
	unsigned retained; /* primary contexts */
	unsigned flags;
	uint64_t overhead; /* bytes charged for the context itself */
};

/* A card as this process sees it; its place in `devices` is the CUdevice. */
struct device {
	unsigned machine; /* its index in the machine */
	unsigned contexts;
	struct CUctx_st primary_context;
	struct small_block *small_blocks;
	CUmemoryPool default_pool; /* made at its first use */
	CUmemoryPool current_pool;
};

/* driver.c */
CUresult driver_enter(void);
CUresult driver_enter_context(CUcontext *current);
CUresult driver_leave(CUresult result);

/* device.c */
CUresult devices_learn(void);
struct device *device_of(CUdevice ordinal); /* NULL if there is none */
CUdevice device_ordinal(const struct device *device);

/* context.c */
CUcontext context_current(void);
void context_own(CUcontext context, struct owned *thing, void (*destroy)(struct owned *));
void context_disown(struct owned *thing);

/* alloc.c: memory in the card's granularity */
struct allocation;
uint64_t *device_memory_take(struct device *device, size_t size, size_t *place);
bool device_charge(struct device *device, uint64_t bytes);
void device_release(struct device *device, uint64_t bytes);

/* pool.c */
void pools_synchronise(const struct device *device, CUstream stream);
void pools_destroy(struct device *device);
bool pools_give_back(struct device *device);

#endif
