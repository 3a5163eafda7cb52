/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include "text.h"

#include <stddef.h>

void *loader_dlsym[LOADER_NAMESPACES], *loader_dlvsym[LOADER_NAMESPACES], *loader_dlopen[2],
    *loader_dlmopen;

#if defined(__x86_64__)
#define GLIBC_LOADER "ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define GLIBC_LOADER "ld-linux-aarch64.so.1"
#endif

void *loader_find(void **kept, const char *name)
{
	void *found = elf_find_in_libc(name);

	if (found)
		__atomic_store_n(kept, found, __ATOMIC_RELEASE);
	return found;
}

void loader_find_dlopen(void)
{
	struct elf_object object;

	if (__atomic_load_n(&loader_dlopen[0], __ATOMIC_ACQUIRE) ||
	    !elf_find_next(&loader_dlopen, "dlopen", &object))
		return;
	(void)loader_get(&loader_dlopen[1], "dlopen");
	__atomic_store_n(&loader_dlopen[0], elf_find_symbol(&object, "dlopen"), __ATOMIC_RELEASE);
}

bool loader_is_loader(const struct elf_object *object)
{
	return text_equal(object->name, GLIBC_LOADER);
}

void *loader_look_up(unsigned int namespace, void *handle, const char *name, const char *version)
{
	void *(*plain)(void *, const char *);
	void *(*versioned)(void *, const char *, const char *);

	if (version) {
		*(void **)&versioned = __atomic_load_n(&loader_dlvsym[namespace], __ATOMIC_ACQUIRE);
		return versioned ? versioned(handle, name, version) : NULL;
	}
	*(void **)&plain = __atomic_load_n(&loader_dlsym[namespace], __ATOMIC_ACQUIRE);
	return plain ? plain(handle, name) : NULL;
}
