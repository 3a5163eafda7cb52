/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that this process opened: another's, or its own, that was exported. Within the slice its
 * lender pays; so that the lender knows of it, a descriptor of its file is kept, or its name noted
 * (lender.h), for as long as anything of it is open here. When the lender has died, and from
 * outside the slice, it is charged here.
 */
#ifndef GPUSLICE_IMPORT_H
#define GPUSLICE_IMPORT_H

#include "cuda_abi.h"
#include "ledger.h"
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
 * Begin an import of a lender's memory, by a descriptor (else -1) or a name (else NULL), before the
 * driver opens it. Without a lender, or if no descriptor can be kept, the known size is charged to
 * this process. NULL if there is no memory for the import.
 */
struct import *import_begin(uint64_t lender, CUdevice ordinal, int descriptor, const void *name);
/* Note the device of the memory. */
void import_is_on(struct import *import, CUdevice ordinal);
/* Note that the import has at least `bytes`. False if this process has to be charged for them and
 * they do not fit. *more, if not NULL, gets the bytes of that charge; import_shrinks() gives them
 * back. */
bool import_reaches(struct import *import, uint64_t bytes, enum ledger_call call, uint64_t *more);
void import_shrinks(struct import *import, uint64_t bytes);
/* Add a user, and remove one. The last one ends the import. NULL is no import. */
void import_refer(struct import *import);
void import_end(struct import *import);

/* Charge this process for memory of dead lenders. Returns whether any lender is alive. */
bool import_watch(void);

#endif
