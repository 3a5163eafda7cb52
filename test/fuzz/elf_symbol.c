/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for symbols in a loaded object, with both kinds of hash table. The input is the names,
 * and how the tables are built. The tables are well-formed, as in all objects that the loader maps.
 * The search must find a function if and only if the object defines it.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <link.h>

static int fuzz_iterate(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);
/* Without a list of its own the loader's function is found by its name, as in musl. */
static struct r_debug no_list;
#define dl_iterate_phdr fuzz_iterate
#define _r_debug no_list
#include "../../interceptor/elf_symbol.c"

#include <string.h>

#define MOST 64u

static struct object {
	char strings[4096];
	ElfW(Sym) symbols[MOST];
	uint32_t hash[2 + MOST + MOST];
	uint32_t gnu_hash[4 + 2 + MOST + MOST];
	ElfW(Dyn) dynamic[8];
	unsigned count; /* symbols; the first is unused */
} object;
static ElfW(Phdr) header;

#define OBJECT ((ElfW(Addr)) & object)

static int fuzz_iterate(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	struct dl_phdr_info none = {.dlpi_name = ""};
	struct dl_phdr_info info = {.dlpi_addr = OBJECT,
	                            .dlpi_name = "/lib/libc.so.6",
	                            .dlpi_phdr = &header,
	                            .dlpi_phnum = 1};

	return visit(&none, sizeof(none), data) ? 1 : visit(&info, sizeof(info), data);
}

static int by_bucket(const void *a, const void *b, void *buckets)
{
	uint32_t n = *(const uint32_t *)buckets;
	uint32_t x = gnu_hash_of(object.strings + ((const ElfW(Sym) *)a)->st_name) % n;
	uint32_t y = gnu_hash_of(object.strings + ((const ElfW(Sym) *)b)->st_name) % n;

	return x < y ? -1 : x > y;
}

/* As a linker does: undefined symbols first, the rest in the order of their buckets. */
static void build(uint32_t buckets)
{
	uint32_t first = 1, *bucket = object.gnu_hash + 4 + 2, *chain = bucket + buckets;
	uint32_t *old_bucket = object.hash + 2, *old_chain = old_bucket + buckets;

	for (uint32_t i = 1; i < object.count; i++) {
		if (object.symbols[i].st_shndx == SHN_UNDEF) {
			ElfW(Sym) moved = object.symbols[i];

			object.symbols[i] = object.symbols[first];
			object.symbols[first++] = moved;
		}
	}
	qsort_r(object.symbols + first, object.count - first, sizeof(ElfW(Sym)), by_bucket,
	        &buckets);
	object.gnu_hash[0] = buckets;
	object.gnu_hash[1] = first;
	object.gnu_hash[2] = 1; /* a word of a filter that is not read */
	object.hash[0] = buckets;
	object.hash[1] = object.count;
	for (uint32_t i = 1; i < object.count; i++) {
		const char *name = object.strings + object.symbols[i].st_name;
		uint32_t mine = sysv_hash_of(name) % buckets;

		old_chain[i] = old_bucket[mine];
		old_bucket[mine] = i;
		if (i < first)
			continue;
		mine = gnu_hash_of(name) % buckets;
		if (bucket[mine] == 0)
			bucket[mine] = i;
		chain[i - first] = gnu_hash_of(name) & ~1u;
		if (i + 1 == object.count ||
		    gnu_hash_of(object.strings + object.symbols[i + 1].st_name) % buckets != mine)
			chain[i - first] |= 1;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char soname[] = "libc.so.6";
	size_t at = 1 + sizeof(soname);
	struct elf_object found;
	uint32_t buckets;
	unsigned n = 0;

	if (size < 2)
		return 0;
	memset(&object, 0, sizeof(object));
	memcpy(object.strings + 1, soname, sizeof(soname));
	buckets = 1 + data[0] % 16;
	object.count = 1;
	/* Each symbol: its kind, the length of its name, and the name. */
	for (size_t i = 2; i + 2 <= size && object.count < MOST;) {
		ElfW(Sym) *symbol = &object.symbols[object.count];
		size_t length = data[i + 1] % 32;

		if (i + 2 + length > size || at + length + 1 > sizeof(object.strings))
			break;
		symbol->st_name = (ElfW(Word))at;
		symbol->st_info = data[i] & 1 ? STT_FUNC : STT_OBJECT;
		symbol->st_shndx = data[i] & 2 ? 1 : SHN_UNDEF;
		symbol->st_value = (Elf64_Addr)object.count * 16;
		memcpy(object.strings + at, data + i + 2, length);
		at += length + 1;
		i += 2 + length;
		object.count++;
	}
	build(buckets);
	header.p_type = PT_DYNAMIC;
	header.p_vaddr = offsetof(struct object, dynamic);
	/* The vDSO has offsets there, all others addresses. */
	{
		ElfW(Addr) base = data[1] & 4 ? 0 : OBJECT;

		object.dynamic[n++] =
		    (ElfW(Dyn)){DT_SYMTAB, {base + offsetof(struct object, symbols)}};
		object.dynamic[n++] =
		    (ElfW(Dyn)){DT_STRTAB, {base + offsetof(struct object, strings)}};
		if (data[1] & 1)
			object.dynamic[n++] =
			    (ElfW(Dyn)){DT_GNU_HASH, {base + offsetof(struct object, gnu_hash)}};
		if (data[1] & 2)
			object.dynamic[n++] =
			    (ElfW(Dyn)){DT_HASH, {base + offsetof(struct object, hash)}};
		if (data[1] & 8)
			object.dynamic[n++] = (ElfW(Dyn)){DT_SONAME, {1}};
	}
	must(elf_find_object(soname, &found) == ((data[1] & 3) != 0),
	     "an object is found by its name if it has a table");
	must(elf_find_object("libm.so.6", &found) == 0, "no other is");
	if (!(data[1] & 3))
		return 0;
	must(elf_find_object(soname, &found), "it is found again");
	for (uint32_t i = 1; i < object.count; i++) {
		const char *name = object.strings + object.symbols[i].st_name;
		ElfW(Addr) address = (ElfW(Addr))elf_find_symbol(&found, name);
		int wanted = 0, right = 0;

		for (uint32_t j = 1; j < object.count; j++) {
			const ElfW(Sym) *other = &object.symbols[j];

			if (strcmp(object.strings + other->st_name, name) != 0 ||
			    other->st_shndx == SHN_UNDEF ||
			    ELF64_ST_TYPE(other->st_info) != STT_FUNC)
				continue;
			wanted = 1;
			right |= address == OBJECT + other->st_value;
		}
		must(wanted ? right : address == 0,
		     "a function that is defined is found, and no other");
	}
	(void)elf_find_symbol(&found, "cuMemAlloc_v2");
	return 0;
}
