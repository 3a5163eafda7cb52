/* SPDX-License-Identifier: Apache-2.0 */
/* For the conformance programs of modules and kernels: code to load, and its memory. */
#ifndef CONFORMANCE_CODE_H
#define CONFORMANCE_CODE_H

#include "conformance.h"

#include <unistd.h>

#define PTX_HEADER ".version 7.0\n.target sm_70\n.address_size 64\n"
#define PTX_EMPTY ".visible .entry empty()\n{\n ret;\n}\n"

static long long before, before_listed;

static UNUSED void mark(void)
{
	before = held();
	before_listed = listed(getpid());
}

/* The increase since the mark: on the card, and in NVML's list for this process. */
static UNUSED void say_taken(const char *key)
{
	printf("%s: held %lld, listed %lld\n", key, held() - before,
	       listed(getpid()) - before_listed);
}

static UNUSED const char *with_array(size_t bytes)
{
	static char text[1024];

	snprintf(text, sizeof(text),
	         PTX_HEADER
	         ".visible .global .align 16 .b8 big[%zu];\n"
	         ".visible .entry usebig(.param .u64 x)\n{\n"
	         " .reg .b64 %%rd<4>;\n ld.param.u64 %%rd1, [x];\n mov.u64 %%rd2, big;\n"
	         " add.s64 %%rd3, %%rd2, %%rd1;\n st.global.u8 [%%rd3], 1;\n ret;\n}\n" PTX_EMPTY,
	         bytes);
	return text;
}

/* Appends a kernel with that frame to `text`, named "frame" and the size. */
static UNUSED void add_frame(char *text, size_t room, size_t frame)
{
	size_t length = strlen(text);

	snprintf(text + length, room - length,
	         ".visible .entry frame%zu(.param .u64 x)\n{\n"
	         " .local .align 8 .b8 buf[%zu];\n .reg .b64 %%rd<8>;\n .reg .b16 %%rs<3>;\n"
	         " ld.param.u64 %%rd1, [x];\n mov.u64 %%rd2, buf;\n add.s64 %%rd3, %%rd2, %%rd1;\n"
	         " st.local.u8 [%%rd3], 1;\n add.s64 %%rd4, %%rd3, 7;\n"
	         " ld.local.u8 %%rs1, [%%rd4];\n st.local.u8 [%%rd3+3], %%rs1;\n"
	         " ld.local.u8 %%rs2, [%%rd3+1];\n st.local.u8 [%%rd4+2], %%rs2;\n ret;\n}\n",
	         frame, frame);
}

/* The kernels here take one number or nothing. */
static UNUSED CUresult launch_block(CUfunction function, unsigned int threads)
{
	uint64_t x = 0;
	void *parameters[] = {&x};
	CUresult result =
	    cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
	CUresult waited = cuCtxSynchronize();

	return result == CUDA_SUCCESS ? waited : result;
}

static UNUSED CUresult launch(CUfunction function)
{
	return launch_block(function, 1);
}

static UNUSED CUresult launch_kernel(CUkernel kernel, CUstream stream)
{
	uint64_t x = 0;
	void *parameters[] = {&x};

	return cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters,
	                      NULL);
}

static UNUSED CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function,
	                                 .gridDimX = 1,
	                                 .gridDimY = 1,
	                                 .gridDimZ = 1,
	                                 .blockDimX = 1,
	                                 .blockDimY = 1,
	                                 .blockDimZ = 1,
	                                 .kernelParams = parameters};
}

#endif
