/* SPDX-License-Identifier: Apache-2.0 */
/* The table of entries.h, in a file of its own: it declares the functions without their types. */
#include "procaddr.h"

#define ENTRY(name, since, symbol) void symbol(void);
#define PER_THREAD ENTRY
#include "entries.h"
#undef ENTRY
#undef PER_THREAD

const struct entry entries[] = {
#define ENTRY(name, since, symbol) {#name, since, false, symbol},
#define PER_THREAD(name, since, symbol) {#name, since, true, symbol},
#include "entries.h"
};

const size_t entry_count = sizeof(entries) / sizeof(entries[0]);
