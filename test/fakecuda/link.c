/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linking. The result is the text of all inputs: image.h reads it like the parts. The card holds
 * nothing of it before it is loaded.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "image.h"

#include <stdlib.h>
#include <string.h>

#define HEADER "// linked\n"

struct CUlinkState_st {
	char *text;
	size_t length;
};

CUDA_API CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *out)
{
	CUlinkState state;

	(void)count;
	(void)options;
	(void)values;
	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	state = calloc(1, sizeof(*state));
	if (state)
		state->text = strdup(HEADER);
	if (!state || !state->text) {
		free(state);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	state->length = strlen(HEADER);
	*out = state;
	return CUDA_SUCCESS;
}

/* Of an input that is not text, the part before its first 0 byte. */
CUDA_API CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size,
                                   const char *name, unsigned int count, int *options,
                                   void **values)
{
	size_t length;
	char *text;

	(void)type;
	(void)name;
	(void)count;
	(void)options;
	(void)values;
	DRIVER_ENTER();
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || !size)
		return CUDA_ERROR_INVALID_VALUE;
	length = strnlen(data, size);
	text = realloc(state->text, state->length + length + 2);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(text + state->length, data, length);
	memcpy(text + state->length + length, "\n", 2);
	state->text = text;
	state->length += length + 1;
	return CUDA_SUCCESS;
}

/* The image belongs to the state. */
CUDA_API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
	DRIVER_ENTER();
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	*image = state->text;
	if (size)
		*size = state->length + 1;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkDestroy(CUlinkState state)
{
	DRIVER_ENTER();
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	free(state->text);
	free(state);
	return CUDA_SUCCESS;
}
