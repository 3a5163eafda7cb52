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
#define ATTACH_VERSION 3u

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
	 * common. ATTACH_AWAY: an elastic slice is evicted, and did not return within some
	 * seconds, less than ASK_SECONDS: ask again. */
	ATTACH_OP_ATTACH = 1,
	/* Which ledger device is `uuid`, of `bytes` bytes? Adds it if the slice's quota covers it,
	 * and its pool's; then the pool's ledger has it, too, at an index of its own. */
	ATTACH_OP_DEVICE = 2,
	/* I made a context or loaded code on `device`: how much does the driver hold for me there?
	 * (Driver truth for this process, in bytes, less what the enforcer has charged for it in
	 * its own lane; ATTACH_UNKNOWN without NVML.) */
	ATTACH_OP_TRUTH = 3,
	/* I have the first `used` bytes of the host memory to which I move my memory (mover.h), and
	 * need `bytes` in all, both in whole ATTACH_HOST_STEPs. Answered with the descriptor of a
	 * memfd, in which what is behind the first `used` bytes is mine to map, at the same offset:
	 * it is charged to a cgroup of the operator's. ATTACH_OWN: it is to be memory of my own. */
	ATTACH_OP_HOST = 4,
};

#define ATTACH_HOST_STEP (64ull << 20)
/* As much is given at once at most: it is there well within ASK_SECONDS. */
#define ATTACH_HOST_PART (512ull << 20)

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
	ATTACH_AWAY = 9,      /* the slice's memory is moved aside */
	ATTACH_OWN = 10,      /* nobody else gives host memory */
	ATTACH_HIDDEN = 11,   /* /proc does not show the peer to the enforcer (hidepid) */
};

/* A field that is not of the operation is 0. */
struct attach_request {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t device;  /* ATTACH_OP_TRUTH: ledger device index */
	uint32_t layout;  /* LEDGER_LAYOUT that the interceptor was built with */
	uint8_t uuid[16]; /* ATTACH_OP_DEVICE */
	uint64_t bytes; /* ATTACH_OP_DEVICE: the device's memory; _HOST: the bytes needed in all */
	uint64_t used;  /* ATTACH_OP_HOST: the bytes that the process has of those */
	uint64_t reserved[2];
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
