/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* In a symbol's st_other (cuda-tdep.c of NVIDIA's cuda-gdb). */
#define STO_CUDA_MANAGED 4

/* The first word of a fatbin, and of the wrapper that nvcc adds (fatbinary_section.h of CUDA). */
#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u

struct wrapper {
	uint32_t magic, version;
	const void *fatbin;
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* after the header */
};

/* An image for one architecture. Undocumented; cuobjdump shows the fields. */
struct entry {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes; /* after the header */
	uint32_t more[6];
	uint64_t flags;
};

#define ENTRY_COMPRESSED 0xb000u /* in one of three ways */

struct reader {
	const char *bytes;
	size_t size;
	void (*found)(void *data, const char *name, size_t length);
	void *data;
};

static const void *part(const struct reader *r, uint64_t offset, uint64_t size)
{
	return offset <= r->size && size <= r->size - offset ? r->bytes + offset : NULL;
}

/* Copies a structure, which may not be aligned. False if it is not all there. */
static bool copy(const struct reader *r, uint64_t offset, void *to, size_t size)
{
	const void *from = part(r, offset, size);

	if (from)
		memcpy(to, from, size);
	return from;
}

static bool begins(const struct reader *r, const void *with, size_t size)
{
	const void *bytes = part(r, 0, size);

	return bytes && memcmp(bytes, with, size) == 0;
}

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '$' || c == '%';
}

/* Reports all words up to the end of a declaration, except numbers and types (with a leading
 * dot). */
static const char *read_declaration(const struct reader *r, const char *at, const char *end)
{
	while (at < end && *at != ';') {
		const char *word = at;

		while (at < end && (*at == '.' || is_name(*at)))
			at++;
		if (at == word)
			at++;
		else if (*word != '.' && !(*word >= '0' && *word <= '9'))
			r->found(r->data, word, (size_t)(at - word));
	}
	return at;
}

static void read_text(const struct reader *r)
{
	static const char managed[] = ".managed";
	const size_t length = sizeof(managed) - 1;
	const char *at = r->bytes;
	const char *end = at + (r->size == IMAGE_UNKNOWN ? strlen(at) : r->size);

	while ((at = memchr(at, '.', (size_t)(end - at)))) {
		if ((size_t)(end - at) >= length && memcmp(at, managed, length) == 0)
			at = read_declaration(r, at, end);
		else
			at++;
	}
}

static void read_symbols(const struct reader *r, const Elf64_Shdr *table, const Elf64_Shdr *strings)
{
	const char *names = part(r, strings->sh_offset, strings->sh_size);

	for (uint64_t i = 0; names && i < table->sh_size / sizeof(Elf64_Sym); i++) {
		Elf64_Sym symbol;
		size_t room;

		if (!copy(r, table->sh_offset + i * sizeof(symbol), &symbol, sizeof(symbol)))
			return;
		if (!(symbol.st_other & STO_CUDA_MANAGED) || symbol.st_name >= strings->sh_size)
			continue;
		room = strings->sh_size - symbol.st_name;
		r->found(r->data, names + symbol.st_name, strnlen(names + symbol.st_name, room));
	}
}

static bool section(const struct reader *r, const Elf64_Ehdr *header, uint32_t i, Elf64_Shdr *out)
{
	return i < header->e_shnum &&
	       copy(r, header->e_shoff + i * sizeof(*out), out, sizeof(*out));
}

static void read_cubin(const struct reader *r)
{
	Elf64_Shdr table, strings;
	Elf64_Ehdr header;

	if (!copy(r, 0, &header, sizeof(header)))
		return;
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
		return;
	for (uint32_t i = 0; section(r, &header, i, &table); i++) {
		if (table.sh_type == SHT_SYMTAB && section(r, &header, table.sh_link, &strings))
			read_symbols(r, &table, &strings);
	}
}

static void read_code(const struct reader *r)
{
	if (begins(r, ELFMAG, SELFMAG))
		read_cubin(r);
	else
		read_text(r);
}

static void read_fatbin(const struct reader *r)
{
	struct fatbin header;
	struct entry entry;
	uint64_t offset, end;

	if (!copy(r, 0, &header, sizeof(header)))
		return;
	offset = header.header_bytes;
	if (__builtin_add_overflow(offset, header.bytes, &end))
		return;
	while (offset < end && copy(r, offset, &entry, sizeof(entry))) {
		struct reader code = *r;

		if (entry.header_bytes < sizeof(entry) ||
		    __builtin_add_overflow(offset, entry.header_bytes, &offset))
			return;
		code.bytes = part(r, offset, entry.bytes);
		code.size = entry.bytes;
		if (!code.bytes)
			return;
		if (!(entry.flags & ENTRY_COMPRESSED))
			read_code(&code);
		offset += entry.bytes;
	}
}

void image_managed(const void *image, size_t size,
                   void (*found)(void *data, const char *name, size_t length), void *data)
{
	struct reader r = {.bytes = image, .size = size, .found = found, .data = data};
	uint32_t wrapped = WRAPPER_MAGIC, fatbin = FATBIN_MAGIC;
	struct wrapper wrapper;

	/* A wrapper contains an address, so no file has one. */
	if (size == IMAGE_UNKNOWN && begins(&r, &wrapped, sizeof(wrapped))) {
		memcpy(&wrapper, image, sizeof(wrapper));
		r.bytes = wrapper.fatbin;
	}
	if (begins(&r, &fatbin, sizeof(fatbin)))
		read_fatbin(&r);
	else
		read_code(&r);
}
