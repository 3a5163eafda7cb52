/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_NVML_FAULT_H
#define FAKECUDA_NVML_FAULT_H

#include "../../interceptor/nvml_abi.h"

/*
 * What a call of NVML answers instead of doing its work; NVML_SUCCESS if nothing is wrong. It
 * depends on what the file says that FAKECUDA_NVML_FAULT names, at this moment: "fail" is a card
 * that has fallen off the bus; with "hang" the call returns when the file says something else or is
 * gone, as it does while a card is reset.
 */
nvmlReturn_t nvml_fault(void);

#endif
