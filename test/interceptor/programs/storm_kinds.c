/* SPDX-License-Identifier: Apache-2.0 */
/* One process's memory of each kind, and the bytes that the driver holds for it. */
#include "storm.h"

#include "code.h"

#include <stdlib.h>
#include <string.h>

#define FRAME 2048       /* bytes of a thread's stack for a module's kernel */
#define FRESH_STACK 1024 /* in a new context */

static struct piece {
	int taken; /* enum kind + 1 */
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	CUarray array;
	CUmodule module;
	CUmemoryPool pool; /* its pool, unless that was destroyed */
	uint64_t bytes;    /* 0 while a pool holds it */
} pieces[HELD];

static CUmemoryPool default_pool, own_pool, current_pool; /* the last: NULL, or ours */
static uint64_t stack = FRESH_STACK;
static uint64_t threads_at_a_time; /* of the card: each has a stack */
static bool loaded;                /* a module was loaded */
static CUdeviceptr addresses;      /* HELD places of 16 MiB */

static size_t up_to(size_t most)
{
	return (size_t)rand_r(&seed) % most + 1;
}

/* A module with an array, and a kernel that is launched sometimes. The driver then allocates the
 * stacks of all threads, if that is more than it already has. */
static CUresult load(struct piece *p)
{
	static const size_t frames[] = {FRAME, 0};
	char *text = module_text(p->bytes, frames);
	CUfunction function;
	CUresult result = cuModuleLoadData(&p->module, text);

	free(text);
	if (result != CUDA_SUCCESS)
		return result;
	loaded = true;
	if (!(kinds >> STACKS & 1) || rand_r(&seed) % 8)
		return result;
	if (cuModuleGetFunction(&function, p->module, "frame2048"))
		complain("a module has no kernel", 0, 0);
	else if (done(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL),
	              "a launch") &&
	         stack < FRAME)
		stack = FRAME;
	return result;
}

void take(int i)
{
	struct piece *p = &pieces[i];
	CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUDA_ARRAY_DESCRIPTOR square = {
	    .Width = 2048, .Height = 2048, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	enum kind kind = (enum kind)(rand_r(&seed) % KINDS);
	CUresult result = CUDA_SUCCESS;

	memset(p, 0, sizeof(*p));
	while (!(kinds >> kind & 1))
		kind = (enum kind)(rand_r(&seed) % KINDS);
	switch (kind) {
	case SMALL:
		p->bytes = up_to(MIB);
		result = cuMemAlloc_v2(&p->pointer, p->bytes);
		break;
	case LARGE:
		p->bytes = MIB + up_to(rand_r(&seed) % 2 ? MIB : 48 * MIB);
		result = cuMemAlloc_v2(&p->pointer, p->bytes);
		break;
	case MANAGED:
		p->bytes = up_to(8 * MIB);
		result = cuMemAllocManaged(&p->pointer, p->bytes, 1);
		break;
	case POOLED:
		p->pool = current_pool ? current_pool : default_pool;
		result = cuMemAllocAsync(&p->pointer, up_to(40 * MIB), NULL);
		break;
	case OWN_POOL:
		p->pool = own_pool;
		result = cuMemAllocFromPoolAsync(&p->pointer, up_to(40 * MIB), own_pool, NULL);
		break;
	case PHYSICAL:
	case MAPPED:
		p->bytes = up_to(8) * BLOCK;
		result = cuMemCreate(&p->handle, p->bytes, &physical, 0);
		if (result == CUDA_SUCCESS && kind == MAPPED) {
			p->pointer = addresses + (CUdeviceptr)i * 16 * MIB;
			if (cuMemMap(p->pointer, p->bytes, 0, p->handle, 0) ||
			    cuMemRelease(p->handle))
				complain("a mapping failed", p->bytes, 0);
		}
		break;
	case ARRAY:
		p->bytes = 16 * MIB;
		result = cuArrayCreate_v2(&p->array, &square);
		break;
	case MODULE:
		p->bytes = (up_to(31) + 1) * BLOCK;
		result = load(p);
		break;
	default:
		break;
	}
	shared->calls[kind]++;
	p->taken = done(result, "an allocation") ? (int)kind + 1 : 0;
}

void give(int i)
{
	struct piece *p = &pieces[i];
	CUresult result = CUDA_SUCCESS;

	switch ((enum kind)(p->taken - 1)) {
	case POOLED:
	case OWN_POOL:
		result = cuMemFreeAsync(p->pointer, NULL);
		break;
	case PHYSICAL:
		result = cuMemRelease(p->handle);
		break;
	case MAPPED:
		result = cuMemUnmap(p->pointer, p->bytes);
		break;
	case ARRAY:
		result = cuArrayDestroy(p->array);
		break;
	case MODULE:
		result = cuModuleUnload(p->module);
		break;
	default:
		result = cuMemFree_v2(p->pointer);
		break;
	}
	if (result)
		complain("giving back failed", (uint64_t)result, (uint64_t)p->taken);
	p->taken = 0;
}

bool has(int i)
{
	return pieces[i].taken;
}

CUdeviceptr lendable(int i)
{
	return pieces[i].taken == LARGE + 1 ? pieces[i].pointer : 0;
}

void launch_graph(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
	    .bytesize = up_to(80 * MIB)};
	CUgraph graph;
	CUgraphNode allocation, freed;
	CUgraphExec executable;

	if (!done(cuGraphCreate(&graph, 0), "cuGraphCreate"))
		return;
	if (done(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &parameters), "a node") &&
	    done(cuGraphAddMemFreeNode(&freed, graph, &allocation, 1, parameters.dptr), "a node") &&
	    done(cuGraphInstantiateWithFlags(&executable, graph, 0), "an instantiation")) {
		for (int times = 0; times < 3; times++)
			(void)done(cuGraphLaunch(executable, NULL), "a launch");
		shared->launches++;
		(void)done(cuCtxSynchronize(), "a synchronisation");
		(void)done(cuGraphExecDestroy(executable), "cuGraphExecDestroy");
	}
	(void)done(cuGraphDestroy(graph), "cuGraphDestroy");
	if (rand_r(&seed) % 2)
		(void)done(cuDeviceGraphMemTrim(0), "a trim");
}

static uint64_t of_pool(CUmemoryPool pool)
{
	uint64_t bytes = 0;

	if (cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes))
		complain("cuMemPoolGetAttribute failed", 0, 0);
	return bytes;
}

/* Destroys a pool with at most one piece in use. Its bytes are known until the piece is freed: the
 * driver does not report a destroyed pool. */
static void end_pool(CUmemoryPool *pool)
{
	struct piece *last = NULL;
	bool none = rand_r(&seed) % 2;

	for (int i = 0; i < HELD; i++) {
		if (!pieces[i].taken || pieces[i].pool != *pool)
			continue;
		if (last || none)
			give(i);
		else
			last = &pieces[i];
	}
	(void)done(cuCtxSynchronize(), "a synchronisation");
	if (last) {
		last->bytes = of_pool(*pool);
		last->pool = NULL;
	}
	(void)done(cuMemPoolDestroy(*pool), "cuMemPoolDestroy");
	*pool = NULL;
	shared->pools++;
}

static bool make_pool(CUmemoryPool *pool)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	return done(cuMemPoolCreate(pool, &properties), "cuMemPoolCreate");
}

/* Create our own pool or make it the device's current one, or the reverse. When the current pool is
 * destroyed, the default pool is current. */
void change_pools(void)
{
	if (rand_r(&seed) % 2) {
		end_pool(&own_pool);
		if (!make_pool(&own_pool))
			complain("no pool", 0, 0);
	} else if (current_pool) {
		end_pool(&current_pool);
	} else if (make_pool(&current_pool)) {
		(void)done(cuDeviceSetMemPool(0, current_pool), "cuDeviceSetMemPool");
	}
}

static void set_stack(uint64_t bytes)
{
	if (done(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes), "cuCtxSetLimit"))
		stack = bytes;
	shared->stacks++;
}

void change_stack(void)
{
	set_stack(FRESH_STACK * (uint64_t)up_to(4));
}

void give_all(void)
{
	for (int i = 0; i < HELD; i++) {
		if (pieces[i].taken)
			give(i);
	}
	if (stack != FRESH_STACK)
		set_stack(FRESH_STACK);
}

static bool packed(const struct piece *p)
{
	return (p->taken == SMALL + 1 || p->taken == LARGE + 1) && p->bytes < BLOCK;
}

uint64_t holds(void)
{
	uint64_t bytes = 0, graphs = 0;

	for (int i = 0; i < HELD; i++) {
		bool again = false;

		if (!pieces[i].taken)
			continue;
		/* Pieces below 2 MiB may share a block. */
		for (int j = 0; j < i && packed(&pieces[i]); j++)
			again |= packed(&pieces[j]) &&
			         pieces[j].pointer / BLOCK == pieces[i].pointer / BLOCK;
		if (!again)
			bytes += (pieces[i].bytes + BLOCK - 1) & ~(BLOCK - 1);
	}
	if (cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &graphs))
		complain("cuDeviceGetGraphMemAttribute failed", 0, 0);
	if (current_pool)
		bytes += of_pool(current_pool);
	return bytes + of_pool(default_pool) + of_pool(own_pool) + graphs +
	       (stack - FRESH_STACK) * threads_at_a_time;
}

/*
 * A card's driver packs a module's code into blocks that it does not report. A load's memory may
 * also go unnoticed behind a simultaneous free or a context, for as long as managed memory hides it
 * from driver truth: at most one array.
 */
uint64_t unsure(void)
{
	return loaded ? 64 * MIB : 0;
}

bool kinds_begin(void)
{
	threads_at_a_time = (uint64_t)card_threads();
	return threads_at_a_time && !cuDeviceGetDefaultMemPool(&default_pool, 0) &&
	       make_pool(&own_pool) &&
	       !cuMemAddressReserve(&addresses, 16 * MIB * (uint64_t)HELD, 0, 0, 0);
}
