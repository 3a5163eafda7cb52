/* SPDX-License-Identifier: Apache-2.0 */
/* cuIpc*: which process memory is listed for while two have it open, and how long it lives. */
#define _GNU_SOURCE
#include "peer.h"

#define PIECES 4

static const size_t sizes[PIECES] = {64 * MiB, 200 * MiB, 100 * KiB, 3 * MiB};

struct offer {
	CUipcMemHandle handles[PIECES];
	CUdeviceptr pointers[PIECES];
};

static void export_oddities(const struct offer *offer)
{
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	MUST(cuIpcGetMemHandle(&handle, offer->pointers[1]));
	printf("export.again.same_bytes: %d\n",
	       memcmp(&handle, &offer->handles[1], sizeof(handle)) == 0);
	say_result("export.inside", cuIpcGetMemHandle(&handle, offer->pointers[1] + 4096));
	say_result("export.open_own", cuIpcOpenMemHandle_v2(&pointer, offer->handles[0], 1));
	MUST(cuMemAllocAsync(&pointer, 1 * MiB, NULL));
	say_result("export.of_a_pool", cuIpcGetMemHandle(&handle, pointer));
	MUST(cuMemAllocManaged(&pointer, 4 * MiB, 1));
	say_result("export.managed", cuIpcGetMemHandle(&handle, pointer));
}

static void exporter(int socket)
{
	struct offer offer;

	start_with_context();
	for (int i = 0; i < PIECES; i++) {
		MUST(cuMemAlloc_v2(&offer.pointers[i], sizes[i]));
		MUST(cuIpcGetMemHandle(&offer.handles[i], offer.pointers[i]));
	}
	export_oddities(&offer);
	give(socket, &offer, sizeof(offer));
	await_turn(socket);
	MUST(cuMemFree_v2(offer.pointers[0]));
	give_turn(socket);
	pause();
}

static void open_all(const struct offer *offer, CUdeviceptr opened[PIECES])
{
	CUdeviceptr again;
	CUresult result;

	for (int i = 0; i < PIECES - 1; i++) {
		CUdeviceptr start = 0;
		size_t size = 0;
		char text[32], key[64];

		sprintf(key, "open.%s", size_text(text, sizes[i]));
		result = cuIpcOpenMemHandle_v2(&opened[i], offer->handles[i], 1);
		if (result != CUDA_SUCCESS)
			stop("%s: %s", key, name_of(result));
		MUST(cuMemGetAddressRange_v2(&start, &size, opened[i]));
		printf("%s: same address %d, its start %d, size %zu\n", key,
		       opened[i] == offer->pointers[i], start == opened[i], size);
		say_all(key);
	}
	MUST(cuIpcOpenMemHandle_v2(&again, offer->handles[0], 1));
	printf("open.again: same address %d\n", again == opened[0]);
	say_all("open.again");
	say_result("open.again.close", cuIpcCloseMemHandle(again));
	say_all("open.again.closed");
	/* The first version, which does not open a handle twice. */
	result = cuIpcOpenMemHandle(&again, offer->handles[0], 1);
	say_result("open.again.v1", result);
	if (result == CUDA_SUCCESS)
		MUST(cuIpcCloseMemHandle(again));
	say_result("free_an_import", cuMemFree_v2(opened[2]));
	say_result("close.unknown", cuIpcCloseMemHandle(0x1000));
}

int main(void)
{
	struct peer peer = start_peer(exporter);
	CUdeviceptr opened[PIECES], again;
	struct offer offer;

	take(peer.socket, &offer, sizeof(offer));
	start_with_context();
	measure_from_here(&peer);
	open_all(&offer, opened);
	give_turn(peer.socket);
	await_turn(peer.socket);
	say_all("exporter_freed.64MiB");
	kill_peer(&peer);
	say_all("exporter_killed");
	MUST(cuIpcCloseMemHandle(opened[0]));
	say_all("close.64MiB");
	MUST(cuIpcCloseMemHandle(opened[1]));
	say_all("close.200MiB");
	say_result("open.after_death", cuIpcOpenMemHandle_v2(&again, offer.handles[1], 1));
	say_all("open.after_death");
	return 0;
}
