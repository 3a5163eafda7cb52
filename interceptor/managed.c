/* SPDX-License-Identifier: Apache-2.0 */
#include "managed.h"

#include "block.h"
#include "context.h"
#include "grant.h"
#include "hold.h"
#include "image.h"
#include "pages.h"
#include "quiet.h"
#include "state.h"
#include "table.h"

#include <fcntl.h>
#include <string.h>

/* --- names ---------------------------------------------------------------------------------- */

/* Counted only, if `names` has no memory. */
struct collected {
	struct names names;
	size_t used;
};

static void collect(void *data, const char *name, size_t length)
{
	struct collected *all = data;

	if (all->names.text && length < all->names.bytes - all->used) {
		memcpy(all->names.text + all->used, name, length);
		all->used += length + 1;
	} else if (!all->names.text) {
		all->names.bytes += length + 1;
	}
}

static struct names read_names(const void *image, size_t size)
{
	struct collected all = {0};
	struct quiet quiet;

	image_managed(image, size, collect, &all);
	if (!all.names.bytes)
		return all.names;
	quiet = quiet_begin();
	all.names.text = pages_map(all.names.bytes);
	quiet_end(quiet);
	if (!all.names.text)
		return (struct names){0};
	image_managed(image, size, collect, &all);
	return all.names;
}

/* Not mapped: if another process truncated the file, an access would kill this one. */
static struct names read_file(int file)
{
	struct names names = {0};
	off_t end = lseek(file, 0, SEEK_END);
	size_t done = 0, size = end > 0 ? (size_t)end : 0;
	char *bytes = size ? pages_map(size) : NULL;
	ssize_t got = 1;

	while (bytes && done < size && got > 0) {
		got = pread(file, bytes + done, size - done, (off_t)done);
		done += got > 0 ? (size_t)got : 0;
	}
	if (!bytes)
		return names;
	names = read_names(bytes, done);
	munmap(bytes, size);
	return names;
}

struct names managed_names(const void *image, const char *path)
{
	struct names names = {0};
	int file;

	if (image)
		return read_names(image, IMAGE_UNKNOWN);
	QUIETLY;
	file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	if (file >= 0) {
		names = read_file(file);
		close(file);
	}
	return names;
}

static void drop(struct names names)
{
	QUIETLY;

	if (names.text)
		munmap(names.text, names.bytes);
}

/* --- variables ------------------------------------------------------------------------------ */

struct variable {
	CUdeviceptr address;
	size_t bytes;
	uint64_t source; /* the module or the library */
	uint64_t owner;  /* its context, or 0 */
};

static bool is_managed(CUdeviceptr address)
{
	unsigned int managed = 0;

	return DRIVER_HAS(cuPointerGetAttribute) &&
	       DRIVER(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
	           CUDA_SUCCESS &&
	       managed;
}

/* Charges the blocks under it, less what variables before it in the first block were charged. */
static bool charge(const struct variable *v, bool anyway)
{
	CUdeviceptr start = v->address & ~(CUdeviceptr)(BLOCK_BYTES - 1);
	uint64_t bytes = block_round(v->address - start + v->bytes), key = start | 1, more;
	CUdevice ordinal = process_current_ordinal();
	struct manageds *manageds;
	struct holding known;
	bool fits = true;

	if (ordinal < 0 || !v->bytes || !is_managed(v->address))
		return true;
	manageds = &state_get()->manageds;
	LOCKED(&manageds->lock);
	(void)hold_get(key, &known);
	more = bytes > known.bytes ? bytes - known.bytes : 0;
	if (more)
		fits = grant(ordinal, more, KIND_UNLISTED, LEDGER_CALL_CODE) == GRANTED;
	if (!fits && anyway)
		process_charge_anyway(ordinal, more, KIND_UNLISTED);
	if (more && (fits || anyway))
		(void)hold_add(key, &(struct holding){.bytes = more,
		                                      .owner = v->owner,
		                                      .source = v->source,
		                                      .ordinal = ordinal,
		                                      .kind = KIND_UNLISTED});
	return fits;
}

bool managed_asked(CUmodule module, const char *name, bool anyway)
{
	struct variable v = {.source = (uint64_t)(uintptr_t)module, .owner = context_current()};

	return !DRIVER_HAS(cuModuleGetGlobal_v2) ||
	       DRIVER(cuModuleGetGlobal_v2)(&v.address, &v.bytes, module, name) != CUDA_SUCCESS ||
	       charge(&v, anyway);
}

bool managed_asked_of_library(uint64_t library, const char *name)
{
	struct variable v = {.source = library};

	return DRIVER(cuLibraryGetManaged)(&v.address, &v.bytes, (CUlibrary)(uintptr_t)library,
	                                   name) != CUDA_SUCCESS ||
	       charge(&v, true);
}

static const char *next(struct names names, const char *name)
{
	name = name ? name + strlen(name) + 1 : names.text;
	return name && name < names.text + names.bytes ? name : NULL;
}

bool managed_load(CUmodule module, struct names names)
{
	bool fits = true;

	for (const char *name = NULL; fits && (name = next(names, name));)
		fits = managed_asked(module, name, false);
	drop(names);
	return fits;
}

void managed_keep(uint64_t library, struct names names)
{
	struct manageds *manageds = &state_get()->manageds;
	struct names *known;

	if (!names.text)
		return;
	lock_take(&manageds->lock);
	known = map_put(&manageds->of_library, library, NULL);
	if (known)
		*known = names;
	lock_give(&manageds->lock);
	if (!known)
		drop(names);
}

void managed_forget(uint64_t library)
{
	struct manageds *manageds = STATE_TAKE(manageds);
	struct names *known, names = {0};

	known = map_find(&manageds->of_library, library);
	if (known) {
		names = *known;
		map_remove(&manageds->of_library, known);
	}
	lock_give(&manageds->lock);
	drop(names);
}

bool managed_use(uint64_t library)
{
	struct manageds *manageds = STATE_TAKE(manageds);
	const struct names *known;
	struct names names = {0};
	bool fits = true;

	known = map_find(&manageds->of_library, library);
	if (known)
		names = *known;
	lock_give(&manageds->lock);
	for (const char *name = NULL; (name = next(names, name));)
		fits = managed_asked_of_library(library, name) && fits;
	return fits;
}
