/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What interceptor/loader.c and elf_symbol.c call, for a process whose sanitizer is just about to
 * begin: it calls dlsym to find the C library's functions, of which it has taken the names already,
 * and so those of these names would lead back to it.
 */
#include <link.h>
#include <stddef.h>

int plain_strcmp(const char *a, const char *b);
char *plain_strrchr(const char *text, int c);
int plain_dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);

int plain_strcmp(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return (unsigned char)*a - (unsigned char)*b;
}

char *plain_strrchr(const char *text, int c)
{
	const char *found = NULL;

	for (; *text; text++) {
		if (*text == (char)c)
			found = text;
	}
	return (char *)found;
}

/* Of the objects that begin with their ELF header, as all libraries do. */
int plain_dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	int result = 0;

	for (struct link_map *map = _r_debug.r_map; map && !result; map = map->l_next) {
		const ElfW(Ehdr) *elf = (const void *)map->l_addr;
		struct dl_phdr_info info = {.dlpi_addr = map->l_addr, .dlpi_name = map->l_name};

		if (!elf)
			continue;
		info.dlpi_phdr = (const void *)(map->l_addr + elf->e_phoff);
		info.dlpi_phnum = elf->e_phnum;
		result = visit(&info, sizeof(info), data);
	}
	return result;
}
