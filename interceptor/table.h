/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry points of the driver and of NVML as the hooks use them: prototypes, numbers, and the
 * libraries' own functions. The rows are in driver.def and nvml.def.
 */
#ifndef GPUSLICE_TABLE_H
#define GPUSLICE_TABLE_H

#include "cuda_abi.h"
#include "nvml_abi.h"

#include <stdbool.h>

/* Prototypes. Only the hooks are exported. */
#define GPUSLICE_EXPORT __attribute__((visibility("default")))

#define HOOK(name, arguments, charged, released) GPUSLICE_EXPORT CUresult name arguments;
#define CALL(name, arguments) CUresult name arguments;
#include "driver.def"
#define HOOK(name, arguments, shown, released) GPUSLICE_EXPORT nvmlReturn_t name arguments;
#define CALL(name, arguments) nvmlReturn_t name arguments;
#include "nvml.def"

enum entry_point {
#define HOOK(name, arguments, charged, released) ID_##name,
#define CALL(name, arguments) ID_##name,
#include "driver.def"
	DRIVER_ENTRY_POINTS,
	BEFORE_NVML = DRIVER_ENTRY_POINTS - 1,
#define HOOK(name, arguments, shown, released) ID_##name,
#define CALL(name, arguments) ID_##name,
#include "nvml.def"
	ENTRY_POINTS
};

/* The libraries' own functions. An entry is first a binding (entry.S) that finds the library
 * and jumps to its function. If the library lacks it, the call returns the error of an
 * uninitialised library. */
extern void *entry_function[ENTRY_POINTS];

bool entry_exists(enum entry_point entry);

/* The library's own function, typed, and whether it exists. */
#define DRIVER(name) ((__typeof__(&name))entry_function[ID_##name])
#define DRIVER_HAS(name) entry_exists(ID_##name)
#define NVML(name) DRIVER(name)
#define NVML_HAS(name) DRIVER_HAS(name)

#endif
