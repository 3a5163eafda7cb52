/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_symbol.h"

#include "text.h"

#include <stddef.h>
#include <stdint.h>

bool elf_read_dynamic(const ElfW(Dyn) * dynamic, struct elf_object *object)
{
	ElfW(Addr) soname = 0;
	bool has_soname = false;

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		ElfW(Addr) value = dynamic->d_un.d_ptr;
		const void *at = (const void *)elf_address(object, value);

		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			object->symbols = at;
			break;
		case DT_STRTAB:
			object->strings = at;
			break;
		case DT_GNU_HASH:
			object->gnu_hash = at;
			break;
		case DT_HASH:
			object->hash = at;
			break;
		case DT_SONAME:
			soname = value;
			has_soname = true;
			break;
		default:
			break;
		}
	}
	if (!object->symbols || !object->strings || !(object->gnu_hash || object->hash))
		return false;
	object->name = has_soname ? object->strings + soname : text_file_name(object->path);
	return true;
}

void elf_read_range(const ElfW(Phdr) * header, unsigned int count, struct elf_object *object)
{
	object->start = UINTPTR_MAX;
	object->end = 0;
	for (unsigned int i = 0; i < count; i++) {
		ElfW(Addr) start = object->base + header[i].p_vaddr;

		if (header[i].p_type != PT_LOAD)
			continue;
		if (start < object->start)
			object->start = start;
		if (start + header[i].p_memsz > object->end)
			object->end = start + header[i].p_memsz;
	}
}

/* musl's C library is its loader, too. */
#if defined(__x86_64__)
#define MUSL "ld-musl-x86_64.so.1"
#elif defined(__aarch64__)
#define MUSL "ld-musl-aarch64.so.1"
#endif

static const char *const libc_names[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0", MUSL};
#define LIBC_NAMES (sizeof(libc_names) / sizeof(*libc_names))

bool elf_is_libc(const struct elf_object *object)
{
	for (size_t i = 0; i < LIBC_NAMES; i++) {
		if (text_equal(object->name, libc_names[i]))
			return true;
	}
	return false;
}

typedef int (*iterate_function)(int (*visit)(struct dl_phdr_info *, size_t, void *), void *);

#pragma weak _r_debug /* musl has none */

/* Return the C library's function. Reads the list up to it without the loader's lock: these objects
 * were loaded with the program and are never unloaded. */
static iterate_function find_iterate(void)
{
	iterate_function found = NULL;

	for (const struct link_map *map = &_r_debug ? _r_debug.r_map : NULL; map && !found;
	     map = map->l_next) {
		struct elf_object object = {.base = map->l_addr, .path = map->l_name};

		if (map->l_ld && elf_read_dynamic(map->l_ld, &object) && elf_is_libc(&object))
			*(void **)&found = elf_find_symbol(&object, "dl_iterate_phdr");
	}
	return found ? found : dl_iterate_phdr;
}

int elf_iterate(int (*visit)(struct dl_phdr_info *info, size_t size, void *data), void *data)
{
	static iterate_function kept;
	iterate_function iterate = __atomic_load_n(&kept, __ATOMIC_ACQUIRE);

	if (!iterate) {
		iterate = find_iterate();
		__atomic_store_n(&kept, iterate, __ATOMIC_RELEASE);
	}
	return iterate(visit, data);
}

struct search {
	bool (*wanted)(struct search *search, const struct elf_object *object);
	const char *name;
	const void *address;
	bool passed; /* the object that `address` is in */
	struct elf_object *object;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	struct elf_object object = {.base = info->dlpi_addr, .path = info->dlpi_name};
	const ElfW(Dyn) *dynamic = NULL;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	}
	if (!dynamic || !elf_read_dynamic(dynamic, &object))
		return 0;
	elf_read_range(info->dlpi_phdr, info->dlpi_phnum, &object);
	if (!search->wanted(search, &object))
		return 0;
	*search->object = object;
	return 1;
}

static bool is_named(struct search *search, const struct elf_object *object)
{
	return text_equal(object->name, search->name);
}

static bool is_around(struct search *search, const struct elf_object *object)
{
	return elf_contains(object, search->address);
}

static bool is_next(struct search *search, const struct elf_object *object)
{
	if (search->passed)
		return elf_find_symbol(object, search->name);
	search->passed = elf_contains(object, search->address);
	return false;
}

static bool is_other(struct search *search, const struct elf_object *object)
{
	return !elf_contains(object, search->address) && !elf_contains(object, (void *)visit) &&
	       elf_find_symbol(object, search->name);
}

int elf_find_object(const char *name, struct elf_object *object)
{
	struct search search = {.wanted = is_named, .name = name, .object = object};

	return elf_iterate(visit, &search);
}

int elf_find_containing(const void *address, struct elf_object *object)
{
	struct search search = {.wanted = is_around, .address = address, .object = object};

	return elf_iterate(visit, &search);
}

int elf_find_next(const void *address, const char *symbol, struct elf_object *object)
{
	struct search search = {
	    .wanted = is_next, .name = symbol, .address = address, .object = object};

	if (elf_iterate(visit, &search))
		return 1;
	search.wanted = is_other;
	return elf_iterate(visit, &search);
}

static void *address_if(const struct elf_object *object, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &object->symbols[index];

	if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return NULL;
	if (!text_equal(object->strings + symbol->st_name, name))
		return NULL;
	return (void *)(object->base + symbol->st_value);
}

/* The hash of DT_GNU_HASH (Drepper, "How to write shared libraries", 1.5.3). */
static uint32_t gnu_hash_of(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

static void *find_by_gnu_hash(const struct elf_object *object, const char *name)
{
	const uint32_t *table = object->gnu_hash;
	uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
	const ElfW(Addr) *bloom = (const void *)(table + 4);
	const uint32_t *bucket = (const void *)(bloom + bloom_words);
	const uint32_t *chain = bucket + buckets;
	uint32_t hash = gnu_hash_of(name);
	uint32_t index = buckets ? bucket[hash % buckets] : 0;

	if (index < first)
		return NULL;
	for (;; index++) {
		uint32_t entry = chain[index - first];
		void *address;

		if ((entry | 1) == (hash | 1) && (address = address_if(object, index, name)))
			return address;
		if (entry & 1)
			return NULL;
	}
}

/* The hash of DT_HASH (System V ABI, chapter 5). */
static uint32_t sysv_hash_of(const char *name)
{
	uint32_t hash = 0;

	for (; *name; name++) {
		uint32_t high;

		hash = (hash << 4) + (unsigned char)*name;
		high = hash & 0xf0000000;
		hash ^= high >> 24;
		hash &= ~high;
	}
	return hash;
}

static void *find_by_sysv_hash(const struct elf_object *object, const char *name)
{
	uint32_t buckets = object->hash[0];
	const uint32_t *bucket = object->hash + 2, *chain = bucket + buckets;
	void *address = NULL;

	if (!buckets)
		return NULL;
	for (uint32_t i = bucket[sysv_hash_of(name) % buckets]; i && !address; i = chain[i])
		address = address_if(object, i, name);
	return address;
}

void *elf_find_symbol(const struct elf_object *object, const char *name)
{
	return object->gnu_hash ? find_by_gnu_hash(object, name) : find_by_sysv_hash(object, name);
}

void *elf_find_in_libc(const char *name)
{
	void *found = NULL;

	for (size_t i = 0; i < LIBC_NAMES && !found; i++) {
		struct elf_object object;

		if (elf_find_object(libc_names[i], &object))
			found = elf_find_symbol(&object, name);
	}
	return found;
}
