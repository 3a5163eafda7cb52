/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: work that is given to a stream becomes nodes of a graph. A capture is one chain:
 * each node comes after the one before, whichever of the capture's streams it was given to.
 */
#ifndef FAKECUDA_CAPTURE_H
#define FAKECUDA_CAPTURE_H

#include "graph.h"

/* The capture that the stream takes part in, or NULL. The stream is none of the NULL ones. */
struct capture *capture_of(CUstream stream);
/* Ends a capture that began with the stream, or lets the stream leave another's. */
void capture_forget(CUstream stream);

CUresult capture_add(struct capture *capture, int type, CUgraphNode *out);
/* `size` bytes of the card, or of a pool's place. */
CUresult capture_alloc(struct capture *capture, const CUmemPoolProps *properties, size_t size,
                       CUdeviceptr *out);
CUresult capture_free(struct capture *capture, CUdeviceptr pointer);
/* Something that a capturing stream cannot do: the capture will yield no graph. */
CUresult capture_spoil(struct capture *capture);
/* A call that may harm what others record: whether the thread may not make it now. Then those
 * captures are spoilt. */
bool capture_forbids(void);
/* The like of one who waits for all of a context, which nobody may, whatever he has said. */
bool capture_forbids_wait(CUcontext context);

/* What an event is told when it is recorded in the capture, and a stream that waits for that
 * event then joins the capture. 0: none. */
uint64_t capture_id(const struct capture *capture);
void capture_join(uint64_t id, CUstream stream);

/*
 * Takes the lock itself. True if the stream is being captured: the work is a node now, or *result
 * tells why not.
 */
bool capture_takes(CUstream stream, int type, CUresult *result);

#endif
