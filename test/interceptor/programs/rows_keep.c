/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that its maker releases while a peer of the slice, or the maker itself, still holds it in
 * another way. It stays charged for as long as the driver holds it. */
#include "rows.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AS_FILE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

struct kept {
	CUmemGenericAllocationHandle handle;
	CUexternalMemory external;
	CUmipmappedArray array;
	CUmemoryPool pool;
	CUdeviceptr address;
	size_t bytes;
	int descriptor;
};

/* --- ways to keep it -------------------------------------------------------------------------- */

static void keep_handle(struct kept *kept, const struct message *message)
{
	(void)message;
	OK(cuMemImportFromShareableHandle(&kept->handle, (void *)(intptr_t)kept->descriptor,
	                                  AS_FILE));
	close(kept->descriptor);
}

static void drop_handle(struct kept *kept)
{
	OK(cuMemRelease(kept->handle));
}

static void keep_mapping(struct kept *kept, const struct message *message)
{
	keep_handle(kept, message);
	OK(cuMemAddressReserve(&kept->address, kept->bytes, 0, 0, 0));
	OK(cuMemMap(kept->address, kept->bytes, 0, kept->handle, 0));
	OK(cuMemRelease(kept->handle));
}

static void drop_mapping(struct kept *kept)
{
	OK(cuMemUnmap(kept->address, kept->bytes));
	OK(cuMemAddressFree(kept->address, kept->bytes));
}

static void keep_external(struct kept *kept, const struct message *message)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
	    .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
	    .handle.fd = kept->descriptor,
	    .size = kept->bytes};

	(void)message;
	OK(cuImportExternalMemory(&kept->external, &description));
}

static void drop_external(struct kept *kept)
{
	OK(cuDestroyExternalMemory(kept->external));
}

/* The buffer holds it without the external memory. */
static void keep_buffer(struct kept *kept, const struct message *message)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = kept->bytes};

	keep_external(kept, message);
	OK(cuExternalMemoryGetMappedBuffer(&kept->address, kept->external, &whole));
	OK(cuDestroyExternalMemory(kept->external));
}

static void keep_array(struct kept *kept, const struct message *message)
{
	struct {
		unsigned long long offset;
		CUDA_ARRAY3D_DESCRIPTOR shape;
		unsigned int levels, reserved[16];
	} plane = {.shape = {.Width = 1024, .Height = 1024, .Format = 0x20, .NumChannels = 1},
	           .levels = 1};

	keep_external(kept, message);
	OK(cuExternalMemoryGetMappedMipmappedArray(&kept->array, kept->external, &plane));
	OK(cuDestroyExternalMemory(kept->external));
}

static void drop_array(struct kept *kept)
{
	OK(cuMipmappedArrayDestroy(kept->array));
}

static void drop_buffer(struct kept *kept)
{
	OK(cuMemFree_v2(kept->address));
}

static void keep_file(struct kept *kept, const struct message *message)
{
	(void)kept;
	(void)message;
}

static void drop_file(struct kept *kept)
{
	close(kept->descriptor);
}

static void keep_ipc(struct kept *kept, const struct message *message)
{
	OK(cuIpcOpenMemHandle_v2(&kept->address, message->ipc, 1));
}

static void drop_ipc(struct kept *kept)
{
	OK(cuIpcCloseMemHandle(kept->address));
}

static void keep_pool(struct kept *kept, const struct message *message)
{
	CUmemPoolPtrExportData data = message->pointer;

	OK(cuMemPoolImportFromShareableHandle(&kept->pool, (void *)(intptr_t)kept->descriptor,
	                                      AS_FILE, 0));
	OK(cuMemPoolImportPointer(&kept->address, kept->pool, &data));
	close(kept->descriptor);
}

static void drop_pool(struct kept *kept)
{
	OK(cuMemFreeAsync(kept->address, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(kept->pool));
}

/* --- how it is created, exported and released ------------------------------------------------- */

static void make_physical(struct kept *made, struct message *message)
{
	CUmemAllocationProp properties = on_device(AS_FILE);

	(void)message;
	OK(cuMemCreate(&made->handle, made->bytes, &properties, 0));
	OK(cuMemExportToShareableHandle(&made->descriptor, made->handle, AS_FILE, 0));
}

static void make_linear(struct kept *made, struct message *message)
{
	OK(cuMemAlloc_v2(&made->address, made->bytes));
	OK(cuIpcGetMemHandle(&message->ipc, made->address));
}

static void make_pool(struct kept *made, struct message *message)
{
	CUmemPoolProps shape = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = AS_FILE,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	OK(cuMemPoolCreate(&made->pool, &shape));
	OK(cuMemAllocFromPoolAsync(&made->address, made->bytes, made->pool, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolExportToShareableHandle(&made->descriptor, made->pool, AS_FILE, 0));
	OK(cuMemPoolExportPointer(&message->pointer, made->address));
}

static const struct way {
	const char *name;
	void (*make)(struct kept *made, struct message *message);
	void (*let_go)(struct kept *made);
	void (*keep)(struct kept *kept, const struct message *message);
	void (*drop)(struct kept *kept);
	/* The driver lists it for the importer once its maker has released it: until the importer
	 * releases it, too, it is charged twice. */
	bool listed;
} ways[] = {{"handle", make_physical, drop_handle, keep_handle, drop_handle, false},
            {"mapping", make_physical, drop_handle, keep_mapping, drop_mapping, false},
            {"external", make_physical, drop_handle, keep_external, drop_external, false},
            {"buffer", make_physical, drop_handle, keep_buffer, drop_buffer, false},
            {"array", make_physical, drop_handle, keep_array, drop_array, false},
            {"file", make_physical, drop_handle, keep_file, drop_file, false},
            {"ipc", make_linear, drop_buffer, keep_ipc, drop_ipc, true},
            {"pool", make_pool, drop_pool, keep_pool, drop_pool, false},
            {0}};

static const struct way *way_of(const char *name)
{
	const struct way *way = ways;

	while (way->name && strcmp(way->name, name) != 0)
		way++;
	return way;
}

/* Hold the memory of a message until the next one. */
void peer_keeper(int socket)
{
	struct message message = {0};
	struct kept kept = {.descriptor = -1};

	start();
	message_send(socket, &message, -1);
	while (message_receive(socket, &message, &kept.descriptor)) {
		const struct way *way = way_of(message.way);

		kept.bytes = message.bytes;
		way->keep(&kept, &message);
		message_send(socket, &message, -1);
		if (!message_receive(socket, &message, NULL))
			break;
		way->drop(&kept);
		message_send(socket, &message, -1);
	}
	(void)verdict("keeper", message.way);
}

void peer_maker(int socket)
{
	struct message message = {0};
	struct kept made;

	start();
	message_send(socket, &message, -1);
	while (message_receive(socket, &message, NULL)) {
		made = (struct kept){.bytes = message.bytes, .descriptor = -1};
		way_of(message.way)->make(&made, &message);
		message_send(socket, &message, made.descriptor);
		if (made.descriptor >= 0)
			close(made.descriptor);
	}
	(void)verdict("maker", message.way);
}

static void hand_over(const struct way *way, size_t bytes)
{
	struct kept made = {.bytes = bytes, .descriptor = -1};
	struct message message = {.bytes = bytes};
	CUdeviceptr more = 0;

	snprintf(message.way, sizeof(message.way), "%s", way->name);
	way->make(&made, &message);
	peer_tell(&message, made.descriptor, NULL);
	if (made.descriptor >= 0)
		close(made.descriptor);
	charged(way->name, (long long)bytes);
	way->let_go(&made);
	if (!way->listed)
		charged("its maker has let go", (long long)bytes);
	OUT_OF_MEMORY("more than what is left", cuMemAlloc_v2(&more, quota() - bytes));
	peer_tell(&message, -1, NULL);
	charged("all have let go", 0);
	OK(cuMemAlloc_v2(&more, part(0.9)));
	OK(cuMemFree_v2(more));
	charged("at the end", 0);
}

static void kept_within(void)
{
	peer_begin("keeper");
	for (const struct way *way = ways; way->name; way++)
		hand_over(way, 64 * MIB);
	peer_end();
	report("64 MiB that a peer keeps stay charged when their maker has let go");
}

static void kept_beyond(void)
{
	struct message message = {0};
	struct kept made;
	CUdeviceptr more = 0;
	size_t bytes;

	peer_begin("keeper");
	bytes = part(0.6);
	for (const struct way *way = ways; way->name; way++) {
		made = (struct kept){.bytes = bytes, .descriptor = -1};
		message = (struct message){.bytes = bytes};
		snprintf(message.way, sizeof(message.way), "%s", way->name);
		way->make(&made, &message);
		peer_tell(&message, made.descriptor, NULL);
		if (made.descriptor >= 0)
			close(made.descriptor);
		way->let_go(&made);
		OUT_OF_MEMORY(way->name, cuMemAlloc_v2(&more, bytes));
		peer_tell(&message, -1, NULL);
		charged("all have let go", 0);
	}
	peer_end();
	report("beside %zu MiB that a peer keeps, as much again is refused", bytes / MIB);
}

static pid_t idle_child(void)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return child;
}

/* A process's own exports, imported in each way. */
static void own_within(void)
{
	static const char *const names[] = {"handle", "mapping", "external",
	                                    "buffer", "array",   "file"};
	struct message message = {0};
	pid_t child;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct way *way = way_of(names[i]);
		struct kept made = {.bytes = 64 * MIB, .descriptor = -1}, kept = made;

		way->make(&made, &message);
		kept.descriptor = made.descriptor;
		way->keep(&kept, &message);
		charged(way->name, 64 * MIB);
		way->let_go(&made);
		charged("let go of, and kept", 64 * MIB);
		/* A forked child inherits only descriptors that the program itself has open. */
		child = way->keep == keep_file ? -1 : idle_child();
		way->drop(&kept);
		charged("let go of", 0);
		if (child > 0) {
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
		}
	}
	report(
	    "64 MiB that are exported and imported again are charged once, until all have let go");
}

static void own_beyond(void)
{
	struct message message = {0};
	CUdeviceptr more = 0;
	struct kept made = {.descriptor = -1}, kept;

	made.bytes = part(0.6);
	make_physical(&made, &message);
	kept = made;
	keep_external(&kept, &message);
	drop_handle(&made);
	OUT_OF_MEMORY("as much again", cuMemAlloc_v2(&more, made.bytes));
	drop_external(&kept);
	OK(cuMemAlloc_v2(&more, made.bytes));
	OK(cuMemFree_v2(more));
	report("beside %zu MiB of one's own that are kept as external memory, as much is refused",
	       made.bytes / MIB);
}

/* The maker is killed: the holder is charged, within about a second. */
static void orphan(const struct way *way, size_t bytes)
{
	struct kept kept = {.bytes = bytes, .descriptor = -1};
	struct message message = {.bytes = bytes};
	CUdeviceptr more = 0;

	peer_begin("maker");
	snprintf(message.way, sizeof(message.way), "%s", way->name);
	peer_tell(&message, -1, &kept.descriptor);
	way->keep(&kept, &message);
	charged(way->name, (long long)bytes);
	peer_end();
	charged_late("its maker is dead", (long long)bytes - peer_context);
	OUT_OF_MEMORY("more than what is left", cuMemAlloc_v2(&more, quota() - bytes));
	way->drop(&kept);
	charged("let go of", -peer_context);
}

static void orphan_within(void)
{
	for (const struct way *way = ways; way->name; way++) {
		/* The size of unmapped memory is unknown. */
		if (way->keep != keep_file && way->keep != keep_handle)
			orphan(way, 64 * MIB);
	}
	report("64 MiB of a peer that has ended are charged to the process that has them");
}

static void orphan_beyond(void)
{
	orphan(way_of("mapping"), part(0.6));
	report("more than what is left beside a dead peer's memory is refused");
}

const struct row keep_rows[] = {
    {"share-kept",
     "cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemRelease cuMemMap cuMemUnmap "
     "cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer "
     "cuExternalMemoryGetMappedMipmappedArray cuMipmappedArrayDestroy "
     "cuIpcGetMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuMemFree_v2 "
     "cuMemPoolExportPointer cuMemPoolImportPointer cuMemPoolDestroy",
     kept_within, .beyond = kept_beyond},
    {"share-own",
     "cuMemExportToShareableHandle cuMemImportFromShareableHandle cuImportExternalMemory",
     own_within, .beyond = own_beyond},
    {"share-orphan", "cuMemImportFromShareableHandle cuImportExternalMemory", orphan_within,
     .beyond = orphan_beyond},
    {0}};
