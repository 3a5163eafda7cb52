/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the simulated libcuda: the process's view of the cards, its contexts, and the
 * objects of a context.
 *
 * One lock guards all driver state of a process. An exported function takes it with DRIVER_ENTER
 * (or DRIVER_ENTER_CONTEXT, if it needs a current context) until it returns; functions without a
 * `cu` prefix expect it held.
 */
#ifndef FAKECUDA_DRIVER_H
#define FAKECUDA_DRIVER_H

#include "../../interceptor/cuda_abi.h"
#include "abi.h"
#include "machine.h"

#include <pthread.h>
#include <stdbool.h>

#define CUDA_API __attribute__((visibility("default")))

static inline uint64_t round_up(uint64_t bytes, uint64_t step)
{
	return (bytes + step - 1) / step * step;
}

/*
 * An object that is destroyed with its context. It is the first member of the structure that embeds
 * it, so a pointer to one is a pointer to the other.
 */
struct owned {
	struct owned *next, **link;
	void (*destroy)(struct owned *);
	CUcontext context; /* of its creation */
};

/* CUlimit: the known ones are below it. */
#define LIMITS 10

/* The most that runs on the card at a time. */
#define CARD_PROCESSORS 132
#define CARD_PROCESSOR_THREADS 2048

/* Memory that a context takes of its card by itself (overhead.h), in bytes except the counts. */
struct overhead {
	uint64_t small_code, large_code; /* of modules; the small ones share blocks */
	uint64_t code;                   /* taken for them */
	uint64_t stack, stack_first;     /* the first is part of the context's cost */
	uint64_t stream_count, streams;
	uint64_t node_count, nodes; /* of executable graphs */
};

struct CUctx_st {
	struct device *device;
	CUcontext parent; /* of a green context: the primary one, which owns its objects */
	struct owned *owned;
	bool alive;
	bool primary;
	unsigned retained;         /* of a primary context */
	uint64_t listed, unlisted; /* its cost while alive */
	unsigned flags;
	/* A green context does not use these, but its primary one's. */
	size_t limits[LIMITS];
	struct overhead overhead;
	bool fifo_backed;            /* a module that prints was loaded (limit.h) */
	uint64_t frame_wanted;       /* by the graph being instantiated (graph_exec.c) */
	bool heap_taken, fifo_taken; /* by launched kernels (limit.h) */
	CUresult wrong;              /* a kernel's fault that was not reported yet (work.h) */
	unsigned greens;             /* green contexts made while it was alive */
};

/* Allocations of one kind share blocks of small pieces (vram.h). */
enum vram_kind { VRAM_LINEAR, VRAM_ARRAY, VRAM_KINDS };

/* Memory of graphs on a card: bytes of its portions (graph_memory.c). */
struct graph_pool {
	struct graph_segment *segments;
	uint64_t idle_used; /* usable by any graph */
	uint64_t live_used; /* behind pointers that a launch has not freed */
	uint64_t partial;   /* of uploads that found no room for the rest */
	uint64_t reserved;  /* segments and partial */
	uint64_t used_high, reserved_high;
};

/* A card as this process sees it. */
struct device {
	unsigned machine; /* its index in the machine */
	CUdevice ordinal;
	struct CUctx_st primary;
	struct block *blocks[VRAM_KINDS];
	unsigned managed_spare;    /* chunks held for managed memory that hold none */
	CUmemoryPool default_pool; /* made at its first use */
	CUmemoryPool current_pool;
	struct graph_pool graphs;
};

/* driver.c. A driver_enter* holds the lock on success only. */
CUresult driver_enter(void);
CUresult driver_enter_context(CUcontext *current);
/* It also succeeds while the process is locked for a checkpoint; the others wait. */
CUresult driver_enter_locked(void);
CUresult driver_leave(CUresult result);

/* Takes the lock by a driver_enter* or a function like it, until the calling function returns. If
 * that fails, the calling function returns its error. */
#define DRIVER_ENTER_BY(call)                                                                      \
	__attribute__((cleanup(driver_entered_leave))) CUresult entered = (call);                  \
	if (entered != CUDA_SUCCESS)                                                               \
	return entered
#define DRIVER_ENTER() DRIVER_ENTER_BY(driver_enter())
/* These declare a variable, too: the current context, and the device of that ordinal. */
#define DRIVER_ENTER_CONTEXT(context)                                                              \
	CUcontext context;                                                                         \
	DRIVER_ENTER_BY(driver_enter_context(&(context)))
#define DRIVER_ENTER_DEVICE(device, ordinal)                                                       \
	struct device *device;                                                                     \
	DRIVER_ENTER_BY(driver_enter_device(ordinal, &(device)))

static inline void driver_entered_leave(const CUresult *entered)
{
	if (*entered == CUDA_SUCCESS)
		driver_leave(CUDA_SUCCESS);
}

/* Releases the lock until the condition is signalled. */
void driver_wait(pthread_cond_t *condition);

/* device.c */
CUresult driver_enter_device(CUdevice ordinal, struct device **device);
CUresult devices_learn(void);
struct device *device_at(CUdevice ordinal); /* NULL if there is none */
struct device *device_of(unsigned machine); /* NULL if this process does not see it */
uint64_t device_capacity(const struct device *device);
/* Takes bytes of the card, if necessary after it has released unused pool memory of this
 * process. */
bool device_charge(struct device *device, uint64_t bytes);
/* The same, but pools stay as they are. */
bool device_charge_free(struct device *device, uint64_t bytes);
void device_release(struct device *device, uint64_t bytes);
/* The same with bytes that are used on the card and listed for no process (machine.h). */
bool device_charge_with(struct device *device, uint64_t listed, uint64_t unlisted);
void device_release_with(struct device *device, uint64_t listed, uint64_t unlisted);

/* context.c */
CUcontext context_current(void);
/* Charges the context's cost and `more` unlisted bytes, and releases them with all that it owns. */
CUresult context_activate(CUcontext context, struct device *device, uint64_t more);
void context_deactivate(CUcontext context);
/* After a kernel's fault every call in any context of the process fails for that reason, and the
 * driver makes no new context (observed). context_fault() returns the reason. */
CUresult context_fault(CUresult why);
CUresult context_faulted(void);
void context_own(CUcontext context, struct owned *thing, void (*destroy)(struct owned *));
void context_disown(struct owned *thing);

/* primary.c */
CUresult primary_retain(struct device *device);
void primary_release(struct device *device); /* a retained one */

/* green.c: destroys the green contexts of a primary context, without notice to the program */
void greens_end(const struct device *device);

#endif
