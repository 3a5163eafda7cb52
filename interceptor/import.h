/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that this process opened: another's, or its own, that was exported. Within the slice its
 * lender pays; so that the lender knows of it, a descriptor of its file is kept, or its name noted
 * (lender.h), for as long as anything of it is open here. When the lender has died, and from
 * outside the slice, it is charged here.
 */
#ifndef GPUSLICE_IMPORT_H
#define GPUSLICE_IMPORT_H

#include "attach.h"
#include "cuda_abi.h"
#include "lock.h"
#include "map.h"

struct import {
	uint32_t references; /* its users: an object or a holding each */
	CUdevice ordinal;
	uint64_t lender;  /* who pays; 0: this process does */
	uint64_t name;    /* noted in the ledger; 0: none */
	int descriptor;   /* kept; 0: none */
	uint64_t bytes;   /* as far as is known */
	uint64_t charged; /* here: 0 as long as there is a lender */
	struct import *next;
};

struct imports {
	struct lock lock; /* guards all of this */
	struct import *list, *free;
	MAP(uint32_t) opened; /* by name: how many imports have it */
};

/*
 * Memory of that lender is opened here: of a file (else -1), or by a name (else NULL), before the
 * driver opens it. With no lender, or where it cannot be kept, it is charged here as far as its
 * size is known. NULL if there is no memory for it.
 */
struct import *import_begin(uint64_t lender, CUdevice ordinal, int descriptor, const void *name);
/* It turned out to be on that device. */
void import_is_on(struct import *import, CUdevice ordinal);
/* It has so many bytes, or more: false if they are to be charged here and do not fit. *more, if not
 * NULL, is what was charged for that; import_shrinks() gives it back. */
bool import_reaches(struct import *import, uint64_t bytes, enum attach_call call, uint64_t *more);
void import_shrinks(struct import *import, uint64_t bytes);
/* One more user of it; one less, the last of which ends it (NULL is none). */
void import_refer(struct import *import);
void import_end(struct import *import);

/* Pay for what those lent that have died. Whether others lend that live. */
bool import_watch(void);

#endif
