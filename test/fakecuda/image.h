/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of an image of code, if it is text: PTX, or the result of cuLinkComplete. A cubin or
 * a fatbin is empty here: it takes nothing, any name is one of its kernels, and they do nothing.
 */
#ifndef FAKECUDA_IMAGE_H
#define FAKECUDA_IMAGE_H

#include "driver.h"
#include "jit.h"

/* A kernel and its frame, or an array and its size. */
struct symbol {
	char *name;
	uint64_t bytes;
	uint64_t offset; /* of an array in the memory of its module */
	bool is_managed; /* in the managed memory of its module */
};

struct symbols {
	struct symbol *list;
	size_t count;
};

struct image {
	unsigned holders;
	struct symbols kernels, arrays;
	uint64_t bytes;   /* of all arrays but the managed ones */
	uint64_t managed; /* bytes of those */
	bool uses_printf; /* it calls vprintf */
	struct ptx *ptx;  /* NULL: it is not text */
};

/* The caller is its only holder. For invalid text the log has the reason. */
CUresult image_read(const char *text, struct jit_log *log, struct image **out);
struct image *image_hold(struct image *image);
void image_drop(struct image *image);
/* NULL if it has none of that name. */
const struct symbol *image_find(const struct symbols *symbols, const char *name);

/* A file's bytes with a 0 after them; the caller frees them. */
CUresult image_load_file(const char *path, char **out);

#endif
