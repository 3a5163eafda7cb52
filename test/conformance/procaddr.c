/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: is its result always the address of an exported symbol, and of which? The
 * interceptor recognizes functions by that address, so a "none" here bypasses it.
 *
 * One line per name: "2000 cuMemAlloc, 3020 cuMemAlloc_v2" has the result for the first version,
 * and each version from which it differs. "any": the same for the flags 0, 1 (legacy default
 * stream) and 2 (per-thread); otherwise each has its own line.
 */
#include "conformance.h"

static const char *const names[] = {
    "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemFree", "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolCreate", "cuMemPoolDestroy",
    "cuMemPoolTrimTo", "cuMemPoolSetAttribute", "cuMemPoolGetAttribute",
    "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool",
    "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool",
    "cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer", "cuMemCreate", "cuMemRelease",
    "cuMemMap", "cuMemUnmap", "cuMemMapArrayAsync", "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve",
    "cuMemAddressFree", "cuArrayCreate", "cuArray3DCreate", "cuArrayDestroy",
    "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", "cuGraphAddMemAllocNode", "cuGraphAddNode",
    "cuGraphInstantiate", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams",
    "cuGraphUpload", "cuGraphLaunch", "cuGraphExecDestroy", "cuDeviceGraphMemTrim",
    "cuDeviceGetGraphMemAttribute", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle",
    "cuImportExternalMemory", "cuDestroyExternalMemory", "cuCtxCreate", "cuCtxDestroy",
    "cuCtxDetach", "cuGLCtxCreate", "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuCtxFromGreenCtx",
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset",
    "cuCtxSetLimit", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuMemGetInfo",
    "cuDeviceTotalMem", "cuMemGetAddressRange", "cuGetProcAddress", "cuGetExportTable",
    "cuMulticastBindMem", "cuMulticastBindAddr",
    /* With a version in the name, and unknown: does either succeed? */
    "cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuNoSuchFunction"};

static const char *const suffixes[] = {"",      "_v2",      "_v3",      "_v4",     "_ptsz",
                                       "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz"};
static const int versions[] = {2000,  3010,  3020,  4000,  7000,  9000,  10020, 11000,
                               11020, 11030, 11040, 12000, 12050, 12090, 13000};

static void say_exports(const char *name)
{
	printf("%s: exported", name);
	for (size_t i = 0; i < COUNT(suffixes); i++) {
		char symbol[96];

		snprintf(symbol, sizeof(symbol), "%s%s", name, suffixes[i]);
		if (dlsym(libcuda, symbol))
			printf(" %s", symbol);
	}
}

/* The result for a name, a version and flags; `old` is that of the function with four arguments. */
struct answer {
	void *address, *old_address;
	CUresult result, old_result;
	int status;
};

static struct answer ask(const char *name, int version, uint64_t flags)
{
	struct answer answer = {.status = -1};

	answer.result = cuGetProcAddress_v2(name, &answer.address, version, flags, &answer.status);
	answer.old_result = cuGetProcAddress(name, &answer.old_address, version, flags);
	return answer;
}

static bool is_same(const struct answer *a, const struct answer *b)
{
	return a->address == b->address && a->old_address == b->old_address &&
	       a->result == b->result && a->old_result == b->old_result && a->status == b->status;
}

static void say_symbols(const char *name, const void *address)
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

/* Brackets have all but a plain success: result, status, and differences of the old function. */
static void say_answer(const char *name, const struct answer *answer)
{
	const char *mark = " (";

	if (answer->address)
		say_symbols(name, answer->address);
	else
		printf(" null");
	if (answer->result != CUDA_SUCCESS) {
		printf("%s%s", mark, name_of(answer->result));
		mark = ", ";
	}
	if (answer->status != CU_GET_PROC_ADDRESS_SUCCESS) {
		printf("%sstatus %d", mark, answer->status);
		mark = ", ";
	}
	if (answer->old_result != answer->result) {
		printf("%sold form %s", mark, name_of(answer->old_result));
		mark = ", ";
	} else if (answer->old_address != answer->address) {
		printf("%sold form another address", mark);
		mark = ", ";
	}
	if (strcmp(mark, ", ") == 0)
		printf(")");
}

/* Each result once, with the lowest version that has it. */
static void say_answers(const char *name, const char *key, const struct answer *answers)
{
	printf("; %s:", key);
	for (size_t i = 0; i < COUNT(versions); i++) {
		if (i && is_same(&answers[i], &answers[i - 1]))
			continue;
		printf("%s %d", i ? "," : "", versions[i]);
		say_answer(name, &answers[i]);
	}
}

static void say_name(const char *name)
{
	static const char *const keys[] = {"0", "1", "2"};
	struct answer answers[COUNT(keys)][COUNT(versions)];
	bool same = true;

	for (uint64_t flags = 0; flags < COUNT(keys); flags++)
		for (size_t i = 0; i < COUNT(versions); i++) {
			answers[flags][i] = ask(name, versions[i], flags);
			same = same && is_same(&answers[flags][i], &answers[0][i]);
		}
	say_exports(name);
	if (same)
		say_answers(name, "any", answers[0]);
	else
		for (size_t flags = 0; flags < COUNT(keys); flags++)
			say_answers(name, keys[flags], answers[flags]);
	printf("\n");
}

int main(void)
{
	void *address;

	start();
	for (size_t i = 0; i < COUNT(names); i++)
		say_name(names[i]);
	say_result("flags.3", cuGetProcAddress("cuMemAlloc", &address, 13000, 3));
	say_result("flags.4", cuGetProcAddress("cuMemAlloc", &address, 13000, 4));
	say_result("flags.1<<32", cuGetProcAddress("cuMemAlloc", &address, 13000, 1ull << 32));
	say_result("no_status.known", cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL));
	say_result("no_status.unknown",
	           cuGetProcAddress_v2("cuNoSuchFunction", &address, 13000, 0, NULL));
	return 0;
}
