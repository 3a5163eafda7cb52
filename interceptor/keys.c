/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include "loader.h"
#include "text.h"

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

void keys_see(unsigned int namespace, const struct elf_object *object)
{
	void *create, *delete;

	/* In libc since glibc 2.34. */
	if (!text_equal(object->name, "libc.so.6") && !text_equal(object->name, "libpthread.so.0"))
		return;
	create = elf_find_symbol(object, "pthread_key_create");
	delete = elf_find_symbol(object, "pthread_key_delete");
	if (!create || !delete)
		return;
	__atomic_store_n((void **)&keys[namespace].delete, delete, __ATOMIC_RELAXED);
	__atomic_store_n((void **)&keys[namespace].create, create, __ATOMIC_RELEASE);
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

	while (keys[namespace].create(&key, NULL) == 0) {
		if (key >= end) {
			keys[namespace].delete(key);
			return;
		}
	}
}

static unsigned int at_most(unsigned int value, unsigned int most)
{
	return value < most ? value : most;
}

void keys_part(unsigned int caller, unsigned int driver)
{
	static const char *const names[] = {"libc.so.6", "libpthread.so.0"};
	unsigned int first;

	if (__atomic_fetch_or(&parted, 1u << caller, __ATOMIC_RELAXED) & 1u << caller)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct elf_object object;

		if (elf_find_object(names[i], &object))
			keys_see(0, &object);
	}
	if (!keys[caller].create || !keys[driver].create)
		return;
	first = lowest_free(caller);
	if (first < lowest_free(driver))
		first = lowest_free(driver);
	take_below(driver, at_most(first, FIRST_LEVEL));
	take_below(caller, at_most(first + DRIVER_ROOM, FIRST_LEVEL));
}
