/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: is what it returns always the address of an exported symbol, and of which?
 * The interceptor recognises a function by that address, so a "none" here is a hole.
 */
#include "conformance.h"

/* Every entry point through which memory of a card is taken, given back or asked about. */
static const char *const names[] = {
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceSetMemPool",
    "cuMemGetDefaultMemPool",
    "cuMemGetMemPool",
    "cuMemSetMemPool",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolImportPointer",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemMapArrayAsync",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuArrayDestroy",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuDeviceGraphMemTrim",
    "cuDeviceGetGraphMemAttribute",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuImportExternalMemory",
    "cuDestroyExternalMemory",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxDetach",
    "cuGLCtxCreate",
    "cuGreenCtxCreate",
    "cuGreenCtxDestroy",
    "cuCtxFromGreenCtx",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuCtxSetLimit",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
    "cuMemGetInfo",
    "cuDeviceTotalMem",
    "cuMemGetAddressRange",
    "cuGetProcAddress",
    "cuGetExportTable",
    "cuMulticastBindMem",
    "cuMulticastBindAddr",
    /* With a version in the name, and unknown: does either succeed? */
    "cuMemAlloc_v2",
    "cuMemAllocAsync_ptsz",
    "cuNoSuchFunction",
};

static const char *const suffixes[] = {"",      "_v2",      "_v3",      "_v4",     "_ptsz",
                                       "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz"};
static const int versions[] = {2000,  3010,  3020,  4000,  7000,  9000,  10020, 11000,
                               11020, 11030, 11040, 12000, 12050, 12090, 13000};

/* The suffixes of all exported forms of the name whose address this is. */
static void say_symbol(const char *name, const void *address)
{
	bool any = false;

	for (size_t i = 0; i < COUNT(suffixes); i++) {
		char symbol[96];

		snprintf(symbol, sizeof(symbol), "%s%s", name, suffixes[i]);
		if (dlsym(libcuda, symbol) != address)
			continue;
		printf(" %s", symbol);
		any = true;
	}
	if (!any)
		printf(" none");
}

static void say_exports(const char *name)
{
	printf("exported.%s:", name);
	for (size_t i = 0; i < COUNT(suffixes); i++) {
		char symbol[96];

		snprintf(symbol, sizeof(symbol), "%s%s", name, suffixes[i]);
		if (dlsym(libcuda, symbol))
			printf(" %s", symbol);
	}
	printf("\n");
}

/* One line per change of the answer, as the version rises. */
static void say_answers(const char *name, uint64_t flags)
{
	const void *last = NULL;
	int last_status = -1;
	CUresult last_result = -1;

	for (size_t i = 0; i < COUNT(versions); i++) {
		void *address = NULL, *old = NULL;
		int status = -1;
		CUresult result = cuGetProcAddress_v2(name, &address, versions[i], flags, &status);
		CUresult old_result = cuGetProcAddress(name, &old, versions[i], flags);

		if (old != address || old_result != result)
			printf("differs.%s.%d.%u: %s\n", name, versions[i], (unsigned int)flags,
			       name_of(old_result));
		if (address == last && status == last_status && result == last_result)
			continue;
		last = address;
		last_status = status;
		last_result = result;
		printf("%s.%d.%u: %s, status %d,", name, versions[i], (unsigned int)flags,
		       name_of(result), status);
		if (address)
			say_symbol(name, address);
		else
			printf(" null");
		printf("\n");
	}
}

int main(void)
{
	void *address;

	start();
	for (size_t i = 0; i < COUNT(names); i++) {
		say_exports(names[i]);
		for (uint64_t flags = 0; flags <= 2; flags++)
			say_answers(names[i], flags);
	}
	say_result("flags.3", cuGetProcAddress("cuMemAlloc", &address, 13000, 3));
	say_result("flags.4", cuGetProcAddress("cuMemAlloc", &address, 13000, 4));
	say_result("flags.1<<32", cuGetProcAddress("cuMemAlloc", &address, 13000, 1ull << 32));
	return 0;
}
