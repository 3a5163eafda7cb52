/* SPDX-License-Identifier: Apache-2.0 */
/* An image in a context: what its arrays take there, and its functions. */
#ifndef FAKECUDA_MODULE_H
#define FAKECUDA_MODULE_H

#include "address.h"
#include "image.h"

struct CUmod_st {
	struct owned owned;
	struct image *image;
	CUfunction functions; /* that were asked for */
	struct range arrays;  /* empty until one is asked for */
	CUdeviceptr managed;  /* where its managed variables are; 0: it has none */
	uint64_t printf_code; /* bytes beside the image's (limit.h) */
	CUlibrary library;    /* that it is a part of, or NULL */
	CUmodule next;        /* of that library, in another context */
};

/* Takes the memory of the card. It holds the image. */
CUresult module_create(CUcontext context, struct image *image, CUmodule *out);
void module_destroy(CUmodule module);
CUresult module_function(CUmodule module, const char *name, CUfunction *out);
/* Where its arrays are, which get addresses now if they have none; 0: there is no room. */
CUdeviceptr module_arrays(CUmodule module);
CUresult module_array(CUmodule module, const char *name, CUdeviceptr *address, size_t *size);

#endif
