/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment says about the machine. README.md lists the variables; the ones that
 * describe the cards count only for the process that makes the state.
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
/* What a context takes: listed by NVML as its process's; and on the card besides. */
uint64_t config_context_bytes(void);
uint64_t config_context_unlisted(void);
/* What a context of the first cuCtxCreate takes on the card besides all that. */
uint64_t config_old_context_unlisted(void);

/* Whether the variable has exactly this value. */
bool config_is(const char *variable, const char *value);

#endif
