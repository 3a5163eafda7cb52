/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_IPC_H
#define BENCH_IPC_H

#include "measure.h"

/* To open memory of another process of the slice, and to close it. */
extern const struct call call_ipc;

/* Be that process: print a handle, and wait for the measured one's end. */
void ipc_export(void);

#endif
