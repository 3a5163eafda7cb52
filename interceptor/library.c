/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include "context.h"
#include "function.h"
#include "grant.h"
#include "hold.h"
#include "managed.h"

/* A library has an entry for each context it is loaded in. */
static uint64_t key_of(uint64_t library, uint64_t context)
{
	uint64_t hash = (library ^ context << 1) * 0x9e3779b97f4a7c15ull;

	return (hash ^ hash >> 29) | 1;
}

bool library_is_in(uint64_t context, uint64_t library)
{
	return hold_known(key_of(library, context));
}

bool library_is_here(uint64_t library)
{
	return library_is_in(context_current(), library);
}

bool library_is_everywhere(uint64_t library)
{
	return context_all(library_is_in, library);
}

void library_took(const struct watch *watch, uint64_t library, uint64_t bytes)
{
	uint64_t context = context_current();

	hold_part(key_of(library, context), &(struct holding){.bytes = bytes,
	                                                      .owner = context,
	                                                      .source = library,
	                                                      .ordinal = watch->ordinal,
	                                                      .kind = KIND_OVERHEAD});
	function_library_loaded(library);
}

bool library_use_begin(struct use *use, uint64_t library)
{
	*use = (struct use){.library = library};
	use->first = library && !library_is_here(library);
	if (!use->first)
		return true;
	use->watch = watch_begin();
	if (use->watch.ordinal < 0 || grant_any_left(use->watch.ordinal, LEDGER_CALL_CODE))
		return true;
	watch_drop(&use->watch);
	return false;
}

CUresult library_use_end(const struct use *use, CUresult result)
{
	uint64_t bytes;
	bool fits;

	if (!use->first || use->watch.ordinal < 0)
		return result;
	fits = watch_end(&use->watch, LEDGER_CALL_CODE, &bytes);
	if (!fits)
		process_charge_anyway(use->watch.ordinal, bytes, KIND_OVERHEAD);
	if (result == CUDA_SUCCESS || bytes)
		library_took(&use->watch, use->library, bytes);
	if (result == CUDA_SUCCESS)
		fits = managed_use(use->library) && fits;
	return fits || result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}
