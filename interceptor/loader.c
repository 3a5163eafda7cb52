/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <stddef.h>
#include <string.h>

void *loader_dlsym[LOADER_NAMESPACES], *loader_dlvsym[LOADER_NAMESPACES], *loader_dlopen,
    *loader_dlmopen;

/* Of trampoline.S, for each namespace. */
extern __attribute__((visibility("hidden"))) void *const trampoline_dlsym[LOADER_NAMESPACES],
    *const trampoline_dlvsym[LOADER_NAMESPACES];

/* musl's C library, which is its loader, too: `gpuslice run` is for any program. */
#if defined(__x86_64__)
#define MUSL "ld-musl-x86_64.so.1"
#define GLIBC_LOADER "ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define MUSL "ld-musl-aarch64.so.1"
#define GLIBC_LOADER "ld-linux-aarch64.so.1"
#endif

static const char *const libc_names[] = {"libc.so.6", "libdl.so.2", MUSL};

#define LIBC_NAMES (sizeof(libc_names) / sizeof(*libc_names))

void *loader_find(void **kept, const char *name)
{
	void *found = NULL;

	for (size_t i = 0; !found && i < LIBC_NAMES; i++) {
		struct elf_object object;

		if (elf_find_object(libc_names[i], &object))
			found = elf_find_symbol(&object, name);
	}
	if (found)
		__atomic_store_n(kept, found, __ATOMIC_RELEASE);
	return found;
}

void *loader_find_dlopen(void)
{
	void *found = __atomic_load_n(&loader_dlopen, __ATOMIC_ACQUIRE);
	struct elf_object object;

	if (!found && elf_find_next(&loader_dlopen, "dlopen", &object)) {
		found = elf_find_symbol(&object, "dlopen");
		__atomic_store_n(&loader_dlopen, found, __ATOMIC_RELEASE);
	}
	return found;
}

bool loader_is_libc(const struct elf_object *object)
{
	for (size_t i = 0; i < LIBC_NAMES; i++) {
		if (strcmp(object->name, libc_names[i]) == 0)
			return true;
	}
	return false;
}

bool loader_is_loader(const struct elf_object *object)
{
	return strcmp(object->name, GLIBC_LOADER) == 0;
}

void *loader_stand_in(const char *name, unsigned int namespace)
{
	if (name[0] != 'd' || name[1] != 'l')
		return NULL;
	if (strcmp(name, "dlsym") == 0)
		return trampoline_dlsym[namespace];
	if (strcmp(name, "dlvsym") == 0)
		return trampoline_dlvsym[namespace];
	/* It only tells that there are other namespaces: whoever is in one is known. */
	return strcmp(name, "dlmopen") == 0 && namespace == 0 ? (void *)dlmopen : NULL;
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
