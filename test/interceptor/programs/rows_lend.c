/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that lend memory, and memory from outside the slice. A lender answers a message with a
 * size by one with the memory, and frees it at the next message. It is a peer of the same slice
 * (rows_share.c), or the program `rows lend KIND SOCKET` in another slice or in none; from that
 * `rows borrow KIND SOCKET` borrows 256 MiB and then 3 GiB, which is more than its quota.
 */
#include "rows.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FITS (256 * MIB)
#define DOES_NOT_FIT (3 * GIB)

void message_send(int socket, const struct message *message, int descriptor)
{
	struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

	if (descriptor >= 0) {
		struct cmsghdr *with;

		header.msg_control = control;
		header.msg_controllen = sizeof(control);
		with = CMSG_FIRSTHDR(&header);
		with->cmsg_level = SOL_SOCKET;
		with->cmsg_type = SCM_RIGHTS;
		with->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(with), &descriptor, sizeof(int));
	}
	if (sendmsg(socket, &header, MSG_NOSIGNAL) != (ssize_t)sizeof(*message))
		failed("no message can be sent");
}

bool message_receive(int socket, struct message *message, int *descriptor)
{
	struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
	char control[CMSG_SPACE(sizeof(int))];
	struct msghdr header = {.msg_iov = &part,
	                        .msg_iovlen = 1,
	                        .msg_control = control,
	                        .msg_controllen = sizeof(control)};
	struct cmsghdr *with;
	int received = -1;

	if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*message))
		return false;
	with = CMSG_FIRSTHDR(&header);
	if (with)
		memcpy(&received, CMSG_DATA(with), sizeof(int));
	if (descriptor)
		*descriptor = received;
	else if (received >= 0)
		close(received);
	return true;
}

struct lent {
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	CUmemoryPool pool;
	size_t bytes;
};

static void lend_nothing(struct lent *lent, struct message *message, int *descriptor)
{
	(void)message;
	*descriptor = -1;
	OK(cuMemAlloc_v2(&lent->pointer, lent->bytes));
}

static void lend_ipc(struct lent *lent, struct message *message, int *descriptor)
{
	*descriptor = -1;
	OK(cuMemAlloc_v2(&lent->pointer, lent->bytes));
	OK(cuIpcGetMemHandle(&message->ipc, lent->pointer));
}

static void end_linear(struct lent *lent)
{
	OK(cuMemFree_v2(lent->pointer));
}

static void lend_file(struct lent *lent, struct message *message, int *descriptor)
{
	CUmemAllocationProp properties = on_device(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	(void)message;
	OK(cuMemCreate(&lent->handle, lent->bytes, &properties, 0));
	OK(cuMemAddressReserve(&lent->pointer, lent->bytes, 0, 0, 0));
	OK(cuMemMap(lent->pointer, lent->bytes, 0, lent->handle, 0));
	access_to(lent->pointer, lent->bytes);
	OK(cuMemExportToShareableHandle(descriptor, lent->handle,
	                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void end_file(struct lent *lent)
{
	OK(cuMemUnmap(lent->pointer, lent->bytes));
	OK(cuMemAddressFree(lent->pointer, lent->bytes));
	OK(cuMemRelease(lent->handle));
}

static void lend_pool(struct lent *lent, struct message *message, int *descriptor)
{
	CUmemPoolProps shape = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	OK(cuMemPoolCreate(&lent->pool, &shape));
	OK(cuMemAllocFromPoolAsync(&lent->pointer, lent->bytes, lent->pool, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolExportToShareableHandle(descriptor, lent->pool,
	                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&message->pointer, lent->pointer));
}

static void end_pool(struct lent *lent)
{
	OK(cuMemFreeAsync(lent->pointer, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(lent->pool));
}

static const struct {
	const char *name;
	void (*lend)(struct lent *lent, struct message *message, int *descriptor);
	void (*end)(struct lent *lent);
} kinds[] = {{"nothing", lend_nothing, end_linear},
             {"ipc", lend_ipc, end_linear},
             {"fd", lend_file, end_file},
             {"external", lend_file, end_file},
             {"pool", lend_pool, end_pool}};

static int serve(const char *name, int socket)
{
	struct message message = {0};
	size_t kind = 0;

	while (kind < sizeof(kinds) / sizeof(kinds[0]) - 1 && strcmp(kinds[kind].name, name) != 0)
		kind++;
	start();
	message_send(socket, &message, -1);
	while (message_receive(socket, &message, NULL)) {
		struct lent lent = {.bytes = message.bytes};
		int descriptor = -1;

		kinds[kind].lend(&lent, &message, &descriptor);
		usable("what is lent", lent.pointer, lent.bytes);
		OK(cuCtxSynchronize());
		message_send(socket, &message, descriptor);
		if (descriptor >= 0)
			close(descriptor);
		if (!message_receive(socket, &message, NULL))
			break;
		kinds[kind].end(&lent);
		message_send(socket, &message, -1);
	}
	return verdict("lender", name) != 0;
}

static void peer_nothing(int socket)
{
	(void)serve("nothing", socket);
}

static void peer_ipc(int socket)
{
	(void)serve("ipc", socket);
}

static void peer_fd(int socket)
{
	(void)serve("fd", socket);
}

static void peer_pool(int socket)
{
	(void)serve("pool", socket);
}

const struct peer share_peers[] = {{"nothing", peer_nothing},
                                   {"ipc", peer_ipc},
                                   {"fd", peer_fd},
                                   {"pool", peer_pool},
                                   {"keeper", peer_keeper},
                                   {"maker", peer_maker},
                                   {0}};

static pid_t peer;
static int peer_socket;
long long peer_context;

void peer_begin(const char *name)
{
	struct message message;
	size_t before = left();
	char number[16];
	int pair[2];
	pid_t parent = getpid();

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) {
		failed("no sockets");
		return;
	}
	fflush(stdout);
	peer = fork();
	if (peer == 0) {
		/* Even if the row crashes. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		snprintf(number, sizeof(number), "%d", pair[1]);
		if (getppid() == parent)
			execl("/proc/self/exe", "rows", "peer", name, number, (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	peer_socket = pair[0];
	if (peer < 0 || !message_receive(peer_socket, &message, NULL))
		failed("no peer");
	peer_context = (long long)(before - left());
	settle();
}

void peer_tell(struct message *message, int descriptor, int *received)
{
	message_send(peer_socket, message, descriptor);
	if (!message_receive(peer_socket, message, received))
		failed("the peer ended");
}

void peer_end(void)
{
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	close(peer_socket);
}

static int unix_socket(const char *path, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(address->sun_path, sizeof(address->sun_path), "%s", path);
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

int lend_main(const char *kind, const char *path)
{
	struct sockaddr_un address;
	int listening = unix_socket(path, &address), accepted;

	alarm(SECONDS);
	if (bind(listening, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listening, 1) != 0 || (accepted = accept(listening, NULL, NULL)) < 0) {
		perror(path);
		return 1;
	}
	return serve(kind, accepted);
}

static void borrow_ipc(const struct message *message, bool fits)
{
	CUdeviceptr pointer = 0, again = 0;

	if (!fits) {
		OUT_OF_MEMORY("to open more than the quota",
		              cuIpcOpenMemHandle_v2(&pointer, message->ipc, 1));
		return;
	}
	OK(cuIpcOpenMemHandle_v2(&pointer, message->ipc, 1));
	charged("opened", FITS);
	OK(cuIpcOpenMemHandle_v2(&again, message->ipc, 1));
	charged("opened again", FITS);
	holds("what was opened", pointer, FITS);
	OK(cuIpcCloseMemHandle(again));
	charged("closed once", FITS);
	OK(cuIpcCloseMemHandle(pointer));
}

static void borrow_file(int descriptor, size_t bytes, bool fits)
{
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr address = 0;

	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
	                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	charged("imported", 0);
	OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	if (fits) {
		OK(cuMemMap(address, bytes, 0, handle, 0));
		charged("mapped", FITS);
		access_to(address, bytes);
		holds("what was mapped", address, bytes);
		OK(cuMemRelease(handle));
		charged("mapped, and no handle", FITS);
		OK(cuMemUnmap(address, bytes));
	} else {
		OUT_OF_MEMORY("to map more than the quota", cuMemMap(address, bytes, 0, handle, 0));
		OK(cuMemRelease(handle));
	}
	OK(cuMemAddressFree(address, bytes));
	close(descriptor);
}

static void borrow_external(int descriptor, size_t bytes, bool fits)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
	    .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
	    .handle.fd = descriptor,
	    .size = bytes};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = bytes};
	CUexternalMemory memory = NULL;
	CUdeviceptr pointer = 0;

	if (!fits) {
		OUT_OF_MEMORY("to import more than the quota",
		              cuImportExternalMemory(&memory, &description));
		close(descriptor);
		return;
	}
	OK(cuImportExternalMemory(&memory, &description));
	charged("imported", FITS);
	OK(cuExternalMemoryGetMappedBuffer(&pointer, memory, &whole));
	holds("what was imported", pointer, bytes);
	OK(cuMemFree_v2(pointer));
	charged("imported, and not mapped", FITS);
	OK(cuDestroyExternalMemory(memory));
}

static void borrow_pool(struct message *message, int descriptor, size_t bytes)
{
	CUmemoryPool pool = NULL;
	CUdeviceptr pointer = 0;

	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor,
	                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolImportPointer(&pointer, pool, &message->pointer));
	charged("imported", 0);
	holds("what was imported", pointer, bytes);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(pool));
	close(descriptor);
}

int borrow_main(const char *kind, const char *path)
{
	static const size_t sizes[] = {FITS, DOES_NOT_FIT, FITS};
	struct sockaddr_un address;
	struct message message = {0};
	int to = unix_socket(path, &address);

	alarm(SECONDS);
	begin();
	if (connect(to, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    !message_receive(to, &message, NULL))
		failed("no lender at %s", path);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		bool fits = sizes[i] == FITS;
		int descriptor = -1;

		message.bytes = sizes[i];
		message_send(to, &message, -1);
		if (!message_receive(to, &message, &descriptor)) {
			failed("the lender ended");
			break;
		}
		if (strcmp(kind, "ipc") == 0)
			borrow_ipc(&message, fits);
		else if (strcmp(kind, "fd") == 0)
			borrow_file(descriptor, sizes[i], fits);
		else if (strcmp(kind, "external") == 0)
			borrow_external(descriptor, sizes[i], fits);
		else
			borrow_pool(&message, descriptor, sizes[i]);
		charged(fits ? "closed" : "after a refusal", 0);
		message_send(to, &message, -1);
		if (!message_receive(to, &message, NULL)) {
			failed("the lender ended");
			break;
		}
	}
	if (strcmp(kind, "pool") == 0)
		report("its exporter pays: nothing is charged");
	else
		report("%zu MiB are charged while they are open, %zu refused", FITS / MIB,
		       DOES_NOT_FIT / MIB);
	return verdict("borrow", kind);
}
