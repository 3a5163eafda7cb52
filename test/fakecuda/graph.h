/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs under construction: by a program node by node, or by a stream that is being captured. */
#ifndef FAKECUDA_GRAPH_H
#define FAKECUDA_GRAPH_H

#include "graph_memory.h"

struct CUgraphNode_st {
	CUgraphNode next; /* of its graph, in order of creation */
	CUgraph graph;
	int type;
	CUgraphNode *after; /* its direct predecessors */
	size_t after_count;
	unsigned mark;                     /* of the last search that reached it */
	CUfunction function;               /* of a kernel */
	CUDA_KERNEL_NODE_PARAMS kernel;    /* as the program gave it */
	CUgraph child;                     /* of a child graph */
	CUDA_MEM_ALLOC_NODE_PARAMS params; /* of an allocation; of a free only `dptr` */
	struct graph_slot *slot;           /* of an allocation, and of a free of the same graph */
};

struct CUgraph_st {
	CUgraphNode first, *end;
	size_t count;
	bool allocates;              /* or frees: it can be neither cloned nor nested */
	struct graph_memory *memory; /* made for its first allocation */
};

/* graph_api.c: the function of a kernel node's parameters, in a module */
CUresult graph_kernel(const CUDA_KERNEL_NODE_PARAMS *params, bool second_form, CUfunction *out);

CUgraph graph_create(void);
void graph_destroy(CUgraph graph);
/* Adds a node after others of the same graph. The caller fills in what its type needs. */
CUresult graph_add(CUgraph graph, int type, const CUgraphNode *after, size_t count,
                   CUgraphNode *out);
/* Sets params->dptr, which is an address at once and has memory once the graph was launched. */
CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *after, size_t count,
                         CUDA_MEM_ALLOC_NODE_PARAMS *params, CUgraphNode *out);
CUresult graph_add_free(CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr pointer,
                        CUgraphNode *out);

#endif
