/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PTX text as the simulated driver reads it, and the kernels' effects: the input is the text. It is
 * executed or refused with an explanation, and no kernel accesses memory other than its own. The
 * card has one array, with its address as the first parameter.
 */
#include "fuzz.h"

#include "../fakecuda/copy.h"
#include "../fakecuda/image.h"
#include "../fakecuda/managed.h"
#include "../fakecuda/ptx.h"

#include <string.h>

#define CARD_BYTES 64

struct ranges allocations;
static char on_card[CARD_BYTES];
static struct range whole = {.size = CARD_BYTES, .kind = RANGE_DEVICE};

struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address)
{
	(void)ranges;
	return address - whole.start < whole.size ? &whole : NULL;
}

bool copy_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write)
{
	(void)context;
	(void)write;
	return start - whole.start < whole.size && size <= whole.size - (start - whole.start);
}

void *copy_view(CUdeviceptr start, size_t size)
{
	(void)size;
	return (void *)(uintptr_t)start;
}

void managed_touch(struct range *range, CUdeviceptr start, size_t size)
{
	(void)range;
	(void)start;
	(void)size;
}

static void run(const struct ptx_kernel *kernel)
{
	static const CUlaunchConfig config = {2, 1, 1, 3, 2, 1, 32, NULL, NULL, 0};
	char *parameters = calloc(1, ptx_parameter_bytes(kernel) + 1);
	struct ptx_run *launch;
	CUresult result;

	must(parameters, "there is memory");
	if (ptx_parameter_bytes(kernel) >= sizeof(whole.start))
		memcpy(parameters, &whole.start, sizeof(whole.start));
	launch = ptx_start(kernel, NULL, &config, parameters, whole.start);
	free(parameters);
	if (!launch) /* more local memory than exists */
		return;
	result = ptx_step(launch, 2000);
	must(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ||
	         result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_MISALIGNED_ADDRESS ||
	         result == CUDA_ERROR_LAUNCH_FAILED,
	     "a kernel ends in one of these ways");
	ptx_end(launch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), said[4096];
	struct jit_log log = {.buffer = said, .room = sizeof(said)};
	struct image *image;
	CUresult result;

	whole.start = (uintptr_t)on_card;
	must(text, "there is memory");
	memcpy(text, data, size);
	text[size] = 0;
	said[0] = 0;
	result = image_read(text, &log, &image);
	if (result == CUDA_SUCCESS) {
		for (size_t i = 0; image->ptx && i < image->kernels.count; i++) {
			const struct ptx_kernel *kernel =
			    ptx_find(image->ptx, image->kernels.list[i].name);

			if (kernel)
				run(kernel);
		}
		image_drop(image);
	} else {
		must(said[0], "a refusal is explained");
	}
	free(text);
	return 0;
}
