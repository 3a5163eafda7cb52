/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach protocol: what a process of a slice says to the enforcer, and what it hears.
 *
 * One SOCK_SEQPACKET connection per question, one fixed-size message each way, host byte
 * order (both ends are on one machine). The connection is closed after the answer: a
 * process keeps no descriptor. Who asks is what the kernel says (SO_PEERCRED, SO_PEERPIDFD,
 * cgroup); nothing in a message is trusted for that.
 *
 * Go reads this file through cgo (package enforcer/ledger), so there is no second copy of the
 * layout.
 */
#ifndef GPUSLICE_ATTACH_H
#define GPUSLICE_ATTACH_H

#include <assert.h>
#include <stdint.h>

#define ATTACH_MAGIC 0x31415347u /* "GSA1" */
#define ATTACH_VERSION 2u

/* Where a container finds its slice; bound there by the hook. */
#define ATTACH_CONTAINER_DIR "/.gpuslice"
#define ATTACH_SOCKET_NAME "attach.sock"
/* A file beside the socket, of an elastic slice. */
#define ATTACH_ELASTIC_NAME "elastic"
/* The directory that takes ATTACH_CONTAINER_DIR's place for a session outside containers. */
#define ATTACH_DIR_ENV "GPUSLICE_DIR"

enum attach_op {
	/* Give me a place in the ledger. Answered with the ledger's descriptor (SCM_RIGHTS), and
	 * behind it those of the ledgers of the slice's pools, of which no two have a device in
	 * common. */
	ATTACH_OP_ATTACH = 1,
	/* Which ledger device is `uuid`, of `bytes` bytes? Adds it if the slice's quota covers it,
	 * and its pool's; then the pool's ledger has it, too, at an index of its own. */
	ATTACH_OP_DEVICE = 2,
	/* I made a context or loaded code on `device`: how much does the driver hold for me there?
	 * (Driver truth for this process, in bytes, less what the enforcer has charged for it in
	 * its own lane; ATTACH_UNKNOWN without NVML.) */
	ATTACH_OP_TRUTH = 3,
	/* I was refused memory on `device`. Nothing is answered: the process sends it and goes on,
	 * whether or not somebody listens. It is a hint to look at the lane's count of refusals,
	 * and says what the count does not. */
	ATTACH_OP_REFUSED = 4,
	/* The slice is elastic, and away: bring it back. ATTACH_OK once it is back; ATTACH_AWAY if
	 * it is not yet after some time, shorter than ASK_SECONDS: ask again. */
	ATTACH_OP_RETURN = 7,
	/* I have the first `used` bytes of the host memory to which I move my memory (mover.h), and
	 * need `bytes` in all, both in whole ATTACH_HOST_STEPs. Answered with the descriptor of a
	 * memfd, in which what is behind the first `used` bytes is mine to map, at the same offset:
	 * it is charged to a cgroup of the operator's. ATTACH_OWN: it is to be memory of my own. */
	ATTACH_OP_HOST = 8,
};

#define ATTACH_HOST_STEP (64ull << 20)
/* As much is given at once at most: it is there well within ASK_SECONDS. */
#define ATTACH_HOST_PART (512ull << 20)

/* ATTACH_OP_REFUSED: what the memory was for. */
enum attach_call {
	ATTACH_CALL_OTHER,
	ATTACH_CALL_ALLOC,
	ATTACH_CALL_MANAGED,
	ATTACH_CALL_ASYNC,
	ATTACH_CALL_CREATE,
	ATTACH_CALL_ARRAY,
	ATTACH_CALL_PITCH,
	ATTACH_CALL_BLOCK,
	ATTACH_CALL_POOL,
	ATTACH_CALL_CONTEXT,
	ATTACH_CALL_GRAPH,
	ATTACH_CALL_IMPORT,
	ATTACH_CALL_IPC,
	ATTACH_CALL_EXTERNAL,
	ATTACH_CALL_HEAP,
	ATTACH_CALL_CODE,
	ATTACH_CALL_STACK,
	ATTACH_CALL_STREAM,
	ATTACH_CALL_LAST = ATTACH_CALL_STREAM,
};

/* In words. They are sent as a number, so that nobody has to read what a hostile process wrote. A
 * newer interceptor's are 0 for the enforcer. */
static inline const char *attach_call_name(uint32_t call)
{
	static const char *const names[ATTACH_CALL_LAST + 1] = {
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

	return names[call <= ATTACH_CALL_LAST ? call : ATTACH_CALL_OTHER];
}

/* A slice has a pool for each device at most. */
#define ATTACH_POOLS 16u

enum attach_status {
	ATTACH_OK = 0,
	ATTACH_NOT_MEMBER = 1, /* the peer is not a process of this slice */
	ATTACH_FULL = 2,       /* no free process slot, or no free device */
	ATTACH_CLOSED = 3, /* the slice was released, its time is over, or it is damaged; or it is
	                    * suspended, which may end */
	ATTACH_MALFORMED = 4, /* wrong size, magic, version or operation */
	ATTACH_NO_DEVICE = 5, /* the slice has no quota on that device */
	ATTACH_UNKNOWN = 6,   /* there is no driver truth */
	ATTACH_INTERNAL = 7,  /* the enforcer failed; its log says why */
	ATTACH_REFUSED = 8,   /* it does not fit */
	ATTACH_AWAY = 9,      /* the slice's memory is moved aside: ask for its return first */
	ATTACH_OWN = 10,      /* nobody else gives host memory */
	ATTACH_HIDDEN = 11,   /* /proc does not show the peer to the enforcer (hidepid) */
};

/* A field that is not of the operation is 0. */
struct attach_request {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t device;  /* ATTACH_OP_TRUTH, ATTACH_OP_REFUSED: ledger device index */
	uint32_t layout;  /* LEDGER_LAYOUT that the interceptor was built with */
	uint8_t uuid[16]; /* ATTACH_OP_DEVICE */
	uint64_t bytes;   /* ATTACH_OP_DEVICE: the device's memory; _REFUSED: what was asked for;
	                   * _SUSPEND, _RESUME: a pid; _HOST: what is needed in all */
	uint64_t used;    /* ATTACH_OP_REFUSED: bytes charged then by all, overhead included; _HOST:
	                   * what is there of that */
	uint64_t overhead; /* ATTACH_OP_REFUSED: of that, as struct refusal has it */
	uint32_t call;     /* ATTACH_OP_REFUSED: enum attach_call */
	uint32_t pool;     /* ATTACH_OP_REFUSED: 1 if it was the pool's limit; then `used` and
	                    * `overhead` are the pool's */
};
static_assert(sizeof(struct attach_request) == 64, "attach_request");

struct attach_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t status;
	uint32_t lane;   /* ATTACH_OP_ATTACH: this process's lane in the ledger, 1 and up */
	uint32_t device; /* ATTACH_OP_DEVICE: ledger device index */
	uint64_t bytes;  /* ATTACH_OP_TRUTH: what the driver holds for the process on the device */
	uint64_t size;   /* ATTACH_OP_ATTACH: the ledger's size in bytes */
	/* ATTACH_OP_ATTACH: its lane in the ledger of each pool; 0 behind the last. (Where there
	 * was one pool at most, the first was a word of four bytes: the same on these machines.) */
	uint16_t pool_lane[ATTACH_POOLS];
};
static_assert(sizeof(struct attach_reply) == 64, "attach_reply");

#endif
