/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory and pools as files: what holds the memory, and which process it is listed for. */
#define _GNU_SOURCE
#include "peer.h"

#include <fcntl.h>

#define AS_FILE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define SIZE (128 * MiB)

static const CUmemAllocationProp shareable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes = AS_FILE,
                                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAllocationProp private = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc open_to_card = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                             .flags = 3};

static void *as_handle(int fd)
{
	return (void *)(intptr_t)fd;
}

/* For the exporter, while it is alone. */
static void say_own(const char *key, long long base, long long card)
{
	printf("%s: own %+lld, card %+lld\n", key, listed(getpid()) - base, held() - card);
}

/* Handles, imports and files of one process: which of them are counted, and which hold memory. */
static void alone(void)
{
	long long base = listed(getpid()), card = held();
	CUhandle handle, import, again;
	int first = -1, second = -1;

	MUST(cuMemCreate(&handle, SIZE, &private, 0));
	say_result("export.not_asked_for",
	           cuMemExportToShareableHandle(&first, handle, AS_FILE, 0));
	MUST(cuMemRelease(handle));
	MUST(cuMemCreate(&handle, SIZE, &shareable, 0));
	MUST(cuMemExportToShareableHandle(&first, handle, AS_FILE, 0));
	MUST(cuMemExportToShareableHandle(&second, handle, AS_FILE, 0));
	printf("file.owner: %d\n", fcntl(first, F_GETOWN));
	if (fcntl(first, F_SETOWN, getpid()) == -1)
		stop("F_SETOWN failed");
	printf("file.owner_set: self %d, the other export's %d\n",
	       fcntl(first, F_GETOWN) == getpid(), fcntl(second, F_GETOWN));
	printf("file.flags: %#x\n", (unsigned)fcntl(first, F_GETFL));
	say_own("alone.exported", base, card);
	MUST(cuMemImportFromShareableHandle(&import, as_handle(first), AS_FILE));
	printf("alone.import: another handle %d\n", import != handle);
	say_own("alone.imported", base, card);
	MUST(cuMemRelease(handle));
	say_own("alone.import_left", base, card);
	MUST(cuMemRelease(import));
	say_own("alone.files_left", base, card);
	MUST(cuMemImportFromShareableHandle(&again, as_handle(first), AS_FILE));
	say_own("alone.import_by_file", base, card);
	close(first);
	close(second);
	say_own("alone.files_closed", base, card);
	MUST(cuMemRelease(again));
	say_own("alone.gone", base, card);
}

static void exporter(int socket)
{
	CUhandle handle, kept;
	int fd;

	start_with_context();
	alone();
	MUST(cuMemCreate(&handle, SIZE, &shareable, 0));
	MUST(cuMemCreate(&kept, 64 * MiB, &shareable, 0));
	MUST(cuMemExportToShareableHandle(&fd, handle, AS_FILE, 0));
	send_file(socket, fd);
	close(fd);
	MUST(cuMemExportToShareableHandle(&fd, kept, AS_FILE, 0));
	send_file(socket, fd);
	close(fd);
	await_turn(socket);
	MUST(cuMemRelease(handle));
	give_turn(socket);
	pause();
}

static void physical(struct peer *peer, int fd, int kept)
{
	CUhandle handle, second, last;
	CUmemAllocationProp properties;
	CUdeviceptr space;

	measure_from_here(peer);
	MUST(cuMemImportFromShareableHandle(&handle, as_handle(fd), AS_FILE));
	MUST(cuMemImportFromShareableHandle(&second, as_handle(fd), AS_FILE));
	MUST(cuMemImportFromShareableHandle(&last, as_handle(kept), AS_FILE));
	printf("import.twice: another handle %d\n", handle != second);
	say_all("import");
	close(kept);
	MUST(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
	printf("import.properties: type %d, handles %d, location %d %d\n", properties.type,
	       properties.requestedHandleTypes, properties.location.type, properties.location.id);
	MUST(cuMemAddressReserve(&space, 2 * SIZE, 0, 0, 0));
	say_result("map.too_large", cuMemMap(space, 2 * SIZE, 0, handle, 0));
	say_result("map", cuMemMap(space, SIZE, 0, handle, 0));
	MUST(cuMemSetAccess(space, SIZE, &open_to_card, 1));
	say_all("map");
	give_turn(peer->socket);
	await_turn(peer->socket);
	say_all("exporter_released");
	kill_peer(peer);
	say_all("exporter_killed");
	MUST(cuMemRelease(handle));
	say_all("release.first");
	MUST(cuMemRelease(second));
	say_all("release.second");
	say_result("release.twice", cuMemRelease(second));
	MUST(cuMemUnmap(space, SIZE));
	say_all("unmap");
	close(fd);
	say_all("close");
	MUST(cuMemRelease(last));
	say_all("release.last");
	MUST(cuMemAddressFree(space, 2 * SIZE));
}

static void pool_exporter(int socket)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .handleTypes = AS_FILE,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemPoolPtrExportData data;
	CUmemoryPool pool, usual;
	CUdeviceptr pointer;
	uint64_t reserved = 0;
	int fd;

	await_turn(socket);
	start_with_context();
	MUST(cuDeviceGetDefaultMemPool(&usual, 0));
	say_result("pool.export_default", cuMemPoolExportToShareableHandle(&fd, usual, AS_FILE, 0));
	MUST(cuMemPoolCreate(&pool, &properties));
	MUST(cuMemAllocFromPoolAsync(&pointer, 100 * MiB, pool, NULL));
	MUST(cuCtxSynchronize());
	MUST(cuMemPoolExportToShareableHandle(&fd, pool, AS_FILE, 0));
	MUST(cuMemPoolExportPointer(&data, pointer));
	send_file(socket, fd);
	give(socket, &data, sizeof(data));
	await_turn(socket);
	MUST(cuMemFreeAsync(pointer, NULL));
	MUST(cuCtxSynchronize());
	MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	printf("pool.freed: exporter reserves %llu\n", (unsigned long long)reserved);
	give_turn(socket);
	pause();
}

static void pools(struct peer *peer)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUdeviceptr pointer, other;
	uint64_t reserved;
	int fd;

	give_turn(peer->socket);
	fd = receive_file(peer->socket);
	take(peer->socket, &data, sizeof(data));
	measure_from_here(peer);
	say_result("pool.import",
	           cuMemPoolImportFromShareableHandle(&pool, as_handle(fd), AS_FILE, 0));
	say_all("pool.import");
	MUST(cuMemPoolImportPointer(&pointer, pool, &data));
	say_all("pool.import_pointer");
	say_result("pool.import.reserved",
	           cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	say_result("pool.import.alloc", cuMemAllocFromPoolAsync(&other, 1 * MiB, pool, NULL));
	give_turn(peer->socket);
	await_turn(peer->socket);
	say_all("pool.freed");
	kill_peer(peer);
	say_all("pool.exporter_killed");
	say_result("pool.import.free", cuMemFreeAsync(pointer, NULL));
	MUST(cuCtxSynchronize());
	say_all("pool.import.free");
	say_result("pool.import.destroy", cuMemPoolDestroy(pool));
	close(fd);
	say_all("pool.import.destroy");
}

int main(void)
{
	struct peer peer = start_peer(exporter), other = start_peer(pool_exporter);
	int fd = receive_file(peer.socket), kept = receive_file(peer.socket);

	start_with_context();
	physical(&peer, fd, kept);
	pools(&other);
	return 0;
}
