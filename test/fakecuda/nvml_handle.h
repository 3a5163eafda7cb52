/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_NVML_HANDLE_H
#define FAKECUDA_NVML_HANDLE_H

#include "../../interceptor/nvml_abi.h"

#define NVML_API __attribute__((visibility("default")))

/* A handle is the address of one of these; which card it means is set by nvmlInit. */
struct nvmlDevice_st {
	unsigned machine;
	unsigned index;
};

/* What every question to a card begins with. */
nvmlReturn_t nvml_check(nvmlDevice_t device, const void *output);

#endif
