/* SPDX-License-Identifier: Apache-2.0 */
#include "slot.h"

#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

static ElfW(Addr) page_size(void)
{
	return (ElfW(Addr))sysconf(_SC_PAGESIZE);
}

static bool is_mapped(ElfW(Addr) address)
{
	unsigned char resident;

	return mincore((void *)(address & -page_size()), 1, &resident) == 0;
}

/* Program headers follow the ELF header, at the object's start. If the program is not
 * position-independent, load addresses do not count from 0, and the kernel provides its headers. */
static const ElfW(Phdr) * headers_of(const struct link_map *map, unsigned int *count)
{
	const ElfW(Ehdr) *elf = (const void *)map->l_addr;

	if (!map->l_addr && !map->l_prev) {
		*count = (unsigned int)getauxval(AT_PHNUM);
		return (const void *)getauxval(AT_PHDR);
	}
	if (!map->l_addr || !is_mapped(map->l_addr) || memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0)
		return NULL;
	*count = elf->e_phnum;
	return (const void *)(map->l_addr + elf->e_phoff);
}

bool slot_read_object(const struct link_map *map, struct mapped *object)
{
	const ElfW(Phdr) * header;
	ElfW(Addr) page = page_size();
	unsigned int count = 0;

	*object = (struct mapped){.dynamic = map->l_ld,
	                          .elf = {.base = map->l_addr, .path = map->l_name}};
	if (!map->l_ld || !elf_read_dynamic(map->l_ld, &object->elf))
		return false;
	header = headers_of(map, &count);
	if (!header)
		return false;
	elf_read_range(header, count, &object->elf);
	for (unsigned int i = 0; i < count; i++) {
		ElfW(Addr) start = map->l_addr + header[i].p_vaddr;

		if (header[i].p_type != PT_GNU_RELRO)
			continue;
		object->relro_start = start & -page;
		object->relro_end = (start + header[i].p_memsz) & -page;
	}
	return true;
}

static void set_slot(const struct mapped *object, void **slot, void *value)
{
	ElfW(Addr) at = (ElfW(Addr))slot, page = page_size();
	bool locked = at >= object->relro_start && at < object->relro_end;

	if (locked && mprotect((void *)(at & -page), page, PROT_READ | PROT_WRITE) != 0)
		return;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (locked)
		(void)mprotect((void *)(at & -page), page, PROT_READ);
}

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOB_DAT R_X86_64_GLOB_DAT
#define ABSOLUTE R_X86_64_64
#elif defined(__aarch64__)
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOB_DAT R_AARCH64_GLOB_DAT
#define ABSOLUTE R_AARCH64_ABS64
#endif

static bool is_slot(const ElfW(Rela) * relocation)
{
	uint64_t type = ELF64_R_TYPE(relocation->r_info);

	return type == JUMP_SLOT || type == GLOB_DAT ||
	       (type == ABSOLUTE && relocation->r_addend == 0);
}

/* Returns the value of a tag; 0 if there is none. */
static ElfW(Addr) dynamic_value(const ElfW(Dyn) * dynamic, ElfW(Sxword) tag)
{
	while (dynamic->d_tag != DT_NULL && dynamic->d_tag != tag)
		dynamic++;
	return dynamic->d_tag == tag ? dynamic->d_un.d_ptr : 0;
}

static void set_table(const struct mapped *object, ElfW(Sxword) table, ElfW(Sxword) size,
                      slot_exchange *exchange, void *context)
{
	const struct elf_object *elf = &object->elf;
	const ElfW(Rela) *relocation =
	    (const void *)elf_address(elf, dynamic_value(object->dynamic, table));
	size_t bytes = dynamic_value(object->dynamic, size);

	for (size_t i = 0; relocation && i < bytes / sizeof(*relocation); i++, relocation++) {
		void **slot = (void **)(elf->base + relocation->r_offset);
		void *value;

		if (!is_slot(relocation))
			continue;
		value =
		    exchange(context, elf, &elf->symbols[ELF64_R_SYM(relocation->r_info)], *slot);
		if (value)
			set_slot(object, slot, value);
	}
}

void slot_set_all(const struct mapped *object, slot_exchange *exchange, void *context)
{
	set_table(object, DT_RELA, DT_RELASZ, exchange, context);
	set_table(object, DT_JMPREL, DT_PLTRELSZ, exchange, context);
}
