/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_NVML_FAULT_H
#define FAKECUDA_NVML_FAULT_H

#include "../../interceptor/nvml_abi.h"

/*
 * The error that a call of NVML returns instead of its work; NVML_SUCCESS if there is none. The
 * file in FAKECUDA_NVML_FAULT determines it at each call: "fail" simulates a card that has fallen
 * off the bus; with "hang" the call returns when the file changes or is gone, as during a card's
 * reset.
 */
nvmlReturn_t nvml_fault(void);

#endif
