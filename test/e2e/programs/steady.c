/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steady BYTES FILE [managed|maps|sealed|sandboxed|lends LENT|borrows LENT]: hold BYTES of device
 * 0, and work: each step reads the number that the previous step wrote there, writes the next one,
 * allocates and frees. FILE has the number; while FILE.idle exists no call is made.
 *
 * managed    also managed memory
 * maps       many objects mapped side by side, as PyTorch's expandable segments are
 * sealed     once it works it can open no descriptor, and so no socket
 * sandboxed  a seccomp filter kills it for a socket, and each step requests too much memory
 * borrows    uses the memory of the process that "lends" it; file LENT has the IPC handle
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void *find(void *driver, const char *name)
{
	void *function = dlsym(driver, name);

	if (!function)
		exit(1);
	return function;
}

struct handle {
	char bytes[64];
};

static int lend(void *driver, unsigned long long memory, const char *path)
{
	int (*name)(struct handle *, unsigned long long);
	struct handle handle;
	FILE *file;
	int failed;

	*(void **)&name = find(driver, "cuIpcGetMemHandle");
	if (name(&handle, memory))
		return 1;
	file = fopen(path, "w");
	if (!file)
		return 1;
	failed = fwrite(&handle, sizeof(handle), 1, file) != 1;
	return fclose(file) || failed;
}

static int borrow(void *driver, const char *path)
{
	int (*open)(unsigned long long *, struct handle, unsigned);
	unsigned long long memory;
	struct handle handle;
	FILE *file = fopen(path, "r");
	int failed;

	if (!file)
		return 1;
	*(void **)&open = find(driver, "cuIpcOpenMemHandle_v2");
	failed = fread(&handle, sizeof(handle), 1, file) != 1 || open(&memory, handle, 1);
	fclose(file);
	return failed;
}

/* The used parts of CUmemAllocationProp and CUmemAccessDesc. */
struct location {
	int type, id;
};

struct properties {
	int type, handles;
	struct location location;
	void *none[2];
};

struct access {
	struct location location;
	int flags;
};

#define PIECE (20ull << 20)

/* Maps as many pieces as are needed, in a larger range. Every other handle is released. */
static int map_pieces(void *driver, unsigned long long *memory, size_t size)
{
	static const struct properties properties = {1, 1, {1, 0}, {NULL, NULL}};
	static const struct access access = {{1, 0}, 3};
	int (*reserve)(unsigned long long *, size_t, size_t, unsigned long long,
	               unsigned long long);
	int (*create)(unsigned long long *, size_t, const struct properties *, unsigned long long);
	int (*map)(unsigned long long, size_t, size_t, unsigned long long, unsigned long long);
	int (*set)(unsigned long long, size_t, const struct access *, size_t);
	int (*release)(unsigned long long);
	unsigned long long handle;
	size_t pieces = (size + PIECE - 1) / PIECE;

	*(void **)&reserve = find(driver, "cuMemAddressReserve");
	*(void **)&create = find(driver, "cuMemCreate");
	*(void **)&map = find(driver, "cuMemMap");
	*(void **)&set = find(driver, "cuMemSetAccess");
	*(void **)&release = find(driver, "cuMemRelease");
	if (reserve(memory, 2 * pieces * PIECE, 0, 0, 0))
		return 1;
	for (size_t i = 0; i < pieces; i++) {
		if (create(&handle, PIECE, &properties, 0) ||
		    map(*memory + i * PIECE, PIECE, 0, handle, 0) || (i % 2 && release(handle)))
			return 1;
	}
	return set(*memory, pieces * PIECE, &access, 1);
}

static int enter_sandbox(void)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int count, char **argument)
{
	static const struct timespec pause = {.tv_nsec = 10000000};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned), (*retain)(void **, int), (*use)(void *),
	    (*release)(unsigned long long);
	int (*alloc)(unsigned long long *, size_t);
	int (*managed)(unsigned long long *, size_t, unsigned);
	int (*write_to)(unsigned long long, const void *, size_t);
	int (*read_from)(void *, unsigned long long, size_t);
	unsigned long long memory, more;
	static const struct rlimit none = {0, 0};
	char idle[4096];
	size_t size;
	int maps, sealed, sandboxed, step;

	if (!driver || count < 3)
		return 1;
	snprintf(idle, sizeof(idle), "%s.idle", argument[2]);
	step = open(argument[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	*(void **)&init = find(driver, "cuInit");
	*(void **)&retain = find(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&use = find(driver, "cuCtxSetCurrent");
	*(void **)&alloc = find(driver, "cuMemAlloc_v2");
	*(void **)&release = find(driver, "cuMemFree_v2");
	*(void **)&managed = find(driver, "cuMemAllocManaged");
	*(void **)&write_to = find(driver, "cuMemcpyHtoD_v2");
	*(void **)&read_from = find(driver, "cuMemcpyDtoH_v2");
	size = strtoull(argument[1], NULL, 10);
	if (step < 0 || init(0) || retain(&context, 0) || use(context))
		return 1;
	sealed = count == 4 && strcmp(argument[3], "sealed") == 0;
	sandboxed = count == 4 && strcmp(argument[3], "sandboxed") == 0;
	maps = count == 4 && strcmp(argument[3], "maps") == 0;
	if (maps ? map_pieces(driver, &memory, size) : alloc(&memory, size))
		return 1;
	if (count == 4 && !maps && !sealed && !sandboxed && managed(&more, 1 << 20, 1))
		return 1;
	if (count == 5 && (strcmp(argument[3], "lends") == 0 ? lend(driver, memory, argument[4])
	                                                     : borrow(driver, argument[4])))
		return 1;
	for (unsigned long long number = 0;; number++) {
		unsigned long long was = number;
		char text[32];
		int length;

		if (number &&
		    (read_from(&was, memory + size - sizeof(was), sizeof(was)) || was != number))
			break;
		was = number + 1;
		if (write_to(memory + size - sizeof(was), &was, sizeof(was)))
			break;
		if (alloc(&more, 2 << 20) || release(more))
			break;
		if (sandboxed && number == 0 && enter_sandbox())
			break;
		if (sandboxed && alloc(&more, 1ull << 40) == 0)
			break;
		length = snprintf(text, sizeof(text), "%020llu\n", number);
		if (pwrite(step, text, (size_t)length, 0) != length ||
		    (sealed && setrlimit(RLIMIT_NOFILE, &none)))
			break;
		do
			nanosleep(&pause, NULL);
		while (access(idle, F_OK) == 0);
	}
	puts("it does not work any more");
	return 1;
}
