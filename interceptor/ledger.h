/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: the shared memory of one slice, in which its processes charge bytes of VRAM. A pool
 * of slices has one, too, in which all processes of its members charge (charge.h); read "pool" for
 * "slice" there.
 *
 * This file is the only description of the layout. The interceptor is compiled from it; the
 * enforcer (Go) uses the same functions through cgo (package enforcer/ledger); nothing else reads
 * it.
 *
 * What holds, whatever dies between any two instructions (interceptor/model/ledger.pml is the
 * machine-checked form of it):
 *
 *   - `used` of a device is at every instant the exact sum of what its lanes have charged;
 *   - a charge takes effect in one compare-and-swap, and only if it fits the limit then;
 *   - what a dead process charged is given back once, by whoever comes first: the enforcer or a
 *     sibling, or both at the same time;
 *   - nobody waits for anybody: there is no lock and no frozen state. A process that is stopped or
 *     killed half-way through a charge delays no one.
 *
 * How. The word that is swapped holds, beside `used`, a tag: which lane made the last change, and
 * the number of that change among the lane's own. Tags are never used twice. A lane writes down
 * what it is about to do (number, and the sum it will then hold), then swaps the word. Before
 * replacing a tag, every writer first notes in the entry of the lane that it names that this change
 * took effect (`confirmed`). So whether the last change that a dead lane wrote down took effect can
 * always be told: its tag is in the word, or it is confirmed, or it never happened. To settle a
 * dead lane is one more change of that lane ("give back all"), numbered like any other; therefore
 * it happens at most once, no matter how many try. (The idea is that of recoverable
 * compare-and-swap: Attiya, Ben-Baruch, Hendler, PODC 2018; here there is one word per device and
 * the recovery is done by others.)
 *
 * A lane is written by one writer at a time: lane 0 by the enforcer, each other lane by the
 * process to which the enforcer gave it (which serialises its threads by a lock of its own,
 * that dies with it).
 *
 * Everything in the page can be overwritten by any process of the slice. These functions never
 * index, loop or wait on the word of the page: lane numbers read from it are checked, loops are
 * bounded. What a hostile process can do is to falsify its own slice's count; driver truth finds
 * that.
 */
#ifndef GPUSLICE_LEDGER_H
#define GPUSLICE_LEDGER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEDGER_MAGIC 0x52474c4543494c53ull /* "SLICELGR" */
/* Raised by any change of the structures below; not where a reserved word gets a meaning that its 0
 * of so far fits, as an older interceptor leaves it there. */
#define LEDGER_LAYOUT 4u
#define LEDGER_DEVICES 16u
#define LEDGER_SLOTS 4096u              /* processes of a slice at one time */
#define LEDGER_LANES (LEDGER_SLOTS + 1) /* lane 0 is the enforcer's */
#define LEDGER_NO_LIMIT UINT64_MAX
#define LEDGER_SHARED 4096u /* notes on memory that processes of the slice lend each other */

/* The word: two halves, swapped as one. `tag` = lane << 48 | number of the lane's change. */
struct ledger_word {
	uint64_t used; /* bytes charged on this device by all lanes together */
	uint64_t tag;
} __attribute__((aligned(16)));

#define LEDGER_TAG_NUMBER ((1ull << 48) - 1)

/* One device of the slice. Everything but `word` and `peak` is written by the enforcer only. */
struct ledger_device {
	struct ledger_word word;
	uint64_t limit; /* bytes that may be charged; LEDGER_NO_LIMIT in record mode */
	uint64_t quota; /* bytes shown to programs as the device's memory */
	uint64_t peak; /* highest `used` that was ever replaced: the true peak is max(peak, used) */
	uint64_t
	    context_bytes; /* charged for a first context before it is made: what was learned */
	uint64_t total;    /* bytes of memory of the device itself */
	uint64_t retired_allocations; /* of lanes that were given to another process since */
	uint64_t retired_refusals;
	uint64_t recovered; /* bytes given back for dead processes (advisory: for metrics) */
	uint8_t uuid[16];   /* as cuDeviceGetUuid_v2 and NVML give it, raw */
	uint64_t stay; /* of an elastic slice: bytes that a process which moves itself may leave */
	uint64_t
	    keep; /* the like: bytes of host memory that one may keep which is told LEDGER_BARE */
	uint64_t reserved[2];
};
static_assert(sizeof(struct ledger_device) == 128, "ledger_device");

/* What one lane holds on one device. A cache line, written by the lane's owner but for `confirmed`.
 */
struct ledger_entry {
	uint64_t number;      /* the lane's last change that was written down */
	uint64_t sum[2];      /* sum[n & 1]: bytes held after change n */
	uint64_t confirmed;   /* highest change known to have taken effect; written by others */
	uint64_t context;     /* bytes of `sum` that are overhead: contexts, code, local memory */
	uint64_t allocations; /* that succeeded, since the process attached: see ledger_count() */
	uint64_t refusals;
	uint64_t uncharged; /* ledger_begin_uncharged(): calls under way, and ended << 32 */
};
static_assert(sizeof(struct ledger_entry) == 64, "ledger_entry");

enum ledger_lane_state {
	LEDGER_FREE = 0,
	LEDGER_LIVE = 1, /* a process owns it, or owned it and is not settled yet */
	/* The like, of one that was checkpointed: only the enforcer settles it, which has raised
	 * the limit by what it holds, and lowers it first. */
	LEDGER_SUSPENDED = 2,
};

/*
 * How a process of an elastic slice moves its own memory: the enforcer writes what it wants, the
 * process where its memory is. Four bytes, and so one word for a futex, on which both wake the
 * other. Of a process that shall not do it, all of it is 0; who cannot leaves `is` at 0.
 */
enum ledger_place {
	LEDGER_PLACE_UNKNOWN = 0,
	LEDGER_RUNNING = 1, /* on the device, and in use */
	LEDGER_LOCKED = 2,  /* on the device; no work of the process runs there, and none begins */
	LEDGER_ASIDE = 3,   /* in host memory, but for what may stay; no work runs */
	LEDGER_BETWEEN = 4, /* `is` only: in part here, in part there; no work runs */
	LEDGER_BARE = 5,    /* `want` only: LEDGER_RUNNING, and no more host memory than `keep` */
};

/* Why it is not where it is wanted. */
enum ledger_move_failure {
	LEDGER_MOVE_DONE = 0,
	LEDGER_MOVE_FEW = 1,    /* too little of what the process holds can be moved so */
	LEDGER_MOVE_HOST = 2,   /* the host gives no memory */
	LEDGER_MOVE_DEVICE = 3, /* the device has no room */
	LEDGER_MOVE_DRIVER = 4, /* the driver says something else */
	LEDGER_MOVE_BUSY = 5,   /* it records work for a graph */
};

struct ledger_move {
	uint8_t want; /* an enum ledger_place below, and above it a number that is new each time */
	uint8_t is;   /* an enum ledger_place */
	uint8_t answered; /* the `want` that was done, or given up */
	uint8_t failure;  /* an enum ledger_move_failure, of that */
} __attribute__((aligned(4)));
#define LEDGER_WANT_PLACE 15u
#define LEDGER_WANT_NUMBER 16u
static_assert(sizeof(struct ledger_move) == 4, "a futex");

/* The next `want`, of that place. */
static inline uint8_t ledger_want(uint8_t was, enum ledger_place place)
{
	return (uint8_t)(((was & ~LEDGER_WANT_PLACE) + LEDGER_WANT_NUMBER) | place);
}

/* The call that was refused memory. */
enum ledger_call {
	LEDGER_CALL_OTHER,
	LEDGER_CALL_ALLOC,
	LEDGER_CALL_MANAGED,
	LEDGER_CALL_ASYNC,
	LEDGER_CALL_CREATE,
	LEDGER_CALL_ARRAY,
	LEDGER_CALL_PITCH,
	LEDGER_CALL_BLOCK,
	LEDGER_CALL_POOL,
	LEDGER_CALL_CONTEXT,
	LEDGER_CALL_GRAPH,
	LEDGER_CALL_IMPORT,
	LEDGER_CALL_IPC,
	LEDGER_CALL_EXTERNAL,
	LEDGER_CALL_HEAP,
	LEDGER_CALL_CODE,
	LEDGER_CALL_STACK,
	LEDGER_CALL_STREAM,
	LEDGER_CALL_LAST = LEDGER_CALL_STREAM,
};

/* The name of a call. The page has its number, so that no text of a hostile process is shown. */
static inline const char *ledger_call_name(uint32_t call)
{
	static const char *const names[LEDGER_CALL_LAST + 1] = {
	    "memory",
	    "cuMemAlloc",
	    "cuMemAllocManaged",
	    "cuMemAllocAsync",
	    "cuMemCreate",
	    "an array",
	    "a pitch",
	    "a block of small allocations",
	    "a pool's growth",
	    "a context",
	    "a graph's launch",
	    "an import",
	    "cuIpcOpenMemHandle",
	    "cuImportExternalMemory",
	    "the heap of kernels",
	    "code and its variables",
	    "the stack of kernels",
	    "a stream",
	};

	return names[call <= LEDGER_CALL_LAST ? call : LEDGER_CALL_OTHER];
}

/* A refusal, as the refused process describes it. */
struct ledger_refusal {
	uint64_t bytes;    /* requested */
	uint64_t used;     /* bytes charged by all lanes, overhead included */
	uint64_t overhead; /* bytes of that */
	uint64_t needed;   /* highest used + bytes that the slice refused since the last report */
	uint32_t device;   /* index in the slice's ledger */
	uint32_t call;     /* an enum ledger_call */
	uint32_t by_pool; /* 1: the pool's limit refused it; `used` and `overhead` are the pool's */
	uint32_t reserved;
};
static_assert(sizeof(struct ledger_refusal) == 48, "ledger_refusal");

/* One lane: whose it is, and its entries. Identity is written by the enforcer only. */
struct ledger_lane {
	uint64_t generation; /* raised each time that the lane is given to a process */
	uint32_t state;
	uint32_t pid;    /* in the enforcer's pid namespace */
	uint64_t start;  /* start time of that process, clock ticks since boot (proc(5) stat, 22) */
	uint64_t pid_ns; /* inode of the process's own pid namespace */
	uint32_t ns_pid; /* its pid there */
	struct ledger_move move;
	uint64_t
	    first_uncharged; /* as ledger_entry.uncharged, of the first thread, on any device */
	uint64_t loads;      /* the like, of calls that may take any amount: ledger_begin_load() */
	/* In an elastic slice, of the driver's functions: calls under way in the lowest 16 bits,
	 * and above them how many were ever made. 0 of a process that does not count: it has an
	 * older interceptor, and its slice stays where it is. */
	uint64_t calls;
	/* The owner raises `described` before it writes its last refusal, and again after it. The
	 * enforcer sets reported = described when it has reported that refusal. */
	uint64_t described, reported;
	struct ledger_refusal refusal;
	struct ledger_entry entry[LEDGER_DEVICES];
};
static_assert(sizeof(struct ledger_lane) == 128 + 64 * LEDGER_DEVICES, "ledger_lane");

enum ledger_flags {
	LEDGER_CLOSED = 1u, /* the slice was released: nothing may be charged any more */
};

struct ledger {
	uint64_t magic;
	uint32_t layout;
	uint32_t lanes; /* LEDGER_LANES */
	uint64_t size;  /* sizeof(struct ledger) */
	uint32_t device_count;
	uint32_t high_lane; /* no lane above this one was ever given out */
	uint32_t flags;
	uint32_t record;   /* 1: record mode, nothing is refused */
	uint8_t slice[16]; /* random name of this ledger: tells one mapping from another */
	char pool[64];     /* the pool's name, with a 0 at its end; a slice's is empty */
	/* 1 while an elastic slice is evicted, or about to be. A process makes no call of the
	 * driver then: it raises `wishes`, and waits on the low half of this, a futex. The enforcer
	 * alone writes it. */
	uint64_t away;
	struct ledger_device device[LEDGER_DEVICES];
	uint32_t wishes; /* requests for the return of an elastic slice; a futex */
	uint8_t padding[4096 - 128 - 128 * LEDGER_DEVICES - 4]; /* lanes begin on a page */
	struct ledger_lane lane[LEDGER_LANES];
	uint64_t shared[LEDGER_SHARED];
};
static_assert(offsetof(struct ledger, device) == 128, "devices begin on a cache line");
static_assert(offsetof(struct ledger, lane) == 4096, "lanes begin on a page");

enum ledger_result {
	LEDGER_OK = 0,
	LEDGER_REFUSED = 1, /* it does not fit */
	LEDGER_BUSY = 2,    /* the word changed too many times while we tried: try again later */
	LEDGER_DAMAGED = 3, /* the page holds what no honest process writes */
};

/* How many lost swaps make a LEDGER_BUSY. Only a process that rewrites the word for ever gets
 * there. */
#define LEDGER_TRIES 1000000u

/*
 * The owner's view of its lane on one device: the number of its last change that took effect and
 * what it holds. Kept in the owner's own memory, so that a page overwritten by a
 * sibling does not mislead the owner about itself.
 */
struct ledger_account {
	struct ledger *ledger;
	uint32_t device, lane;
	uint64_t number; /* last change of ours that took effect (or the base we started from) */
	uint64_t held;   /* bytes */
};

/* Prepare a zeroed page for use. Enforcer only. */
void ledger_format(struct ledger *ledger, const uint8_t slice[16]);

/* Is this a page that these functions can work on? Checks magic, layout and size. */
bool ledger_valid(const struct ledger *ledger, uint64_t size);

/* Make the account of a lane that was just given to the caller (or, for lane 0, of a
 * restarted enforcer: the change that its predecessor left in doubt is decided here). */
struct ledger_account ledger_open(struct ledger *ledger, uint32_t device, uint32_t lane);

/* Charge `bytes`; refuse if used + bytes would pass the limit. */
enum ledger_result ledger_charge(struct ledger_account *account, uint64_t bytes);

/* Change what the account holds to `held`, up or down, without asking the limit: for
 * giving back, and for what the driver holds already. */
enum ledger_result ledger_set(struct ledger_account *account, uint64_t held);

/* Give back `bytes`; saturates at what the account holds. */
enum ledger_result ledger_release(struct ledger_account *account, uint64_t bytes);

/*
 * Set the limit. When it returns, no charge that read the older limit can take effect any more.
 * Enforcer only: `account` is that of lane 0. A successor of an enforcer that died in it calls it
 * again. (LEDGER_CLOSED alone does not stop a charge that has read the flag already; a limit of 0
 * does.)
 */
enum ledger_result ledger_limit(struct ledger_account *account, uint64_t limit);

/*
 * Give back what a dead lane holds on one device. The caller has seen that the process to which
 * `generation` of the lane was given is dead. Any number of callers may do so at the same time, and
 * late ones are harmless. *bytes, if not NULL, is what was given back by this call.
 *
 * The order matters: first the generation is read, then the identity, then whether that process is
 * dead. Read the other way round, a dead owner's identity could be taken for its successor's.
 */
enum ledger_result ledger_settle(struct ledger *ledger, uint32_t device, uint32_t lane,
                                 uint64_t generation, uint64_t *bytes);

/*
 * Give a dead process's lane to a new one: settle it on every device, then raise its generation.
 * Enforcer only; the identity fields are the caller's to write before (see ledger_settle), the
 * state after.
 */
enum ledger_result ledger_recycle(struct ledger *ledger, uint32_t lane);

/*
 * Counting. Any thread of the owner may; `first` says that it is the one thread of the process that
 * counts by plain stores, which cost a nanosecond where an atomic addition costs six. It has words
 * of its own for that: an allocation is counted in one half or the other of entry.allocations,
 * which are numbers of their own, and what a half can no longer count goes to the device's
 * retired_allocations.
 */
void ledger_count_refusal(const struct ledger_account *account);
/* Describe the refusal that is counted next. `needed` of it is ignored. */
void ledger_describe_refusal(struct ledger *ledger, uint32_t lane,
                             const struct ledger_refusal *refusal);
/* Copy the lane's last refusal. The result is `described`, for `reported`; 0 if that refusal was
 * reported, or is being changed. */
uint64_t ledger_last_refusal(const struct ledger *ledger, uint32_t lane,
                             struct ledger_refusal *refusal);
uint64_t ledger_allocations(const struct ledger_entry *entry);
__attribute__((cold, noinline)) void ledger_retire_allocations(struct ledger *ledger,
                                                               uint32_t device, uint32_t *half);

/* Count one in a word like entry.allocations; returns the half that it was counted in if that is
 * full, for ledger_retire_allocations(), else NULL. */
static inline uint32_t *ledger_count(uint64_t *word, bool first)
{
	uint32_t *half = (uint32_t *)(void *)word + !first, now;

	if (first) {
		now = __atomic_load_n(half, __ATOMIC_RELAXED) + 1;
		__atomic_store_n(half, now, __ATOMIC_RELAXED);
	} else {
		now = __atomic_add_fetch(half, 1, __ATOMIC_RELAXED);
	}
	return __builtin_expect(now >> 31, 0) ? half : NULL;
}

static inline uint64_t *ledger_allocations_word(const struct ledger_account *account)
{
	return &account->ledger->lane[account->lane].entry[account->device].allocations;
}

static inline void ledger_count_allocation(const struct ledger_account *account, bool first)
{
	uint32_t *full = ledger_count(ledger_allocations_word(account), first);

	if (__builtin_expect(full != NULL, 0))
		ledger_retire_allocations(account->ledger, account->device, full);
}

/*
 * A call of the driver begins, or ends, of which is known only afterwards what it took: until its
 * end, by which that is charged or given back, the driver may hold for the lane what it has not
 * charged. No barrier stands behind the beginning: who asks the driver for what it holds waits for
 * the same lock of the driver's in which the call takes its memory, and reads the lane after that.
 */
#define LEDGER_CALL_ENDED ((1ull << 32) - 1) /* one less under way, one more ended */

static inline void ledger_count_call(const struct ledger_account *account, bool first,
                                     uint64_t more)
{
	struct ledger_lane *lane = &account->ledger->lane[account->lane];

	if (first)
		__atomic_store_n(&lane->first_uncharged,
		                 __atomic_load_n(&lane->first_uncharged, __ATOMIC_RELAXED) + more,
		                 __ATOMIC_RELEASE);
	else
		__atomic_fetch_add(&lane->entry[account->device].uncharged, more, __ATOMIC_ACQ_REL);
}

static inline void ledger_begin_uncharged(const struct ledger_account *account, bool first)
{
	ledger_count_call(account, first, 1);
}

static inline void ledger_end_uncharged(const struct ledger_account *account, bool first)
{
	ledger_count_call(account, first, LEDGER_CALL_ENDED);
}

/* The same for a call that may take any amount, on any device: code that is loaded. */
static inline void ledger_count_load(const struct ledger_account *account, uint64_t more)
{
	__atomic_fetch_add(&account->ledger->lane[account->lane].loads, more, __ATOMIC_ACQ_REL);
}

static inline void ledger_begin_load(const struct ledger_account *account)
{
	ledger_count_load(account, 1);
}

static inline void ledger_end_load(const struct ledger_account *account)
{
	ledger_count_load(account, LEDGER_CALL_ENDED);
}

/* Set how much of what the account holds is overhead: contexts and what comes with them. */
void ledger_set_context(const struct ledger_account *account, uint64_t bytes);

/*
 * Shared memory is charged once, to its lender. The lender notes the name that it gave out: a hash,
 * not 0, of an IPC or fabric handle and of the noting process. So does each borrower while it has
 * the name open. About LEDGER_SHARED notes are kept, the latest ones. Without its lender's note,
 * memory counts as that of another slice.
 */
void ledger_lend(struct ledger *ledger, uint64_t name);
void ledger_unlend(struct ledger *ledger, uint64_t name);
bool ledger_lent(const struct ledger *ledger, uint64_t name);

/* What a lane holds on a device now, as another process sees it. */
uint64_t ledger_held(const struct ledger *ledger, uint32_t device, uint32_t lane);

/* The number of the lane's last change that was written down: unchanged means nothing was charged.
 */
uint64_t ledger_number(const struct ledger *ledger, uint32_t device, uint32_t lane);

/* How many calls of the lane's owner are between ledger_begin_uncharged() and its end, and how many
 * ended, both modulo 2^32 and by its word. What is read of the lane afterwards includes what those
 * charged that have ended. */
struct ledger_uncharged {
	uint32_t under_way, ended;
};
struct ledger_uncharged ledger_uncharged(const struct ledger *ledger, uint32_t device,
                                         uint32_t lane);

/* The same of loads, on any device. */
struct ledger_uncharged ledger_loads(const struct ledger *ledger, uint32_t lane);

#endif
