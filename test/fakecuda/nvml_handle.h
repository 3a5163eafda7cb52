/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_NVML_HANDLE_H
#define FAKECUDA_NVML_HANDLE_H

#include "../../interceptor/nvml_abi.h"
#include "try.h"

#define NVML_API __attribute__((visibility("default")))

/* A handle is the address of one of these; nvmlInit sets its card. */
struct nvmlDevice_st {
	unsigned machine;
};

/* The checks at the start of each query of a card. */
nvmlReturn_t nvml_check(nvmlDevice_t device, const void *output);

/*
 * nvml_fault.c. The error that a call of NVML returns instead of its work; NVML_SUCCESS if there is
 * none. The file in FAKECUDA_NVML_FAULT determines it at each call: "fail" simulates a card that
 * has fallen off the bus; with "hang" the call returns when the file changes or is gone, as during
 * a card's reset.
 */
nvmlReturn_t nvml_fault(void);

#endif
