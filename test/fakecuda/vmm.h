/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_VMM_H
#define FAKECUDA_VMM_H

#include "driver.h"

/* Of physical memory, of mappings and of reserved addresses; 2 MiB, observed. */
#define VMM_GRANULARITY (2 * MiB)

/* What is mapped at the address, and where its mapping starts; NULL: nothing. */
struct physical *vmm_physical_at(CUdeviceptr address, CUdeviceptr *start);

#endif
