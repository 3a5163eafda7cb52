/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: work in one stream becomes nodes of a graph. A capture is one chain: each node
 * follows the one before.
 */
#ifndef FAKECUDA_CAPTURE_H
#define FAKECUDA_CAPTURE_H

#include "graph.h"

/* The stream's capture, or NULL. The stream is not NULL. */
struct capture *capture_of(CUstream stream);
/* Ends the stream's capture, if there is one. */
void capture_forget(CUstream stream);

CUresult capture_add(struct capture *capture, int type, CUgraphNode *out);
/* Allocates `size` bytes of the card, or of a pool's location. */
CUresult capture_alloc(struct capture *capture, const CUmemPoolProps *properties, size_t size,
                       CUdeviceptr *out);
CUresult capture_free(struct capture *capture, CUdeviceptr pointer);
/* An operation that a capturing stream cannot do: the capture will yield no graph. */
CUresult capture_spoil(struct capture *capture);
/* True if the thread may not make an unsafe call now. Captures of others are then invalidated. */
bool capture_forbids(void);
/* The same for a wait for a whole context, which is forbidden in any mode. */
bool capture_forbids_wait(CUcontext context);

/*
 * Takes the lock itself. True if the stream is being captured: the work is now a node, or *result
 * is the error.
 */
bool capture_takes(CUstream stream, int type, CUresult *result);

#endif
