/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that no handle holds: that of a file on its way to another process, and what is bound to
 * a multicast object of two cards. Prints what is wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include "../../../conformance/peer.h"

#define AS_FILE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define SIZE (64 * MiB) /* a context has as much */

static int wrong;
static long long base;

static void want(long long got, long long wanted, const char *what)
{
	if (got == wanted)
		return;
	printf("%s: %lld, want %lld\n", what, got, wanted);
	wrong = 1;
}
#define WANT(call, wanted) want(call, wanted, #call)
#define WANT_HELD(blocks) want(held() - base, (blocks) * (long long)SIZE, "bytes held")

static CUhandle create(int device, int types)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .requestedHandleTypes = types,
	                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUhandle handle;

	MUST(cuMemCreate(&handle, SIZE, &properties, 0));
	return handle;
}

static void exporter(int socket)
{
	int fd;

	start_with_context();
	MUST(cuMemExportToShareableHandle(&fd, create(0, AS_FILE), AS_FILE, 0));
	send_file(socket, fd);
	pause();
}

static void file_in_a_socket(const struct peer *peer)
{
	CUdeviceptr rest;
	CUhandle import;
	char byte;
	int fd;

	if (recv(peer->socket, &byte, 1, MSG_PEEK) != 1)
		stop("no file came");
	base = held() - 2 * (long long)SIZE;
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
	WANT_HELD(1);
	/* On a full card the memory of exited processes is searched for. */
	WANT(cuMemAlloc_v2(&rest, 8 * GiB - 2 * SIZE), CUDA_SUCCESS);
	WANT(cuMemFree_v2(rest), CUDA_SUCCESS);
	fd = receive_file(peer->socket);
	WANT(cuMemImportFromShareableHandle(&import, (void *)(intptr_t)fd, AS_FILE), CUDA_SUCCESS);
	close(fd);
	WANT_HELD(1);
	WANT(cuMemRelease(import), CUDA_SUCCESS);
	WANT_HELD(0);
}

static CUhandle make_object(void)
{
	CUmulticastObjectProp two = {.numDevices = 2, .size = 2 * SIZE};
	CUmulticastObjectProp three = {.numDevices = 3, .size = 2 * SIZE};
	CUhandle object = 0, early = create(0, 0);

	WANT(cuMulticastCreate(&object, &three), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastCreate(&object, &two), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 0), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 0, early, 0, SIZE, 0), CUDA_ERROR_NOT_PERMITTED);
	WANT(cuMemRelease(early), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 1), CUDA_SUCCESS);
	WANT_HELD(0);
	return object;
}

static void bind_memory(CUhandle object)
{
	CUhandle memory = create(0, 0), other = create(1, 0);
	CUdeviceptr space;

	WANT(cuMulticastBindMem(object, 2 * SIZE, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 0, memory, 0, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMulticastBindMem(object, 0, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 0, other, 0, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(memory), CUDA_SUCCESS);
	WANT_HELD(1);
	WANT(cuMulticastUnbind(object, 0, 0, SIZE), CUDA_SUCCESS);
	WANT_HELD(0);

	memory = create(0, 0);
	MUST(cuMemAddressReserve(&space, SIZE, 0, 0, 0));
	WANT(cuMulticastBindAddr(object, SIZE, space, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	MUST(cuMemMap(space, SIZE, 0, memory, 0));
	WANT(cuMulticastBindAddr(object, SIZE, space, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(memory), CUDA_SUCCESS);
	WANT(cuMemUnmap(space, SIZE), CUDA_SUCCESS);
	WANT_HELD(1);
	WANT(cuMemRelease(other), CUDA_SUCCESS);
}

int main(void)
{
	struct peer peer = start_peer(exporter);
	CUdeviceptr space;
	CUhandle object;

	start_with_context();
	file_in_a_socket(&peer);
	object = make_object();
	bind_memory(object);
	/* The object's own mapping keeps it, and what is bound to it. */
	MUST(cuMemAddressReserve(&space, 2 * SIZE, 0, 0, 0));
	WANT(cuMemMap(space, 2 * SIZE, 0, object, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(object), CUDA_SUCCESS);
	WANT_HELD(1);
	WANT(cuMemUnmap(space, 2 * SIZE), CUDA_SUCCESS);
	WANT_HELD(0);
	return wrong;
}
