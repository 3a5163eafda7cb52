/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_VMM_H
#define FAKECUDA_VMM_H

#include "driver.h"

/* Of physical memory, of mappings and of reserved addresses; 2 MiB, observed. */
#define VMM_GRANULARITY (2 * MiB)

/* What is mapped at the address, and where its mapping starts; NULL: nothing. */
struct physical *vmm_physical_at(CUdeviceptr address, CUdeviceptr *start);

/* Addresses of cuMemAddressReserve, mapped or not. */
bool vmm_is_reserved(CUdeviceptr address);
/* Whether all of it is mapped, and the context's card may read it, or write to it. */
bool vmm_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write);
/*
 * A fill of such addresses goes on until its program waits for the card: an unmap before that is a
 * fault of the context. Any wait will do, for streams are not told apart here.
 */
void vmm_fill(CUcontext context, CUdeviceptr start, size_t size);
void vmm_work_done(void);

#endif
