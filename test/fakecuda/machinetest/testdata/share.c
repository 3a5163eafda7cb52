/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory and deaths: who is killed while files and imports are about. It prints what is
 * wrong, and exits 0 if nothing is.
 */
#include "../../../../interceptor/table.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define SIZE (64 * MIB)
#define CARD_MIB 8192
#define AS_FILE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

typedef CUmemGenericAllocationHandle CUhandle;

CUresult cuInit(unsigned int);
CUresult cuCtxSetCurrent(CUcontext);

static int wrong;

static void want(long long got, long long wanted, const char *what)
{
	if (got == wanted)
		return;
	printf("%s: %lld, want %lld\n", what, got, wanted);
	wrong = 1;
}
#define WANT(call, wanted) want(call, wanted, #call)

static void start(void)
{
	CUcontext context;

	WANT(cuInit(0), CUDA_SUCCESS);
	WANT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	WANT(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* MiB of the card in use, by everyone. */
static long long held(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return (long long)((total - available) / MIB);
}

static pid_t play(void (*part)(int), int socket)
{
	pid_t pid = fork();

	if (pid == 0) {
		part(socket);
		fflush(stdout);
		pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void send_file(int to, int fd)
{
	char byte = 'f', control[CMSG_SPACE(sizeof(fd))] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr message = {.msg_iov = &io,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	sendmsg(to, &message, 0);
}

static int receive_file(int from)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec io = {&byte, 1};
	struct msghdr message = {.msg_iov = &io,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void file_exporter(int socket)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .requestedHandleTypes = AS_FILE,
	                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUhandle handle = 0;
	int fd = -1;

	start();
	WANT(cuMemCreate(&handle, SIZE, &properties, 0), CUDA_SUCCESS);
	WANT(cuMemExportToShareableHandle(&fd, handle, AS_FILE, 0), CUDA_SUCCESS);
	send_file(socket, fd);
	if (write(socket, &wrong, 1) != 1)
		exit(1);
}

static void ipc_exporter(int socket)
{
	CUdeviceptr pointer = 0;
	CUipcMemHandle handle;

	start();
	WANT(cuMemAlloc_v2(&pointer, SIZE), CUDA_SUCCESS);
	WANT(cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
	if (write(socket, &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
}

/* A file that is nowhere but in a socket holds the memory, on a full card, too. */
static void file_in_a_socket(int ours, pid_t exporter)
{
	long long before;
	CUhandle import = 0;
	CUdeviceptr rest = 0, none = 0;
	char byte;
	int fd;

	/* The byte of the exported file comes first: MSG_PEEK waits, and leaves it there. */
	if (recv(ours, &byte, 1, MSG_PEEK) != 1)
		exit(1);
	before = held();
	end(exporter);
	want(before - held(), 64, "context of the dead exporter, MiB");
	WANT(cuMemAlloc_v2(&rest, (unsigned long long)(CARD_MIB - held()) * MIB), CUDA_SUCCESS);
	WANT(cuMemAlloc_v2(&none, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	fd = receive_file(ours);
	WANT(cuMemImportFromShareableHandle(&import, (void *)(intptr_t)fd, AS_FILE), CUDA_SUCCESS);
	close(fd);
	WANT(cuMemAlloc_v2(&none, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WANT(cuMemRelease(import), CUDA_SUCCESS);
	WANT(cuMemAlloc_v2(&none, SIZE), CUDA_SUCCESS);
	WANT(cuMemFree_v2(none), CUDA_SUCCESS);
	WANT(cuMemFree_v2(rest), CUDA_SUCCESS);
}

/* An importer that is killed gives back what it alone held; and not an exporter's. */
static void ipc_importer(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr pointer = 0;

	start();
	if (read(socket, &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	WANT(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
	if (write(socket, &wrong, 1) != 1)
		exit(1);
}

int main(void)
{
	int files[2], offers[2], turns[2];
	pid_t file, exporter, importer;
	long long before;
	CUipcMemHandle handle;
	char byte;

	socketpair(AF_UNIX, SOCK_STREAM, 0, files);
	socketpair(AF_UNIX, SOCK_STREAM, 0, offers);
	socketpair(AF_UNIX, SOCK_STREAM, 0, turns);
	file = play(file_exporter, files[1]);
	exporter = play(ipc_exporter, offers[1]);
	importer = play(ipc_importer, turns[1]);
	/* All three hold what they are going to. */
	if (recv(files[0], &byte, 1, MSG_PEEK) != 1 ||
	    read(offers[0], &handle, sizeof(handle)) != sizeof(handle) ||
	    write(turns[0], &handle, sizeof(handle)) != sizeof(handle) ||
	    read(turns[0], &byte, 1) != 1)
		return 1;
	start();
	before = held();
	end(exporter);
	want(before - held(), 64, "context of the dead exporter, MiB");
	end(importer);
	want(before - held(), 192, "two contexts and the memory, MiB");
	close(files[1]);
	file_in_a_socket(files[0], file);
	return wrong;
}
