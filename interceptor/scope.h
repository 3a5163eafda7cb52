/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects whose calls do not come by us of themselves: those in another namespace (dlmopen), where
 * nothing is preloaded, and those opened with RTLD_DEEPBIND, which find the driver before us.
 *
 * Nobody gets at a function of such an object but by dlsym on its handle. So then, before the
 * look-up, the slots are set by which the object and all others of its namespace call the driver,
 * NVML and dlsym. What they load later is met in the same way: their dlsym is ours by then. What is
 * not held is what constructors call, while the object is being opened.
 *
 * If the driver is there and not in the base, it is the process's one driver (entry.h), so that a
 * program whose driver and runtime are in one namespace has them there. The base's objects are
 * looked at then, too, since theirs may call a driver that was loaded there later.
 *
 * In an elastic slice all objects of the base are such: what they call that has no hook shall pass
 * the gate (gate.h). They are held when the process attaches, and later ones at the next dlsym on a
 * handle.
 *
 * A process that has no such objects pays a comparison at each dlsym.
 *
 * A thread that the C library of another namespace made has no character tables in the driver's,
 * which sets them up where it makes a thread: not to be mended from here, should that ask
 * isalpha().
 */
#ifndef GPUSLICE_SCOPE_H
#define GPUSLICE_SCOPE_H

#include "entry.h"

/* What was seen of this process. */
#define SCOPE_NAMESPACE 1 /* dlmopen was called */
#define SCOPE_BASE 2      /* objects of the base may call past us: RTLD_DEEPBIND, or see above */

extern uint32_t scope_seen;

static inline void scope_see(uint32_t what)
{
	if (!(__atomic_load_n(&scope_seen, __ATOMIC_RELAXED) & what))
		__atomic_fetch_or(&scope_seen, what, __ATOMIC_RELAXED);
}

/* Set the slots of all objects in the namespace of a handle. Returns the number of the namespace.
 */
unsigned int scope_hold(void *handle);

/* In an elastic slice, those of the base. */
void scope_hold_for_gate(void);

/* The object that an address is in, in whatever namespace. */
bool scope_find(const void *address, struct elf_object *object, unsigned int *namespace);

/* The object in which dlsym finds a function for a caller in another namespace: that which has its
 * next (elf_find_next()), or the first of all. */
bool scope_find_definer(const void *caller, bool next, const char *symbol,
                        struct elf_object *object);

/* The library as a handle that stays valid; NULL if it is not loaded. */
void *scope_library(struct library *library);

/* A namespace calls the library: have it stay, and thread-specific data of both apart. */
void scope_use_library(struct library *library, unsigned int namespace);

#endif
