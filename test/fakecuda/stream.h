/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_STREAM_H
#define FAKECUDA_STREAM_H

#include "driver.h"

struct CUstream_st {
	struct owned owned;
	struct capture *capture; /* that it takes part in, or NULL */
	CUstream next_captured;  /* in the same capture */
};

/* What is known of a stream; NULL for the legacy default stream, which cannot be captured. */
CUstream stream_object(CUstream stream);
CUresult stream_create(CUcontext context, CUstream *out);

/* Every stream of a context, for what waits for all of them. No stream has this address. */
#define STREAM_ALL ((CUstream) ~(uintptr_t)0)

/* The stream that a caller means: NULL is one of the two default streams. */
static inline CUstream stream_legacy(CUstream stream)
{
	return stream ? stream : CU_STREAM_LEGACY;
}

static inline CUstream stream_per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

#endif
