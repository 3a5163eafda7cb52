/* SPDX-License-Identifier: Apache-2.0 */
/* What programs are shown: the slice as the card. In record mode, the card. */
#include "hook.h"

struct view {
	uint64_t quota; /* bytes shown as the device's memory */
	uint64_t left;  /* bytes that could still be charged */
};

/* False if this process is in no slice: then it is shown nothing free. */
static bool look(CUdevice ordinal, struct view *view)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;
	const struct ledger_device *d;
	uint64_t limit, used;

	*view = (struct view){0};
	if (device < 0)
		return false;
	d = &process->ledger->device[device];
	used = __atomic_load_n(&d->word.used, __ATOMIC_RELAXED);
	limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
	view->quota =
	    process->ledger->record ? UINT64_MAX : __atomic_load_n(&d->quota, __ATOMIC_RELAXED);
	view->left = limit > used ? limit - used : 0;
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUdevice ordinal;
	struct view view;
	CUresult result;

	if (!DRIVER_HAS(cuMemGetInfo_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	result = DRIVER(cuMemGetInfo_v2)(available, total);
	if (result != CUDA_SUCCESS || ordinal < 0 || !available || !total)
		return result;
	if (look(ordinal, &view))
		*total = least(*total, view.quota);
	*available = least(*available, view.left);
	return result;
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
	CUdevice ordinal;
	struct view view;
	CUresult result;

	if (!DRIVER_HAS(cuMemGetInfo))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	result = DRIVER(cuMemGetInfo)(available, total);
	if (result != CUDA_SUCCESS || ordinal < 0 || !available || !total)
		return result;
	if (look(ordinal, &view))
		*total = (unsigned int)least(*total, view.quota);
	*available = (unsigned int)least(*available, view.left);
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	struct view view;
	CUresult result;

	if (!DRIVER_HAS(cuDeviceTotalMem_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuDeviceTotalMem_v2)(bytes, device);
	if (result == CUDA_SUCCESS && bytes && look(device, &view))
		*bytes = least(*bytes, view.quota);
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
	struct view view;
	CUresult result;

	if (!DRIVER_HAS(cuDeviceTotalMem))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuDeviceTotalMem)(bytes, device);
	if (result == CUDA_SUCCESS && bytes && look(device, &view))
		*bytes = (unsigned int)least(*bytes, view.quota);
	return result;
}
