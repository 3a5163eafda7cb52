/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach protocol between a slice's processes and the enforcer: one SOCK_SEQPACKET connection
 * per request, one fixed-size message each way, in host byte order. A process keeps no descriptor.
 * The kernel identifies the peer (SO_PEERCRED, SO_PEERPIDFD, cgroup), never a message.
 *
 * Go reads this file through cgo (enforcer/ledger), so the layout exists once.
 */
#ifndef GPUSLICE_ATTACH_H
#define GPUSLICE_ATTACH_H

#include <assert.h>
#include <stdint.h>

#define ATTACH_MAGIC 0x31415347u /* "GSA1" */
#define ATTACH_VERSION 3u

/* The directory of a container's slice, mounted by the hook. */
#define ATTACH_CONTAINER_DIR "/.gpuslice"
#define ATTACH_SOCKET_NAME "attach.sock"
/* A file beside the socket that marks an elastic slice. */
#define ATTACH_ELASTIC_NAME "elastic"
/* Replaces ATTACH_CONTAINER_DIR in a session outside containers. */
#define ATTACH_DIR_ENV "GPUSLICE_DIR"

enum attach_op {
	/* Request a lane. The reply has the descriptors (SCM_RIGHTS) of the slice's ledger, then of
	 * its pools' ledgers, no two with a device in common. ATTACH_AWAY: an elastic slice did not
	 * return within some seconds, less than ASK_SECONDS: try again. */
	ATTACH_OP_ATTACH = 1,
	/* Request the ledger index of device `uuid`, of `bytes` bytes. The enforcer adds it if the
	 * quotas of slice and pool cover it; the pool's ledger has an index of its own. */
	ATTACH_OP_DEVICE = 2,
	/* Request driver truth on `device`, after making a context or loading code: the bytes that
	 * the driver holds for this process, less those that the enforcer charged for it in lane 0.
	 * ATTACH_UNKNOWN without NVML. */
	ATTACH_OP_TRUTH = 3,
	/*
	 * Request host memory for moves (mover.h). The process has the first `used` bytes and needs
	 * `bytes` in all, both multiples of ATTACH_HOST_STEP. The reply has a memfd, charged to a
	 * cgroup of the operator's: the process maps the bytes after `used`, at that offset.
	 * ATTACH_OWN: use the process's own memory.
	 */
	ATTACH_OP_HOST = 4,
};

#define ATTACH_HOST_STEP (64ull << 20)
/* The most that one reply grants, to be ready well within ASK_SECONDS. */
#define ATTACH_HOST_PART (512ull << 20)

/* At most one pool for each device. */
#define ATTACH_POOLS 16u

enum attach_status {
	ATTACH_OK = 0,
	ATTACH_NOT_MEMBER = 1, /* the peer is not a process of this slice */
	ATTACH_FULL = 2,       /* no free process slot, or no free device */
	ATTACH_CLOSED = 3,     /* the slice is released, expired, damaged or, for now, suspended */
	ATTACH_MALFORMED = 4,  /* wrong size, magic, version or operation */
	ATTACH_NO_DEVICE = 5,  /* the slice has no quota on that device */
	ATTACH_UNKNOWN = 6,    /* there is no driver truth */
	ATTACH_INTERNAL = 7,   /* the enforcer failed: see its log */
	ATTACH_REFUSED = 8,    /* the bytes do not fit */
	ATTACH_AWAY = 9,       /* the slice is evicted */
	ATTACH_OWN = 10,       /* use the process's own host memory */
	ATTACH_HIDDEN = 11,    /* /proc does not show the peer to the enforcer (hidepid) */
};

/* Fields of other operations are 0. */
struct attach_request {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t device;  /* ATTACH_OP_TRUTH: ledger device index */
	uint32_t layout;  /* LEDGER_LAYOUT that the interceptor was built with */
	uint8_t uuid[16]; /* ATTACH_OP_DEVICE */
	uint64_t bytes; /* ATTACH_OP_DEVICE: the device's memory; _HOST: the bytes needed in all */
	uint64_t used;  /* ATTACH_OP_HOST: the bytes that the process has */
	uint64_t reserved[2];
};
static_assert(sizeof(struct attach_request) == 64, "attach_request");

struct attach_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t status;
	uint32_t lane;   /* ATTACH_OP_ATTACH: the lane in the slice's ledger, 1 and up */
	uint32_t device; /* ATTACH_OP_DEVICE: ledger device index */
	uint64_t bytes;  /* ATTACH_OP_TRUTH: held for the process on the device */
	uint64_t size;   /* ATTACH_OP_ATTACH: the ledger's size in bytes */
	/* ATTACH_OP_ATTACH: the lane in each pool's ledger; 0 after the last. (With one pool at
	 * most, the first was a word of four bytes: the same on these machines.) */
	uint16_t pool_lane[ATTACH_POOLS];
};
static_assert(sizeof(struct attach_reply) == 64, "attach_reply");

#endif
