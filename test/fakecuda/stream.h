/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_STREAM_H
#define FAKECUDA_STREAM_H

#include "driver.h"

struct CUstream_st {
	struct owned owned;
	struct capture *capture; /* NULL: none */
};

/* The stream's object; NULL for the legacy default stream, which cannot be captured. */
CUstream stream_object(CUstream stream);
CUresult stream_create(CUcontext context, CUstream *out);

/* All streams of a context, for waits. No stream has this address. */
#define STREAM_ALL ((CUstream) ~(uintptr_t)0)

/* The stream of a handle: NULL is one of the two default streams. */
static inline CUstream stream_legacy(CUstream stream)
{
	return stream ? stream : CU_STREAM_LEGACY;
}

static inline CUstream stream_per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

#endif
