/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory opened from an export, of another process or this one. Within the slice its lender is
 * charged. A descriptor of its file is kept, or its name noted (lender.h), while any of it is open
 * here, so that the lender can detect it. If the lender is dead or outside the slice, it is charged
 * here.
 */
#ifndef GPUSLICE_IMPORT_H
#define GPUSLICE_IMPORT_H

#include "cuda_abi.h"
#include "ledger.h"
#include "lock.h"
#include "map.h"

struct import {
	uint32_t references; /* users: an object or a holding each */
	CUdevice ordinal;
	uint64_t lender;  /* which is charged; 0: this process is */
	uint64_t name;    /* noted in the ledger; 0: none */
	int descriptor;   /* kept; 0: none */
	uint64_t bytes;   /* known so far */
	uint64_t charged; /* here; 0 while there is a lender */
	struct import *next;
};

struct imports {
	struct lock lock; /* guards all fields */
	struct import *list, *free;
	MAP(uint32_t) opened; /* by name: number of imports with it */
};

/* Begins an import by a descriptor (else -1) or a name (else NULL), before the driver opens it.
 * Without a lender, or a descriptor to keep, the known size is charged here. NULL if there is no
 * memory for the record. */
struct import *import_begin(uint64_t lender, CUdevice ordinal, int descriptor, const void *name);
void import_is_on(struct import *import, CUdevice ordinal);
/* The import has at least `bytes`. False if they must be charged here and do not fit. *more, if not
 * NULL, is the charge, for import_shrinks() to release. */
bool import_reaches(struct import *import, uint64_t bytes, enum ledger_call call, uint64_t *more);
void import_shrinks(struct import *import, uint64_t bytes);
/* Add and remove a user. The last one ends the import. NULL is ignored. */
void import_refer(struct import *import);
void import_end(struct import *import);

#endif
