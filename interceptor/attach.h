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
#define ATTACH_VERSION 1u

/* Where a container finds its slice; bound there by the hook. */
#define ATTACH_CONTAINER_DIR "/.gpuslice"
#define ATTACH_SOCKET_NAME "attach.sock"
/* The directory that takes ATTACH_CONTAINER_DIR's place for a session outside containers. */
#define ATTACH_DIR_ENV "GPUSLICE_DIR"

enum attach_op {
	/* Give me a place in the ledger. Answered with the ledger's descriptor (SCM_RIGHTS). */
	ATTACH_OP_ATTACH = 1,
	/* Which ledger device is `uuid`, of `bytes` bytes? Adds it if the slice's quota covers it.
	 */
	ATTACH_OP_DEVICE = 2,
	/* I made my first context on `device`: how much does the driver hold for me there?
	 * (driver truth for this process, in bytes; ATTACH_UNKNOWN without NVML) */
	ATTACH_OP_TRUTH = 3,
};

enum attach_status {
	ATTACH_OK = 0,
	ATTACH_NOT_MEMBER = 1, /* the peer is not a process of this slice */
	ATTACH_FULL = 2,       /* no free process slot, or no free device */
	ATTACH_CLOSED = 3,     /* the slice was released */
	ATTACH_MALFORMED = 4,  /* wrong size, magic, version or operation */
	ATTACH_NO_DEVICE = 5,  /* the slice has no quota on that device */
	ATTACH_UNKNOWN = 6,    /* there is no driver truth */
	ATTACH_INTERNAL = 7,   /* the enforcer failed; its log says why */
};

struct attach_request {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t device;      /* ATTACH_OP_TRUTH: ledger device index */
	uint32_t layout;      /* LEDGER_LAYOUT that the interceptor was built with */
	uint8_t uuid[16];     /* ATTACH_OP_DEVICE */
	uint64_t bytes;       /* ATTACH_OP_DEVICE: the device's memory */
	uint64_t reserved[3]; /* 0 */
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
	uint64_t reserved[4];
};
static_assert(sizeof(struct attach_reply) == 64, "attach_reply");

#endif
