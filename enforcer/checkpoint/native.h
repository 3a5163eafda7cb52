/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions for checkpoints, found at run time. */
#ifndef GPUSLICE_ENFORCER_CHECKPOINT_NATIVE_H
#define GPUSLICE_ENFORCER_CHECKPOINT_NATIVE_H

/* Load the driver, once per process. Returns NULL, or the name of a missing part. */
const char *checkpoint_load(void);

/* These return a CUresult. */
int checkpoint_init(void);
int checkpoint_state(int pid, int *state);
int checkpoint_lock(int pid, unsigned int timeout_ms);
int checkpoint_checkpoint(int pid);
int checkpoint_restore(int pid);
int checkpoint_unlock(int pid);

/* Returns the name of a CUresult, never NULL. */
const char *checkpoint_error_name(int result);

#endif
