/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm SECONDS PROCESSES KILLS [SEED [KINDS]]: processes of one slice take and give back memory of
 * every kind that the driver has, at random, and some of them are killed at random. Run in a slice
 * on one device whose quota their contexts do not fill. KINDS is a sum of powers of two: which
 * kinds (enum kind) are asked for, and what else is done (enum deed).
 *
 * At pauses nothing is in flight. Each process then says what the driver holds for it, by what it
 * knows of the kinds it used; the parent reads the slice's ledger, which its own interceptor has
 * mapped, and compares: each living process's lane to the byte, and the sum. At the end
 * nothing may be left. A process that makes no step for a minute is a hang.
 */
#define _GNU_SOURCE
#include "code.h"
#include "cuda_abi.h"
#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 128
#define HELD 96
#define MIB (1ull << 20)
#define BLOCK (2 * MIB)

CUresult cuInit(unsigned int);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSetLimit(int, size_t);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolGetAttribute(CUmemoryPool, int, void *);
CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                     unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuGraphCreate(CUgraph *, unsigned int);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuDeviceGraphMemTrim(CUdevice);
CUresult cuDeviceGetGraphMemAttribute(CUdevice, int, void *);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int);
CUresult cuIpcCloseMemHandle(CUdeviceptr);

enum kind { SMALL, LARGE, MANAGED, POOLED, OWN_POOL, PHYSICAL, MAPPED, ARRAY, MODULE, KINDS };

/* Pools are made and destroyed, also the current one and those in use; the stack's limit is
 * changed, by itself and by launches; threads retain and release the primary context. */
enum deed { POOLS = KINDS, STACKS, RACES, DEEDS };

#define FRAME 2048       /* bytes of a thread's stack that a module's kernel wants */
#define FRESH_STACK 1024 /* that a context has without being asked */
#define RACERS 2

static struct shared {
	_Atomic uint32_t pause, stop, wrong;
	_Atomic uint64_t calls[KINDS], refusals, launches, opens, pools, stacks, races;
	struct {
		_Atomic uint32_t ready, idle;
		_Atomic uint64_t steps;
		_Atomic uint64_t holds;   /* valid while idle */
		_Atomic uint64_t unsure;  /* of which the driver says no more than: about */
		_Atomic uint64_t context; /* charged for the one context that lives at a pause */
		_Atomic uint32_t lends;   /* `lent` is a handle of memory that is held */
		CUipcMemHandle lent;
	} of[MOST];
} * shared;

static void complain(const char *what, uint64_t a, uint64_t b)
{
	printf("%s: %llu, %llu\n", what, (unsigned long long)a, (unsigned long long)b);
	fflush(stdout);
	shared->wrong = 1;
}

/* Refusals are expected; any other error is not. */
static int done(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return 1;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		shared->refusals++;
	else
		complain(what, (uint64_t)result, 0);
	return 0;
}

static struct piece {
	int taken; /* enum kind + 1 */
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	CUarray array;
	CUmodule module;
	CUmemoryPool pool; /* that it is of, unless that was destroyed */
	uint64_t bytes;    /* 0 while a pool holds it */
} pieces[HELD];

static unsigned int kinds = (1u << DEEDS) - 1;
static CUmemoryPool default_pool, own_pool, current_pool; /* the last: NULL, or made by us */
static uint64_t stack = FRESH_STACK;
static uint64_t threads_at_a_time; /* of the card: each has a stack */
static bool loaded;                /* a module, ever */
static bool simulated;             /* the card */
static _Atomic uint32_t racing;
static CUdeviceptr addresses; /* HELD places of 16 MiB */
static unsigned int seed;

static size_t up_to(size_t most)
{
	return (size_t)rand_r(&seed) % most + 1;
}

/* A module with an array, and a kernel that is launched now and then. The driver takes the stacks
 * of all threads then, if that is more than it has taken yet. */
static CUresult load(struct piece *p)
{
	static const size_t frames[] = {FRAME, 0};
	char *text = module_text(p->bytes, frames);
	uint64_t none = 0;
	void *parameters[] = {&none};
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

static void take(int i)
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

static void give(int i)
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

/* A graph that allocates, once. */
static void launch(void)
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

/* Open what another process lends. It may be gone by then, and the process, too. */
static void borrow(int me, int others)
{
	int from = rand_r(&seed) % others;
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	if (from == me || !shared->of[from].lends)
		return;
	handle = shared->of[from].lent;
	if (cuIpcOpenMemHandle_v2(&pointer, handle, 1) != CUDA_SUCCESS)
		return;
	shared->opens++;
	if (cuIpcCloseMemHandle(pointer))
		complain("cuIpcCloseMemHandle failed", pointer, 0);
}

static uint64_t of_pool(CUmemoryPool pool)
{
	uint64_t bytes = 0;

	if (cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes))
		complain("cuMemPoolGetAttribute failed", 0, 0);
	return bytes;
}

/*
 * Destroys a pool, of which at most one piece is in use then: of that it is known what it holds
 * until it is freed, for the driver does not tell of a destroyed pool.
 */
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

/* Our own pool is another one, or the device's current one is ours, or is ours no more: destroyed
 * while it is current, it makes place for the default one. */
static void change_pools(void)
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

static void change_stack(uint64_t bytes)
{
	if (done(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes), "cuCtxSetLimit"))
		stack = bytes;
	shared->stacks++;
}

/* The primary context comes and goes between several threads; at a pause it is gone. */
static void *race(void *argument)
{
	unsigned int random = (unsigned int)(uintptr_t)argument;

	while (!shared->stop) {
		CUcontext primary;
		CUdeviceptr pointer;

		/* A card takes a tenth of a second for each, in which the others wait. */
		usleep((unsigned int)rand_r(&random) % (simulated ? 60000 : 8000000));
		racing++;
		if (!shared->pause && !shared->stop &&
		    done(cuDevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain")) {
			if (cuCtxSetCurrent(primary) ||
			    (done(cuMemAlloc_v2(&pointer, 4 * MIB), "an allocation") &&
			     cuMemFree_v2(pointer)) ||
			    cuCtxSetCurrent(NULL) || cuDevicePrimaryCtxRelease_v2(0))
				complain("the primary context failed", 0, 0);
			shared->races++;
		}
		racing--;
	}
	return NULL;
}

static bool packed(const struct piece *p)
{
	return (p->taken == SMALL + 1 || p->taken == LARGE + 1) && p->bytes < BLOCK;
}

/* What the driver holds for this process, its context aside. */
static uint64_t holds(void)
{
	uint64_t bytes = 0, graphs = 0;

	for (int i = 0; i < HELD; i++) {
		bool again = false;

		if (!pieces[i].taken)
			continue;
		/* Below 2 MiB several may share a block. */
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

/* A context may be refused while the others hold all: they pause until it is there. It is not the
 * primary one, which threads race for. */
static int begin(CUcontext *context)
{
	int processors = 0, threads = 0;
	char name[128] = "";
	CUresult result;

	if (cuInit(0) || cuDeviceGetName(name, sizeof(name), 0) ||
	    cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) ||
	    cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0))
		return 1;
	simulated = strstr(name, "(simulated)") != NULL;
	threads_at_a_time = (uint64_t)processors * (uint64_t)threads;
	while ((result = cuCtxCreate_v2(context, 0, 0)) != CUDA_SUCCESS) {
		if (result != CUDA_ERROR_OUT_OF_MEMORY || shared->stop)
			return 1;
		usleep(10000);
	}
	return cuCtxSetCurrent(*context) || cuDeviceGetDefaultMemPool(&default_pool, 0) ||
	       !make_pool(&own_pool) ||
	       cuMemAddressReserve(&addresses, 16 * MIB * (uint64_t)HELD, 0, 0, 0);
}

/* The page that this process's own interceptor mapped. */
static struct ledger *find_ledger(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	struct ledger *found = NULL;
	char line[512];

	while (maps && !found && fgets(line, sizeof(line), maps)) {
		unsigned long begin, end;

		if (sscanf(line, "%lx-%lx rw-s", &begin, &end) == 2 && strstr(line, "/memfd:") &&
		    end - begin >= sizeof(struct ledger) &&
		    ledger_valid((struct ledger *)begin, sizeof(struct ledger)))
			found = (struct ledger *)begin;
	}
	if (maps)
		fclose(maps);
	return found;
}

/* The lane of a process; 0 if it has none. */
static uint32_t lane_of(const struct ledger *ledger, pid_t pid)
{
	for (uint32_t lane = 1; lane <= ledger->high_lane && lane < LEDGER_LANES; lane++) {
		if (ledger->lane[lane].state == LEDGER_LIVE &&
		    ledger->lane[lane].ns_pid == (uint32_t)pid)
			return lane;
	}
	return 0;
}

/* What code and contexts took beside what was expected is charged at the next request at the
 * latest; two of them, since the first may come too soon after one that could not tell. */
static void ask_once_more(void)
{
	for (int i = 0; i < 2; i++) {
		CUdeviceptr pointer;

		usleep(15000);
		if (cuMemAlloc_v2(&pointer, 2 * BLOCK) == CUDA_SUCCESS &&
		    cuMemFree_v2(pointer) != CUDA_SUCCESS)
			complain("a free failed", 0, 0);
	}
}

static int child(int me, int others)
{
	const struct ledger *ledger;
	CUcontext context;
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (begin(&context)) {
		if (!shared->stop)
			complain("a process could not begin", (uint64_t)me, 0);
		return 1;
	}
	if (!(ledger = find_ledger()))
		return 1;
	shared->of[me].context = ledger->lane[lane_of(ledger, getpid())].entry[0].context;
	for (uintptr_t i = 1; i <= RACERS && kinds >> RACES & 1; i++) {
		if (pthread_create(&thread, NULL, race, (void *)(i + seed)))
			complain("no thread", i, 0);
		else
			pthread_detach(thread);
	}
	shared->of[me].ready = 1;
	while (!shared->stop) {
		uint32_t pause = shared->pause;
		int i = rand_r(&seed) % HELD;

		shared->of[me].steps++;
		if (pause) {
			shared->of[me].lends = 0;
			for (i = 0; i < HELD && pause == 2; i++) {
				if (pieces[i].taken)
					give(i);
			}
			if (pause == 2 && stack != FRESH_STACK)
				change_stack(FRESH_STACK);
			while (racing)
				usleep(200);
			(void)done(cuCtxSynchronize(), "a synchronisation");
			ask_once_more();
			if (pause == 2)
				(void)done(cuDeviceGraphMemTrim(0), "a trim");
			shared->of[me].holds = holds();
			/* A card's driver packs the code beside a module's array into blocks of
			 * which it tells nothing. And what one load took may have been hidden, by a
			 * free of just as much or by a context that came or went, for as long as
			 * managed memory hides it from driver truth, too: one array. */
			shared->of[me].unsure = loaded ? 64 * MIB : 0;
			shared->of[me].idle = pause;
			while (shared->pause == pause && !shared->stop)
				usleep(200);
			shared->of[me].idle = 0;
			continue;
		}
		if (rand_r(&seed) % 64 == 0)
			launch();
		if (rand_r(&seed) % 64 == 0)
			borrow(me, others);
		if ((kinds >> POOLS & 1) && rand_r(&seed) % 128 == 0)
			change_pools();
		if ((kinds >> STACKS & 1) && rand_r(&seed) % 256 == 0)
			change_stack(FRESH_STACK * (uint64_t)up_to(4));
		if (pieces[i].taken) {
			shared->of[me].lends = 0;
			give(i);
			continue;
		}
		take(i);
		if (pieces[i].taken == LARGE + 1 && rand_r(&seed) % 8 == 0 &&
		    cuIpcGetMemHandle(&shared->of[me].lent, pieces[i].pointer) == CUDA_SUCCESS)
			shared->of[me].lends = 1;
	}
	/* Nobody is in the driver when it is taken down. */
	while (racing)
		usleep(200);
	return 0;
}

static pid_t start(char **argv, int index, unsigned int random)
{
	pid_t pid = fork();

	if (pid == 0) {
		char number[16], text[16], wanted[16];

		snprintf(number, sizeof(number), "%d", index);
		snprintf(text, sizeof(text), "%u", random);
		snprintf(wanted, sizeof(wanted), "%u", kinds);
		execl("/proc/self/exe", argv[0], "child", number, argv[2], text, wanted,
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What a process has charged. */
static uint64_t lane_holds(const struct ledger *ledger, pid_t pid)
{
	uint32_t lane = lane_of(ledger, pid);

	return ledger_held(ledger, 0, lane);
}

static uint64_t all_lanes(const struct ledger *ledger)
{
	uint64_t sum = 0;

	for (uint32_t lane = 0; lane <= ledger->high_lane && lane < LEDGER_LANES; lane++)
		sum += ledger_held(ledger, 0, lane);
	return sum;
}

/* Every living process says what it holds; its lane says the same, and all lanes the whole. */
static void compare(const struct ledger *ledger, const pid_t *pids, int processes)
{
	uint64_t all = lane_holds(ledger, getpid()), all_unsure = 0;

	for (int i = 0; i < processes; i++) {
		uint64_t lane, holds = shared->of[i].holds + shared->of[i].context;
		uint64_t unsure = shared->of[i].unsure;

		if (!pids[i])
			continue;
		lane = lane_holds(ledger, pids[i]);
		all += holds;
		all_unsure += unsure;
		if (!(kinds >> MODULE & 1) && (lane + unsure < holds || lane > holds + unsure))
			complain("a lane is not what its process holds", lane, holds);
	}
	/* What code takes is charged by its process, or by the enforcer for it, which also takes a
	 * second look before it gives back: so the whole is compared, and may take a while. */
	for (int tries = 0; kinds >> MODULE & 1; tries++) {
		uint64_t used = ledger->device[0].word.used;

		if (used + all_unsure >= all && used <= all + all_unsure)
			break;
		if (tries == 2000) {
			complain("what is charged is not what all hold", used, all);
			return;
		}
		usleep(5000);
	}
	/* Deaths are settled at once, but not within our waitpid(); driver truth moves lane 0 now
	 * and then. */
	for (int tries = 0; all_lanes(ledger) != ledger->device[0].word.used; tries++) {
		if (tries == 1000) {
			complain("the lanes are not the whole", all_lanes(ledger),
			         ledger->device[0].word.used);
			return;
		}
		usleep(5000);
	}
}

static void await(const pid_t *pids, int processes, uint32_t pause, int ready)
{
	double patience = seconds() + 60;

	for (int i = 0; i < processes; i++) {
		uint64_t steps = shared->of[i].steps;

		while (pids[i] && !shared->wrong &&
		       !(ready ? shared->of[i].ready : shared->of[i].idle == pause)) {
			if (waitpid(pids[i], NULL, WNOHANG) == pids[i])
				complain("a process ended by itself", (uint64_t)i, 0);
			if (steps != shared->of[i].steps) {
				steps = shared->of[i].steps;
				patience = seconds() + 60;
			}
			if (seconds() > patience)
				complain("a process hangs", (uint64_t)i, steps);
			usleep(500);
		}
	}
}

int main(int argc, char **argv)
{
	static pid_t pids[MOST];
	int is_child = argc > 4 && strcmp(argv[1], "child") == 0, processes, f;
	uint64_t allocations = 0, kills = 0, pauses = 0, peak = 0, surplus = 0;
	struct ledger *ledger;
	CUcontext context;
	double end, told;

	if (argc < 4)
		return 64;
	processes = atoi(argv[is_child ? 3 : 2]);
	if (processes < 1 || processes > MOST)
		return 64;
	if (argc > 5)
		kinds = (unsigned int)atoi(argv[5]);
	if (!(kinds & ((1u << KINDS) - 1)))
		return 64;
	if (is_child) {
		seed = (unsigned int)strtoul(argv[4], NULL, 10);
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
		return shared == MAP_FAILED ? 1 : child(atoi(argv[2]), processes);
	}
	seed = argc > 4 ? (unsigned int)strtoul(argv[4], NULL, 10) : (unsigned int)time(NULL);
	printf("seed %u\n", seed);
	f = memfd_create("storm", 0);
	if (f < 0 || dup2(f, 42) != 42 || ftruncate(42, sizeof(*shared)))
		return 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
	if (shared == MAP_FAILED || begin(&context) || !(ledger = find_ledger())) {
		printf("not in a slice, or no context\n");
		return 1;
	}
	for (int i = 0; i < processes; i++)
		pids[i] = start(argv, i, (unsigned int)rand_r(&seed));

	end = seconds() + atoi(argv[1]);
	told = seconds();
	while (seconds() < end && !shared->wrong) {
		/* The new ones' contexts may not fit beside what the others hold. */
		shared->pause = 2;
		await(pids, processes, 2, 1);
		shared->pause = 0;
		for (int i = 0; i < 20; i++) {
			uint64_t overhead = ledger_held(ledger, 0, 0), used;

			used = ledger->device[0].word.used;
			if (used > peak)
				peak = used;
			if (overhead == ledger_held(ledger, 0, 0) &&
			    used > overhead + ledger->device[0].limit &&
			    used - overhead - ledger->device[0].limit > surplus)
				surplus = used - overhead - ledger->device[0].limit;
			usleep(1000 + (unsigned int)rand_r(&seed) % 10000);
		}
		for (int k = atoi(argv[3]); k > 0; k--) {
			int i = rand_r(&seed) % processes;

			if (!pids[i])
				continue;
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
			pids[i] = 0;
			kills++;
		}
		shared->pause = 1;
		await(pids, processes, 1, 0);
		if (!shared->wrong)
			compare(ledger, pids, processes);
		pauses++;
		for (int i = 0; i < processes; i++) {
			if (!pids[i]) {
				memset(&shared->of[i], 0, sizeof(shared->of[i]));
				pids[i] = start(argv, i, (unsigned int)rand_r(&seed));
			}
		}
		if (isatty(STDERR_FILENO) && seconds() - told > 5) {
			fprintf(stderr, "%.0f s to go, %llu kills\r", end - seconds(),
			        (unsigned long long)kills);
			told = seconds();
		}
	}
	shared->stop = 1;
	for (int i = 0; i < processes; i++) {
		if (pids[i]) {
			if (shared->wrong)
				kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
	}
	/* What is left is this process and the enforcer's overhead, which it corrects in its time.
	 */
	for (int tries = 0; tries < 2000 && !shared->wrong; tries++) {
		uint64_t left = 0;

		for (uint32_t lane = 1; lane <= ledger->high_lane; lane++) {
			if (lane != lane_of(ledger, getpid()))
				left += ledger_held(ledger, 0, lane);
		}
		if (!left)
			break;
		if (tries == 1999)
			complain("left over at the end", left, 0);
		usleep(5000);
	}
	/* Only the driver's own growth of a pool may pass the limit: a pool that has the room, but
	 * in pieces, takes a step of 32 MiB or several that cannot be refused in time. */
	if (surplus >
	    (kinds & (1u << POOLED | 1u << OWN_POOL) ? (uint64_t)processes * 64 * MIB : 0))
		complain("more was charged than the limit", surplus, ledger->device[0].limit);
	for (int k = 0; k < KINDS; k++) {
		allocations += shared->calls[k];
		if ((kinds >> k & 1) && !shared->calls[k] && !shared->wrong)
			complain("a kind of memory was never asked for", (uint64_t)k, 0);
	}
	printf(
	    "%d processes, %llu allocations of %d kinds, %llu graphs, %llu opened handles, %llu "
	    "pools destroyed, %llu stacks changed, %llu primary contexts, %llu "
	    "refusals, %llu kills, %llu exact comparisons, at most %llu MiB charged of %llu, %llu "
	    "above it by pools' growth: %s\n",
	    processes, (unsigned long long)allocations, KINDS, (unsigned long long)shared->launches,
	    (unsigned long long)shared->opens, (unsigned long long)shared->pools,
	    (unsigned long long)shared->stacks, (unsigned long long)shared->races,
	    (unsigned long long)shared->refusals, (unsigned long long)kills,
	    (unsigned long long)pauses, (unsigned long long)(peak >> 20),
	    (unsigned long long)(ledger->device[0].limit >> 20),
	    (unsigned long long)(surplus >> 20), shared->wrong ? "WRONG" : "exact");
	return shared->wrong ? 1 : 0;
}
