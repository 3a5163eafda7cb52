/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process's memory in this one: an object of the machine at an address, and its opened
 * allocations. They have the exporter's addresses if these are free here.
 */
#ifndef FAKECUDA_VIEW_H
#define FAKECUDA_VIEW_H

#include "address.h"

/* The name of an allocation for other processes: bytes that are the same for each request. */
struct exported {
	uint64_t object;
	uint64_t address, size;
};

/*
 * Opens the allocation as a range of that kind; a second call returns the same one. It ends with
 * the context, or after as many view_close. INVALID_HANDLE if nothing holds it, or it is no
 * allocation of `object_kind`.
 */
CUresult view_open(CUcontext context, const struct exported *exported, int object_kind,
                   enum range_kind kind, struct range **out);
void view_close(struct range *range);
/* True if the allocation is open already. */
bool view_is_open(const struct exported *exported, enum range_kind kind);

#endif
