/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver's binary interface that gpuslice uses: names, argument lists and
 * structure layouts from the driver's own documentation (CUDA 12.9 to 13.1). The interceptor, the
 * simulated driver and the conformance programs all compile against this file, so none of them
 * needs a CUDA toolkit.
 *
 * A structure's size is asserted where a wrong one would corrupt memory.
 */
#ifndef GPUSLICE_CUDA_ABI_H
#define GPUSLICE_CUDA_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
};

typedef struct {
	unsigned char bytes[16];
} CUuuid;

/* CUmemLocationType */
enum {
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST = 2,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
};

typedef struct {
	int type;
	int id;
} CUmemLocation;

/* CUmemAllocationType */
enum {
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
};

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");

/* CUpointer_attribute */
enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
};

/* CUmemAccess_flags */
enum {
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;
static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");

/* CUmemPool_attribute */
enum {
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

/* For cuThreadExchangeStreamCaptureMode. */
enum {
	CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

/* For allocFlags.usage of cuMemCreate. */
#define CU_MEM_CREATE_USAGE_TILE_POOL 0x1

/* CUmemAllocationHandleType: bits */
enum {
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 0x1,
	CU_MEM_HANDLE_TYPE_FABRIC = 0x8,
};

/* Passed between processes as bytes. */
typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

enum {
	CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
};

typedef struct {
	int type;
	union {
		int fd;
		struct {
			void *handle;
			const void *name;
		} win32;
		const void *nvSciBufObject;
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");

typedef struct {
	unsigned long long offset, size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;
static_assert(sizeof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC) == 88, "CUDA_EXTERNAL_MEMORY_BUFFER_DESC");

typedef struct {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes;
	unsigned long long flags;
} CUmulticastObjectProp;
static_assert(sizeof(CUmulticastObjectProp) == 32, "CUmulticastObjectProp");

/* CUgraphNodeType */
enum {
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
	CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
};

/* CUgraphMem_attribute */
enum {
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
};

#define CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH 1u
#define CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD 2u

typedef struct {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;
static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

typedef struct {
	uint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32, "CUDA_GRAPH_INSTANTIATE_PARAMS");

/* A kernel node: its function, or, if that is NULL, its kernel. Before CUDA 12 it ends before
 * `kern`. */
typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "CUDA_KERNEL_NODE_PARAMS");

typedef struct {
	int result; /* CUgraphExecUpdateResult */
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

/* CUgraphNodeParams, up to the last used member. */
struct CUgraphNodeParams_st {
	int type, reserved[3];
	CUDA_KERNEL_NODE_PARAMS kernel;
};

typedef struct {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	void *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;
static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");

typedef struct {
	CUfunction function;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	void **kernelParams;
} CUDA_LAUNCH_PARAMS;
static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS");

/* CUlimit */
enum {
	CU_LIMIT_STACK_SIZE = 0,
	CU_LIMIT_PRINTF_FIFO_SIZE = 1,
	CU_LIMIT_MALLOC_HEAP_SIZE = 2,
};

/* CUarray_format: the ones with a plain texel size */
enum {
	CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
	CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
	CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
	CU_AD_FORMAT_SIGNED_INT8 = 0x08,
	CU_AD_FORMAT_SIGNED_INT16 = 0x09,
	CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
	CU_AD_FORMAT_HALF = 0x10,
	CU_AD_FORMAT_FLOAT = 0x20,
	CU_AD_FORMAT_NV12 = 0xb0,
	CU_AD_FORMAT_UNORM_INT8X1 = 0xc0, /* to 0xc5, SNORM_INT8X1 0xc6 .. 0xcb */
	CU_AD_FORMAT_BC1_UNORM = 0x91,    /* to BC7 0x9e: block compressed */
};

#define CUDA_ARRAY3D_LAYERED 0x01u
#define CUDA_ARRAY3D_CUBEMAP 0x04u
#define CUDA_ARRAY3D_SPARSE 0x40u
#define CUDA_ARRAY3D_DEFERRED_MAPPING 0x80u

typedef struct {
	size_t Width, Height; /* texels; Height 0 is a one-dimensional array */
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* The layouts of CUDA 3.1 and older, which functions without a suffix still take. */
typedef struct {
	unsigned int Width, Height;
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
	unsigned int Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

/* cuMemMapArrayAsync: CUresourcetype, CUarraySparseSubresourceType, CUmemOperationType */
enum {
	CU_RESOURCE_TYPE_ARRAY = 0,
	CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL = 0,
	CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL = 1,
	CU_MEM_OPERATION_TYPE_MAP = 1,
	CU_MEM_OPERATION_TYPE_UNMAP = 2,
};

typedef struct {
	int resourceType;
	union {
		CUmipmappedArray mipmap;
		CUarray array;
	} resource;
	int subresourceType;
	union {
		struct {
			unsigned int level, layer, offsetX, offsetY, offsetZ;
			unsigned int extentWidth, extentHeight, extentDepth;
		} sparseLevel;
		struct {
			unsigned int layer;
			unsigned long long offset, size;
		} miptail;
	} subresource;
	int memOperationType;
	int memHandleType; /* 0: a generic allocation handle */
	union {
		CUmemGenericAllocationHandle memHandle;
	} memHandle;
	unsigned long long offset;
	unsigned int deviceBitMask;
	unsigned int flags;
	unsigned int reserved[2];
} CUarrayMapInfo;
static_assert(sizeof(CUarrayMapInfo) == 96, "CUarrayMapInfo");

typedef struct {
	struct {
		unsigned int width, height, depth; /* texels */
	} tileExtent;
	unsigned int miptailFirstLevel;
	unsigned long long miptailSize;
	unsigned int flags;
	unsigned int reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;
static_assert(sizeof(CUDA_ARRAY_SPARSE_PROPERTIES) == 48, "CUDA_ARRAY_SPARSE_PROPERTIES");

/* cuGetProcAddress */
enum {
	CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};
/* CUdriverProcAddressQueryResult */
enum {
	CU_GET_PROC_ADDRESS_SUCCESS = 0,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

#endif
