/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that bypass our symbols: those in another namespace (dlmopen), where nothing is
 * preloaded, and those opened with RTLD_DEEPBIND, which find the driver first.
 *
 * A program reaches their functions only by dlsym on a handle. Before that, the slots (slot.h) by
 * which the object's namespace calls the driver, NVML and dlsym are rewritten. Objects loaded later
 * are found the same way, since their dlsym is ours by then. Calls by constructors, during the
 * load, are missed.
 *
 * A driver loaded only there is the process's one driver (entry.h), so that driver and runtime in
 * one namespace work together. The base's objects are then rewritten too, since they may call a
 * driver loaded there later.
 *
 * In an elastic slice all objects of the base are rewritten, since calls without a hook must pass
 * the gate (gate.h): when the process attaches, and later ones at the next dlsym on a handle.
 *
 * Other processes pay for a comparison at each dlsym.
 *
 * Limitation: a thread made by another namespace's C library has no character tables in the
 * driver's, so isalpha() fails there.
 */
#ifndef GPUSLICE_SCOPE_H
#define GPUSLICE_SCOPE_H

#include "entry.h"

/* Facts recorded about this process. */
#define SCOPE_NAMESPACE 1 /* dlmopen was called */
#define SCOPE_BASE 2      /* objects of the base may bypass us */

extern uint32_t scope_seen;

static inline void scope_see(uint32_t what)
{
	if (!(__atomic_load_n(&scope_seen, __ATOMIC_RELAXED) & what))
		__atomic_fetch_or(&scope_seen, what, __ATOMIC_RELAXED);
}

/* Returns our replacement of a function of the loader in a namespace, or NULL. */
typedef void *scope_stand_in(const char *name, unsigned int namespace);

/* Rewrites the slots of the handle's namespace, and returns its number. */
unsigned int scope_hold(void *handle, scope_stand_in *stand_in);

/* The same of the base, in an elastic slice. */
void scope_hold_for_gate(scope_stand_in *stand_in);

/* Finds the object that contains an address, in any namespace. */
bool scope_find(const void *address, struct elf_object *object, unsigned int *namespace);

/* Finds the object from which dlsym serves a caller in another namespace: the caller's next
 * (elf_find_next()), or the first. */
bool scope_find_definer(const void *caller, bool next, const char *symbol,
                        struct elf_object *object);

/* Returns a permanent handle of the library; NULL if it is not loaded. */
void *scope_library(struct library *library);

/* A namespace calls the library: keeps it loaded, and separates their thread-specific data. */
void scope_use_library(struct library *library, unsigned int namespace);

#endif
