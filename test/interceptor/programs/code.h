/* SPDX-License-Identifier: Apache-2.0 */
/* Loading code: functions that table.h has no prototypes of, and modules that allocate memory. The
 * modules are PTX that any card since Volta compiles. */
#ifndef CODE_H
#define CODE_H

#include "driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ONE_THREAD                                                                                 \
	.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1

/* Kernels here are launched with one parameter, a number: 0. */
static uint64_t zero;
static void *parameters[] __attribute__((unused)) = {&zero};

typedef struct CUlinkState_st *CUlinkState;

#define CU_JIT_INPUT_PTX 1
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16
#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR 39
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

/* Threads that the first device can run at a time: it takes local memory for all of them, however
 * few are started. */
static inline long long card_threads(void)
{
	int processors = 0, threads = 0;

	cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
	cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0);
	return (long long)processors * threads;
}

CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *state);
CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t bytes, const char *name,
                          unsigned int count, int *options, void **values);
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes);
CUresult cuLinkDestroy(CUlinkState state);
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUresult cuParamSetSize(CUfunction function, unsigned int bytes);
CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                  size_t count, CUgraph child);

struct text {
	char *bytes;
	size_t length, room;
};

__attribute__((format(printf, 2, 3))) static inline void text_add(struct text *text,
                                                                  const char *format, ...)
{
	va_list arguments;

	if (text->room - text->length < 4096) {
		text->room += 16384;
		text->bytes = realloc(text->bytes, text->room);
		if (!text->bytes)
			abort();
	}
	va_start(arguments, format);
	text->length += (size_t)vsnprintf(text->bytes + text->length, text->room - text->length,
	                                  format, arguments);
	va_end(arguments);
}

/* A kernel `frameBYTES` with a frame of `bytes` in each thread. */
static inline void text_frame(struct text *text, size_t bytes)
{
	text_add(text,
	         ".visible .entry frame%zu(.param .u64 x)\n{\n.local .align 8 .b8 buf[%zu];\n"
	         ".reg .b64 %%rd<8>;\n.reg .b16 %%rs<3>;\nld.param.u64 %%rd1,[x];\n"
	         "mov.u64 %%rd2,buf;\nadd.s64 %%rd3,%%rd2,%%rd1;\nst.local.u8 [%%rd3],1;\n"
	         "add.s64 %%rd4,%%rd3,7;\nld.local.u8 %%rs1,[%%rd4];\n"
	         "st.local.u8 [%%rd3+3],%%rs1;\nld.local.u8 %%rs2,[%%rd3+1];\n"
	         "st.local.u8 [%%rd4+2],%%rs2;\nret;\n}\n",
	         bytes, bytes);
}

/*
 * A module: an array `big` and a kernel `usebig` that writes to it, unless `array` is 0; a kernel
 * `empty`; and one for each frame up to a 0.
 */
static inline char *module_text(size_t array, const size_t *frames)
{
	struct text text = {0};

	text_add(&text, ".version 7.0\n.target sm_70\n.address_size 64\n");
	if (array)
		text_add(&text,
		         ".visible .global .align 16 .b8 big[%zu];\n"
		         ".visible .entry usebig(.param .u64 x)\n{\n.reg .b64 %%rd<4>;\n"
		         "ld.param.u64 %%rd1,[x];\nmov.u64 %%rd2,big;\n"
		         "add.s64 %%rd3,%%rd2,%%rd1;\nst.global.u8 [%%rd3],1;\nret;\n}\n",
		         array);
	text_add(&text, ".visible .entry empty()\n{\nret;\n}\n");
	for (; frames && *frames; frames++)
		text_frame(&text, *frames);
	return text.bytes;
}

static inline char *managed_text(size_t bytes)
{
	struct text text = {0};

	text_add(&text,
	         ".version 7.0\n.target sm_70\n.address_size 64\n"
	         ".visible .global .attribute(.managed) .align 16 .b8 big[%zu];\n"
	         ".global .attribute(.managed) .align 4 .u32 small;\n"
	         ".visible .entry empty()\n{\nret;\n}\n",
	         bytes);
	return text.bytes;
}

static inline char *printing_module_text(void)
{
	struct text text = {0};

	text_add(&text,
	         ".version 7.0\n.target sm_70\n.address_size 64\n"
	         ".extern .func (.param .b32 r) vprintf (.param .b64 a,.param .b64 b);\n"
	         ".global .align 1 .b8 fmt[2]={10,0};\n.visible .entry prints()\n{\n"
	         ".reg .b64 %%rd<4>;\n.reg .b32 %%r<3>;\nmov.u64 %%rd1,fmt;\n"
	         "cvta.global.u64 %%rd2,%%rd1;\nmov.u64 %%rd3,0;\n{\n.param .b64 p0;\n"
	         "st.param.b64 [p0],%%rd2;\n.param .b64 p1;\nst.param.b64 [p1],%%rd3;\n"
	         ".param .b32 rv;\ncall.uni (rv),vprintf,(p0,p1);\nld.param.b32 %%r1,[rv];\n}\n"
	         "ret;\n}\n");
	return text.bytes;
}

#endif
