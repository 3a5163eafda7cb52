/* SPDX-License-Identifier: Apache-2.0 */
/* An image in a context: the memory of its arrays, and its functions. */
#ifndef FAKECUDA_MODULE_H
#define FAKECUDA_MODULE_H

#include "address.h"
#include "image.h"

struct CUmod_st {
	struct owned owned;
	struct image *image;
	CUfunction functions; /* requested so far */
	struct range arrays;  /* empty before the first request for one */
	CUdeviceptr managed;  /* its managed variables; 0: none */
	uint64_t printf_code; /* bytes besides the image's (limit.h) */
	CUlibrary library;    /* its library, or NULL */
	CUmodule next;        /* of that library, in another context */
};

/* Takes the card's memory for it. It holds the image. */
CUresult module_create(CUcontext context, struct image *image, CUmodule *out);
void module_destroy(CUmodule module);
CUresult module_function(CUmodule module, const char *name, CUfunction *out);
/* The address of its arrays, which it reserves first if necessary; 0 if there is no room. */
CUdeviceptr module_arrays(CUmodule module);
CUresult module_array(CUmodule module, const char *name, CUdeviceptr *address, size_t *size);

#endif
