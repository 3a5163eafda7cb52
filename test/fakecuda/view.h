/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process's memory as this one sees it: an object of the machine at an address, and the
 * allocations of it that were opened. They have the exporter's address, if that is free here.
 */
#ifndef FAKECUDA_VIEW_H
#define FAKECUDA_VIEW_H

#include "address.h"

/* What names an allocation to another process; its own bytes, so equal whenever it is asked for. */
struct exported {
	uint64_t object;
	uint64_t address, size;
};

/*
 * Opens it, as a range of the kind that owned things and pointers are told by; a second time gives
 * the same one. It goes with the context, or with as many view_close. INVALID_HANDLE: nothing holds
 * it, or it is no allocation of `object_kind`.
 */
CUresult view_open(CUcontext context, const struct exported *exported, int object_kind,
                   enum range_kind kind, struct range **out);
void view_close(struct range *range);
/* Whether the allocation is open already. */
bool view_is_open(const struct exported *exported, enum range_kind kind);

#endif
