/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "image.h"

#include "ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY_ALIGNMENT 16
#define FRAME_ALIGNMENT 8

/* A word of PTX; so ".global" is one, and "st.global.u8" another. */
struct word {
	const char *start;
	size_t length;
};

struct reader {
	struct image *image;
	const char *at;
	struct word last; /* the one before */
	bool in_kernel;   /* the last kernel's body, not that of a function */
	bool no_memory;
};

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("_$%.", c));
}

static bool next_word(struct reader *reader, struct word *out)
{
	const char *at = reader->at;

	while (*at && !is_word(*at))
		at++;
	out->start = at;
	while (is_word(*at))
		at++;
	out->length = (size_t)(at - out->start);
	reader->at = at;
	return out->length;
}

static bool is(const struct word *word, const char *text)
{
	return word->length == strlen(text) && memcmp(word->start, text, word->length) == 0;
}

/* A factor of an element's size: 1 byte for ".b8", 4 times as many for ".v4"; 0 for other words. */
static uint64_t factor_of(const struct word *word)
{
	static const struct {
		const char *name;
		unsigned bytes;
	} types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2},
	             {".f16", 2}, {".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8},
	             {".u64", 8}, {".s64", 8}, {".f64", 8}, {".v2", 2},  {".v4", 4}};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (is(word, types[i].name))
			return types[i].bytes;
	return 0;
}

/* The product of the numbers in brackets after a name. */
static uint64_t read_dimensions(struct reader *reader)
{
	uint64_t product = 1;

	for (;;) {
		char *end;

		reader->at += strspn(reader->at, " \t\r\n");
		if (*reader->at != '[')
			return product;
		product *= strtoull(reader->at + 1, &end, 0);
		reader->at = end + strcspn(end, "]");
		if (*reader->at)
			reader->at++;
	}
}

/* ".align 16 .b8 name[512]", after ".global", ".const" or ".local". */
static bool read_variable(struct reader *reader, struct word *name, uint64_t *bytes,
                          bool *is_managed)
{
	*bytes = 1;
	*is_managed = false;
	while (next_word(reader, name)) {
		if (is(name, ".align")) {
			if (!next_word(reader, name))
				return false;
		} else if (is(name, ".managed")) {
			*is_managed = true;
		} else if (*name->start != '.') {
			*bytes *= read_dimensions(reader);
			return true;
		} else if (factor_of(name)) {
			*bytes *= factor_of(name);
		}
	}
	return false;
}

static struct symbol *add(struct reader *reader, struct symbols *to, const struct word *name)
{
	struct symbol *list = realloc(to->list, (to->count + 1) * sizeof(*list));
	struct symbol *symbol;

	if (list)
		to->list = list;
	symbol = list ? &list[to->count] : NULL;
	if (symbol)
		*symbol = (struct symbol){.name = strndup(name->start, name->length)};
	if (!symbol || !symbol->name) {
		reader->no_memory = true;
		return NULL;
	}
	to->count++;
	return symbol;
}

static void read_array(struct reader *reader, bool is_extern)
{
	struct image *image = reader->image;
	struct symbol *symbol;
	struct word name;
	uint64_t bytes, *end;
	bool is_managed;

	if (!read_variable(reader, &name, &bytes, &is_managed) || is_extern)
		return;
	symbol = add(reader, &image->arrays, &name);
	if (!symbol)
		return;
	end = is_managed ? &image->managed : &image->bytes;
	symbol->bytes = bytes;
	symbol->is_managed = is_managed;
	symbol->offset = round_up(*end, ARRAY_ALIGNMENT);
	*end = symbol->offset + bytes;
}

static void read_local(struct reader *reader)
{
	struct symbols *kernels = &reader->image->kernels;
	struct word name;
	uint64_t bytes;
	bool is_managed;

	if (read_variable(reader, &name, &bytes, &is_managed) && reader->in_kernel &&
	    kernels->count)
		kernels->list[kernels->count - 1].bytes += round_up(bytes, FRAME_ALIGNMENT);
}

static void read_word(struct reader *reader, const struct word *word)
{
	bool is_extern = is(&reader->last, ".extern");
	struct word name;

	reader->last = *word;
	if (is(word, ".entry")) {
		if (!is_extern && next_word(reader, &name))
			add(reader, &reader->image->kernels, &name);
		reader->in_kernel = true;
	} else if (is(word, ".func")) {
		reader->in_kernel = false;
	} else if (is(word, ".global") || is(word, ".const")) {
		read_array(reader, is_extern);
	} else if (is(word, ".local")) {
		read_local(reader);
	}
}

/* A cubin or a fatbin, bare or in the compiler's wrapper. */
static bool is_binary(const char *image)
{
	static const char *const begins[] = {"\177ELF", "\x50\xed\x55\xba", "\xb1\x43\x62\x46"};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(image, begins[i], 4) == 0)
			return true;
	return false;
}

static void read_words(struct reader *reader, const char *text)
{
	struct word word;

	reader->at = text;
	reader->image->uses_printf = strstr(text, "vprintf") != NULL;
	while (next_word(reader, &word))
		read_word(reader, &word);
}

CUresult image_read(const char *text, struct jit_log *log, struct image **out)
{
	struct reader reader = {0};
	CUresult result = CUDA_SUCCESS;

	reader.image = calloc(1, sizeof(*reader.image));
	if (!reader.image)
		return CUDA_ERROR_OUT_OF_MEMORY;
	reader.image->holders = 1;
	if (!is_binary(text)) {
		read_words(&reader, text);
		result = reader.no_memory
		             ? CUDA_ERROR_OUT_OF_MEMORY
		             : ptx_read(text, &reader.image->arrays, log, &reader.image->ptx);
	}
	if (result == CUDA_SUCCESS)
		*out = reader.image;
	else
		image_drop(reader.image);
	return result;
}

struct image *image_hold(struct image *image)
{
	image->holders++;
	return image;
}

static void free_symbols(struct symbols *symbols)
{
	for (size_t i = 0; i < symbols->count; i++)
		free(symbols->list[i].name);
	free(symbols->list);
}

void image_drop(struct image *image)
{
	if (--image->holders)
		return;
	free_symbols(&image->kernels);
	free_symbols(&image->arrays);
	ptx_free(image->ptx);
	free(image);
}

const struct symbol *image_find(const struct symbols *symbols, const char *name)
{
	for (size_t i = 0; i < symbols->count; i++)
		if (strcmp(symbols->list[i].name, name) == 0)
			return &symbols->list[i];
	return NULL;
}

CUresult image_load_file(const char *path, char **out)
{
	FILE *file = fopen(path, "rb");
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	char *text = NULL;
	long size;

	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0) {
		rewind(file);
		text = calloc(1, (size_t)size + 1);
		if (text && fread(text, 1, (size_t)size, file) == (size_t)size) {
			*out = text;
			text = NULL;
			result = CUDA_SUCCESS;
		}
	}
	free(text);
	fclose(file);
	return result;
}
