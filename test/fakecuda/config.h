/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the machine from the environment. README.md lists the variables. Those of the cards
 * are read only by the process that makes the state.
 */
#ifndef FAKECUDA_CONFIG_H
#define FAKECUDA_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void config_state_path(char *path, size_t size);
unsigned config_device_count(void);
uint64_t config_device_memory(void);
uint64_t config_device_reserved(void);
/* A context's memory: listed by NVML for its process, and unlisted on the card. */
uint64_t config_context_bytes(void);
uint64_t config_context_unlisted(void);
/* Further memory on the card of a context of the first cuCtxCreate. */
uint64_t config_old_context_unlisted(void);

/* True if the variable has exactly this value. */
bool config_is(const char *variable, const char *value);

#endif
