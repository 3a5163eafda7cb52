/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include "loader.h"

#include <pthread.h>

/* Above this the data is in memory that the C library which made the thread allocates and frees:
 * two cannot share it. */
#define FIRST_LEVEL 32
#define DRIVER_ROOM 8 /* keys that a driver may still create */

static struct {
	int (*create)(pthread_key_t *, void (*)(void *));
	int (*delete)(pthread_key_t);
} keys[LOADER_NAMESPACES];

/* A bit for each namespace with keys separated from the driver's. */
static uint32_t parted;

static void set(unsigned int namespace, void *create, void *delete)
{
	if (!create || !delete)
		return;
	__atomic_store_n((void **)&keys[namespace].delete, delete, __ATOMIC_RELAXED);
	__atomic_store_n((void **)&keys[namespace].create, create, __ATOMIC_RELEASE);
}

void keys_see(unsigned int namespace, const struct elf_object *object)
{
	if (elf_is_libc(object))
		set(namespace, elf_find_symbol(object, "pthread_key_create"),
		    elf_find_symbol(object, "pthread_key_delete"));
}

/* A C library returns the lowest free number. */
static unsigned int lowest_free(unsigned int namespace)
{
	pthread_key_t key;

	if (keys[namespace].create(&key, NULL) != 0)
		return FIRST_LEVEL;
	keys[namespace].delete(key);
	return key;
}

static void take_below(unsigned int namespace, unsigned int end)
{
	pthread_key_t key;

	if (end > FIRST_LEVEL)
		end = FIRST_LEVEL;
	while (keys[namespace].create(&key, NULL) == 0) {
		if (key >= end) {
			keys[namespace].delete(key);
			return;
		}
	}
}

void keys_part(unsigned int caller, unsigned int driver)
{
	unsigned int first;

	if (__atomic_fetch_or(&parted, 1u << caller, __ATOMIC_RELAXED) & 1u << caller)
		return;
	set(0, elf_find_in_libc("pthread_key_create"), elf_find_in_libc("pthread_key_delete"));
	if (!keys[caller].create || !keys[driver].create)
		return;
	first = lowest_free(caller);
	if (first < lowest_free(driver))
		first = lowest_free(driver);
	take_below(driver, first);
	take_below(caller, first + DRIVER_ROOM);
}
