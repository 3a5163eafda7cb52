/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Print the names that interceptor/image.c finds in each form of an image, a line each. Also check
 * that it reads no byte behind an image: each image ends at an unreadable page, is truncated at
 * each byte, and has its bytes overwritten.
 */
#include "image.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)

static const char ptx[] =
    ".version 7.0\n.target sm_70\n"
    ".global .align 4 .u32 plain;\n"
    ".visible .global .attribute(.managed) .align 16 .b8 big[12884901888];\n"
    ".global .attribute( .unified(1, 0x2), .managed ) /* */ .v4 .u32 first[2] = {1, 2}, second;\n";

struct image {
	char bytes[PAGE];
	size_t size;
};

static void add(struct image *image, const void *bytes, size_t size)
{
	memcpy(image->bytes + image->size, bytes, size);
	image->size += size;
}

static struct image text(void)
{
	struct image image = {.size = 0};

	add(&image, ptx, sizeof(ptx) - 1);
	return image;
}

static struct image cubin(void)
{
	static const char names[] = "\0one\0two\0plain";
	const Elf64_Sym symbols[] = {{0},
	                             {.st_name = 1, .st_other = 4, .st_size = 8},
	                             {.st_name = 5, .st_other = 0x24},
	                             {.st_name = 9, .st_other = 0x20},
	                             {.st_name = 99, .st_other = 4}};
	const Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64},
	                           .e_machine = EM_CUDA,
	                           .e_shoff = sizeof(header),
	                           .e_shentsize = sizeof(Elf64_Shdr),
	                           .e_shnum = 3};
	const uint64_t first = sizeof(header) + 3 * sizeof(Elf64_Shdr);
	const Elf64_Shdr sections[] = {
	    {.sh_type = SHT_NULL},
	    {.sh_type = SHT_SYMTAB, .sh_link = 2, .sh_offset = first, .sh_size = sizeof(symbols)},
	    {.sh_type = SHT_STRTAB,
	     .sh_offset = first + sizeof(symbols),
	     .sh_size = sizeof(names)}};
	struct image image = {.size = 0};

	add(&image, &header, sizeof(header));
	add(&image, sections, sizeof(sections));
	add(&image, symbols, sizeof(symbols));
	add(&image, names, sizeof(names));
	return image;
}

static void add_entry(struct image *image, uint16_t kind, uint64_t flags, const struct image *code)
{
	struct {
		uint16_t kind, version;
		uint32_t header_bytes;
		uint64_t bytes;
		uint32_t more[6];
		uint64_t flags, last[2];
	} entry = {kind, 0x101, sizeof(entry), code->size, {0}, flags, {0}};

	add(image, &entry, sizeof(entry));
	add(image, code->bytes, code->size);
}

/* A cubin, the text in each compressed form (not read), and the plain text. */
static struct image fatbin(void)
{
	struct image elf = cubin(), code = text(), other = {.size = 0}, image = {.size = 0};
	struct {
		uint32_t magic;
		uint16_t version, header_bytes;
		uint64_t bytes;
	} header = {0xba55ed50, 1, sizeof(header), 0};

	add(&other, ".managed compressed;", 20);
	add(&image, &header, sizeof(header));
	add_entry(&image, 2, 0x11, &elf);
	add_entry(&image, 1, 0x1011, &other);
	add_entry(&image, 1, 0x2011, &other);
	add_entry(&image, 1, 0x8011, &other);
	add_entry(&image, 1, 0x11, &code);
	header.bytes = image.size - sizeof(header);
	memcpy(image.bytes, &header, sizeof(header));
	return image;
}

static void print(void *data, const char *name, size_t length)
{
	(void)data;
	printf(" %.*s", (int)length, name);
}

static void count(void *data, const char *name, size_t length)
{
	for (size_t i = 0; i < length; i++)
		*(unsigned *)data += name[i] != 0;
}

static void hostile(char *end, const struct image *whole)
{
	unsigned read = 0, random = 1;

	for (size_t size = 0; size <= whole->size; size++) {
		memcpy(end - size, whole->bytes, size);
		image_managed(end - size, size, count, &read);
	}
	for (int i = 0; whole->size && i < 100000; i++) {
		char *image = memcpy(end - whole->size, whole->bytes, whole->size);

		for (int j = 0; j < 4; j++) {
			random = random * 1664525 + 1013904223;
			image[(random >> 8) % whole->size] = (char)(random >> 24);
		}
		image_managed(image, whole->size, count, &read);
	}
}

static void look(char *end, const char *name, struct image whole)
{
	struct {
		uint32_t magic, version;
		const void *fatbin;
	} wrapper = {0x466243b1, 1, whole.bytes};

	printf("%s:", name);
	image_managed(whole.bytes, whole.size, print, NULL);
	printf("\n%s of unknown size:", name);
	image_managed(whole.bytes, IMAGE_UNKNOWN, print, NULL);
	printf("\n%s wrapped:", name);
	image_managed(&wrapper, IMAGE_UNKNOWN, print, NULL);
	printf("\n%s wrapped in a file:", name);
	image_managed(&wrapper, sizeof(wrapper), print, NULL);
	printf("\n");
	fflush(stdout);
	hostile(end, &whole);
}

int main(void)
{
	char *pages =
	    mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) != 0)
		abort();
	look(pages + PAGE, "text", text());
	look(pages + PAGE, "cubin", cubin());
	look(pages + PAGE, "fatbin", fatbin());
	return 0;
}
