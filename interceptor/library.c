/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include "context.h"
#include "function.h"
#include "grant.h"
#include "managed.h"

bool library_use_begin(struct use *use, uint64_t library)
{
	*use = (struct use){.library = library};
	use->first = library && !function_library_is_in(context_current(), library);
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
		function_library_took(use->library, use->watch.ordinal, bytes);
	if (result == CUDA_SUCCESS)
		fits = managed_use(use->library) && fits;
	return fits || result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}
