/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_VMM_H
#define FAKECUDA_VMM_H

#include "address.h"
#include "driver.h"

/* Of physical memory, of mappings and of reserved addresses; 2 MiB, observed. */
#define VMM_GRANULARITY (2 * MiB)

/* The memory mapped at the address, and the start of its mapping; NULL if there is none. */
struct physical *vmm_physical_at(CUdeviceptr address, CUdeviceptr *start);

/* The access that a device has to a mapping. */
int vmm_access(const struct range *range, const struct device *device);

/* The range of cuMemAddressReserve, mapped or not; NULL if it is none. */
const struct range *vmm_reservation(CUdeviceptr address);
/* True if all of it is mapped, and the context's card may read it, or write to it. */
bool vmm_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write);
/*
 * Notes a fill of such addresses, which runs until the program waits for the card: an unmap before
 * that is a fault of the context. Any wait ends it, since streams are not distinguished here.
 */
void vmm_fill(CUcontext context, CUdeviceptr start, size_t size);
void vmm_work_done(void);
/* True if that call is to fail: FAKECUDA_VMM_FAULT in README.md. */
bool vmm_fails(const char *call);

#endif
