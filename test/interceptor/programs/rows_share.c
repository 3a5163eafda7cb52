/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory is charged to its maker, and not to processes of its slice that open it. */
#include "rows.h"

#include <unistd.h>

/* The peer creates and lends `bytes`, 0: releases them; the descriptor is -1 if there is none. */
static struct message ask(size_t bytes, int *descriptor)
{
	struct message message = {.bytes = bytes};

	peer_tell(&message, -1, descriptor);
	return message;
}

/* A dma-buf, where the device supports it: the charge is unchanged. */
static void lend_to_devices(void)
{
	CUdeviceptr pointer = 0;
	int descriptor = -1;

	OK(cuMemAlloc_v2(&pointer, 4 * MIB));
	if (cuMemGetHandleForAddressRange(&descriptor, pointer, 4 * MIB, 1, 0) == CUDA_SUCCESS)
		close(descriptor);
	charged("4 MiB lent", 4 * (long long)MIB - peer_context);
	OK(cuMemFree_v2(pointer));
}

static void ipc_within(void)
{
	CUdeviceptr pointer = 0, again = 0;
	struct message message;
	int none;

	peer_begin("ipc");
	message = ask(64 * MIB, &none);
	charged("the peer's 64 MiB", 64 * MIB);
	OK(cuIpcOpenMemHandle_v2(&pointer, message.ipc, 1));
	charged("opened", 64 * MIB);
	holds("what was opened", pointer, 64 * MIB);
	OK(cuIpcOpenMemHandle_v2(&again, message.ipc, 1));
	OK(cuIpcCloseMemHandle(again));
	OK(cuIpcCloseMemHandle(pointer));
	OK(cuIpcOpenMemHandle(&again, message.ipc, 1));
	OK(cuIpcCloseMemHandle(again));
	charged("closed", 64 * MIB);
	(void)ask(0, NULL);
	charged("freed", 0);
	/* When its maker exits, an importer holds it still, and driver truth counts it there. */
	message = ask(64 * MIB, &none);
	OK(cuIpcOpenMemHandle_v2(&pointer, message.ipc, 1));
	peer_end();
	charged_late("its maker is dead", 64 * (long long)MIB - peer_context);
	holds("what was opened", pointer, 64 * MIB);
	OK(cuIpcCloseMemHandle(pointer));
	charged("closed", -peer_context);
	lend_to_devices();
	report("64 MiB of a peer are charged once, and while they are open when it is dead");
}

static void ipc_beyond(void)
{
	CUdeviceptr pointer = 0, own = 0;
	struct message message;
	size_t bytes;
	int none;

	peer_begin("ipc");
	bytes = part(0.6);
	message = ask(bytes, &none);
	OK(cuIpcOpenMemHandle_v2(&pointer, message.ipc, 1));
	OUT_OF_MEMORY("as much of one's own", cuMemAlloc_v2(&own, bytes));
	charged("after a refusal", (long long)bytes);
	OK(cuIpcCloseMemHandle(pointer));
	(void)ask(0, NULL);
	OK(cuMemAlloc_v2(&own, bytes));
	OK(cuMemFree_v2(own));
	charged("at the end", 0);
	peer_end();
	report("%zu MiB of a peer are opened, as much again is refused until it frees them",
	       bytes / MIB);
}

static CUmemGenericAllocationHandle import(int descriptor)
{
	CUmemGenericAllocationHandle handle = 0;

	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
	                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	return handle;
}

static void own_export(void)
{
	CUmemAllocationProp properties = on_device(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemGenericAllocationHandle handle = 0, same;
	int descriptor = -1;

	OK(cuMemCreate(&handle, 64 * MIB, &properties, 0));
	OK(cuMemExportToShareableHandle(&descriptor, handle,
	                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	same = import(descriptor);
	charged("exported and imported", 64 * MIB);
	OK(cuMemRelease(handle));
	charged("the first handle released", 64 * MIB);
	OK(cuMemRelease(same));
	close(descriptor);
	charged("both released", 0);
}

static void fd_within(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address = 0;
	int descriptor = -1;

	peer_begin("fd");
	own_export();
	(void)ask(64 * MIB, &descriptor);
	charged("the peer's 64 MiB", 64 * MIB);
	handle = import(descriptor);
	OK(cuMemAddressReserve(&address, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
	charged("imported and mapped", 64 * MIB);
	access_to(address, 64 * MIB);
	holds("what was mapped", address, 64 * MIB);
	OK(cuMemRelease(handle));
	OK(cuMemUnmap(address, 64 * MIB));
	OK(cuMemAddressFree(address, 64 * MIB));
	charged("unmapped and released", 64 * MIB);
	close(descriptor);
	(void)ask(0, NULL);
	charged("released by the peer", 0);
	peer_end();
	report("64 MiB of a peer are charged once; so are 64 of one's own");
}

static void fd_beyond(void)
{
	CUmemAllocationProp properties = on_device(0);
	CUmemGenericAllocationHandle handle, own = 0;
	CUdeviceptr address = 0;
	int descriptor = -1;
	size_t bytes;

	peer_begin("fd");
	bytes = part(0.6);
	(void)ask(bytes, &descriptor);
	handle = import(descriptor);
	OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	OK(cuMemMap(address, bytes, 0, handle, 0));
	OUT_OF_MEMORY("as much of one's own", cuMemCreate(&own, bytes, &properties, 0));
	charged("after a refusal", (long long)bytes);
	OK(cuMemUnmap(address, bytes));
	OK(cuMemRelease(handle));
	OK(cuMemAddressFree(address, bytes));
	close(descriptor);
	(void)ask(0, NULL);
	OK(cuMemCreate(&own, bytes, &properties, 0));
	OK(cuMemRelease(own));
	charged("at the end", 0);
	peer_end();
	report("%zu MiB of a peer are mapped, as much again is refused until it releases them",
	       bytes / MIB);
}

static CUmemGenericAllocationHandle exportable(size_t bytes)
{
	CUmemAllocationProp properties = on_device(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemGenericAllocationHandle handle = 0;

	OK(cuMemCreate(&handle, bytes, &properties, 0));
	return handle;
}

static int export(CUmemGenericAllocationHandle handle)
{
	int descriptor = -1;

	OK(cuMemExportToShareableHandle(&descriptor, handle,
	                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return descriptor;
}

/* Two objects are exported in turn under one descriptor number. The second is imported by it and
 * freed; the first stays. */
static CUmemGenericAllocationHandle number_again(size_t bytes)
{
	CUmemGenericAllocationHandle a = exportable(bytes), b = exportable(bytes), again;
	int number = export(a), same;

	close(number);
	same = export(b);
	if (number != same)
		failed("the descriptors are %d and %d", number, same);
	charged("two objects", 2 * (long long)bytes);
	again = import(same);
	close(same);
	charged("the second imported", 2 * (long long)bytes);
	OK(cuMemRelease(b));
	charged("held by the import", 2 * (long long)bytes);
	OK(cuMemRelease(again));
	charged("and that released", (long long)bytes);
	return a;
}

static void again_within(void)
{
	CUmemGenericAllocationHandle b;
	int number;
	CUmemGenericAllocationHandle a = number_again(64 * MIB);

	OK(cuMemRelease(a));
	charged("both gone", 0);
	/* The other way round: the first is freed while the second is known by the number. */
	a = exportable(64 * MIB);
	number = export(a);
	close(number);
	b = exportable(32 * MIB);
	number = export(b);
	OK(cuMemRelease(a));
	charged("the first gone", 32 * MIB);
	a = import(number);
	close(number);
	OK(cuMemRelease(b));
	charged("held by the import", 32 * MIB);
	OK(cuMemRelease(a));
	charged("at the end", 0);
	report("a descriptor's number that is used again stands for the second object");
}

static void again_beyond(void)
{
	CUmemGenericAllocationHandle more = 0;
	CUmemAllocationProp properties = on_device(0);
	size_t bytes = part(0.4);
	CUmemGenericAllocationHandle a = number_again(bytes);

	OK(cuMemCreate(&more, bytes, &properties, 0));
	OUT_OF_MEMORY("a third", cuMemCreate(&more, bytes, &properties, 0));
	OK(cuMemRelease(more));
	OK(cuMemRelease(a));
	charged("at the end", 0);
	report("%zu MiB of the second are free for others, those of the first are not",
	       bytes / MIB);
}

static CUresult import_external(CUexternalMemory *memory, int descriptor, size_t bytes)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
	    .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
	    .handle.fd = descriptor,
	    .size = bytes};

	return cuImportExternalMemory(memory, &description);
}

static void external_within(void)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = 64 * MIB};
	CUexternalMemory memory = NULL;
	CUdeviceptr pointer = 0;
	int descriptor = -1;

	peer_begin("fd");
	(void)ask(64 * MIB, &descriptor);
	/* The driver takes ownership of the descriptor. */
	OK(import_external(&memory, descriptor, 64 * MIB));
	charged("the peer's 64 MiB, imported", 64 * MIB);
	OK(cuExternalMemoryGetMappedBuffer(&pointer, memory, &whole));
	holds("what was imported", pointer, 64 * MIB);
	OK(cuMemFree_v2(pointer));
	OK(cuDestroyExternalMemory(memory));
	charged("destroyed", 64 * MIB);
	(void)ask(0, NULL);
	charged("released by the peer", 0);
	peer_end();
	report("64 MiB of a peer are charged once");
}

static void external_beyond(void)
{
	CUexternalMemory memory = NULL;
	CUdeviceptr own = 0;
	int descriptor = -1;
	size_t bytes;

	peer_begin("fd");
	bytes = part(0.6);
	(void)ask(bytes, &descriptor);
	OK(import_external(&memory, descriptor, bytes));
	OUT_OF_MEMORY("as much of one's own", cuMemAlloc_v2(&own, bytes));
	OK(cuDestroyExternalMemory(memory));
	(void)ask(0, NULL);
	OK(cuMemAlloc_v2(&own, bytes));
	OK(cuMemFree_v2(own));
	charged("at the end", 0);
	peer_end();
	report("%zu MiB of a peer are imported, as much again is refused until it releases them",
	       bytes / MIB);
}

static CUmemoryPool import_pool(int descriptor, struct message *message, CUdeviceptr *pointer)
{
	CUmemoryPool pool = NULL;

	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor,
	                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolImportPointer(pointer, pool, &message->pointer));
	return pool;
}

static void end_import(CUmemoryPool pool, CUdeviceptr pointer, int descriptor)
{
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(pool));
	close(descriptor);
}

static void pool_within(void)
{
	CUdeviceptr pointer = 0, more = 0;
	struct message message;
	CUmemoryPool pool;
	int descriptor = -1;

	peer_begin("pool");
	message = ask(100 * MIB, &descriptor);
	charged("the peer's 100 MiB", 128 * MIB);
	pool = import_pool(descriptor, &message, &pointer);
	charged("imported", 128 * MIB);
	holds("what was imported", pointer, 100 * MIB);
	expect("to allocate from an import", cuMemAllocFromPoolAsync(&more, MIB, pool, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	end_import(pool, pointer, descriptor);
	charged("the import gone", 128 * MIB);
	(void)ask(0, NULL);
	charged("freed by the peer", 0);
	peer_end();
	report("100 MiB of a peer's pool charge 128, once");
}

static void pool_beyond(void)
{
	CUdeviceptr pointer = 0, own = 0;
	struct message message;
	CUmemoryPool pool;
	int descriptor = -1;
	size_t bytes;

	peer_begin("pool");
	bytes = part(0.6);
	message = ask(bytes, &descriptor);
	pool = import_pool(descriptor, &message, &pointer);
	OUT_OF_MEMORY("as much of one's own", cuMemAllocAsync(&own, bytes, NULL));
	charged("after a refusal", (long long)bytes);
	end_import(pool, pointer, descriptor);
	(void)ask(0, NULL);
	OK(cuMemAllocAsync(&own, bytes, NULL));
	OK(cuMemFreeAsync(own, NULL));
	OK(cuCtxSynchronize());
	charged("at the end", 0);
	peer_end();
	report(
	    "%zu MiB of a peer's pool are imported, as much again is refused until it frees them",
	    bytes / MIB);
}

const struct row share_rows[] = {
    {"share-ipc",
     "cuIpcGetMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle "
     "cuMemGetHandleForAddressRange",
     ipc_within, .beyond = ipc_beyond},
    {"share-fd", "cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemMap cuMemUnmap",
     fd_within, .beyond = fd_beyond},
    {"share-number",
     "cuMemCreate cuMemRelease cuMemExportToShareableHandle cuMemImportFromShareableHandle",
     again_within, .beyond = again_beyond},
    {"share-external", "cuImportExternalMemory cuDestroyExternalMemory", external_within,
     .beyond = external_beyond},
    {"share-pool", "cuMemPoolImportFromShareableHandle cuMemPoolDestroy", pool_within,
     .beyond = pool_beyond},
    {0}};
