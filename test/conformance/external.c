/* SPDX-License-Identifier: Apache-2.0 */
/* External memory that is another process's physical memory. */
#define _GNU_SOURCE
#include "peer.h"

#define SIZE (64 * MiB)

static const CUmemAllocationProp shareable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes =
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void exporter(int socket)
{
	CUhandle handle;

	start_with_context();
	MUST(cuMemCreate(&handle, SIZE, &shareable, 0));
	for (int i = 0; i < 2; i++) {
		int fd;

		MUST(cuMemExportToShareableHandle(&fd, handle,
		                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		send_file(socket, fd);
		close(fd);
	}
	pause();
}

static CUresult import(CUexternalMemory *memory, int fd)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
	    .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd, .size = SIZE};

	return cuImportExternalMemory(memory, &description);
}

int main(void)
{
	struct peer peer = start_peer(exporter);
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC half = {.offset = SIZE / 2, .size = SIZE / 2};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC outside = {.offset = SIZE, .size = SIZE};
	CUexternalMemory first, second;
	CUdeviceptr buffer, start = 0;
	size_t size = 0;
	int fd = receive_file(peer.socket), other = receive_file(peer.socket);

	start_with_context();
	measure_from_here(&peer);
	say_result("import", import(&first, fd));
	say_all("import");
	say_result("import.another", import(&second, other));
	say_all("import.another");
	say_result("buffer.outside", cuExternalMemoryGetMappedBuffer(&buffer, first, &outside));
	MUST(cuExternalMemoryGetMappedBuffer(&buffer, first, &half));
	MUST(cuMemGetAddressRange_v2(&start, &size, buffer));
	printf("buffer: its start %d, size %zu\n", start == buffer, size);
	say_all("buffer");
	kill_peer(&peer);
	say_all("exporter_killed");
	say_result("destroy.another", cuDestroyExternalMemory(second));
	say_all("destroy.another");
	say_result("buffer.free", cuMemFree_v2(buffer));
	say_all("buffer.free");
	say_result("destroy", cuDestroyExternalMemory(first));
	say_all("destroy");
	return 0;
}
