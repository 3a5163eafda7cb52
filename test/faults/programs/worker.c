/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker: a CUDA program that executes each line of its standard input and answers with a line. It
 * starts with "ready PID". It uses the driver only; of gpuslice it knows where its ledger is
 * mapped.
 *
 * 	context DEVICE          -> ok | oom | error CODE
 * 	alloc DEVICE BYTES KIND -> ok I | oom | error CODE (0: cuMemAlloc, 1: cuMemCreate)
 * 	free I                  -> ok | error CODE
 * 	total DEVICE            -> ok FREE TOTAL
 * 	storm SEED COUNT BYTES  -> ok COUNT REFUSALS (allocates and frees; holds nothing afterwards)
 * 	fork DEVICE             -> ok CODE (of cuMemAlloc in a forked child, which then exits)
 * 	spawn IN OUT            -> ok PID (another worker, a child, at two FIFOs)
 * 	exec                    -> ready PID (becomes a new image of itself, which holds nothing)
 * 	scribble SEED COUNT     -> ok COUNT (overwrites words at the start of its slice's ledger)
 * 	stubborn                -> ok (ignores SIGTERM)
 * 	exit                    -> (exits)
 *
 * For an observing worker outside all slices:
 *
 * 	list DEVICE             -> ok PID:BYTES … (of NVML)
 * 	limit DEVICE CGROUP     -> ok BYTES | none (the driver's limit of a cgroup)
 */
#define _GNU_SOURCE
#include "cuda_abi.h"
#include "nvml_abi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES = 2, MOST = 4096 };

static struct {
	CUresult (*init)(unsigned int);
	CUresult (*device_get)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*mem_alloc)(CUdeviceptr *, size_t);
	CUresult (*mem_free)(CUdeviceptr);
	CUresult (*mem_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	                       unsigned long long);
	CUresult (*mem_release)(CUmemGenericAllocationHandle);
	CUresult (*mem_get_info)(size_t *, size_t *);
} cu;

static CUcontext context[DEVICES];
static struct {
	uint64_t handle;
	int device, kind, used;
} held[MOST];

static void load(void)
{
	const struct {
		const char *name;
		void *where;
	} names[] = {
	    {"cuInit", &cu.init},
	    {"cuDeviceGet", &cu.device_get},
	    {"cuDevicePrimaryCtxRetain", &cu.retain},
	    {"cuCtxSetCurrent", &cu.set_current},
	    {"cuMemAlloc_v2", &cu.mem_alloc},
	    {"cuMemFree_v2", &cu.mem_free},
	    {"cuMemCreate", &cu.mem_create},
	    {"cuMemRelease", &cu.mem_release},
	    {"cuMemGetInfo_v2", &cu.mem_get_info},
	};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *function = driver ? dlsym(driver, names[i].name) : NULL;

		if (!function) {
			printf("no %s: %s\n", names[i].name, dlerror());
			exit(1);
		}
		memcpy(names[i].where, &function, sizeof(function));
	}
}

static const char *say(CUresult result)
{
	static char text[32];

	if (result == CUDA_SUCCESS)
		return "ok";
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return "oom";
	snprintf(text, sizeof(text), "error %d", result);
	return text;
}

static CUresult enter(int device)
{
	CUresult result = CUDA_SUCCESS;
	CUdevice ordinal;

	if (!context[device]) {
		if (!cu.init)
			load();
		result = cu.init(0);
		if (result == CUDA_SUCCESS)
			result = cu.device_get(&ordinal, device);
		if (result == CUDA_SUCCESS)
			result = cu.retain(&context[device], ordinal);
		if (result != CUDA_SUCCESS)
			context[device] = NULL;
	}
	return result == CUDA_SUCCESS ? cu.set_current(context[device]) : result;
}

static CUresult take(int device, uint64_t bytes, int kind, int *index)
{
	CUresult result = enter(device);
	CUdeviceptr pointer = 0;
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	int i = 0;

	if (result != CUDA_SUCCESS)
		return result;
	while (i < MOST - 1 && held[i].used)
		i++;
	property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	property.location.id = device;
	if (kind == 0)
		result = cu.mem_alloc(&pointer, bytes);
	else
		result = cu.mem_create(&handle, bytes, &property, 0);
	if (result == CUDA_SUCCESS) {
		held[i].handle = kind == 0 ? pointer : handle;
		held[i].device = device;
		held[i].kind = kind;
		held[i].used = 1;
		*index = i;
	}
	return result;
}

static CUresult give(int i)
{
	CUresult result = enter(held[i].device);

	if (result != CUDA_SUCCESS)
		return result;
	result = held[i].kind == 0 ? cu.mem_free(held[i].handle) : cu.mem_release(held[i].handle);
	if (result == CUDA_SUCCESS)
		held[i].used = 0;
	return result;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Up to eight at a time, of any size up to `most`, on the devices with a context. */
static void storm(uint64_t seed, uint64_t count, uint64_t most)
{
	int mine[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
	uint64_t state = seed * 2 + 1, refusals = 0;
	CUresult result = CUDA_SUCCESS;

	for (uint64_t n = 0; n < count && result == CUDA_SUCCESS; n++) {
		int slot = (int)(next_random(&state) % 8), kind = (int)(next_random(&state) % 2);
		int device = (int)(next_random(&state) % DEVICES);
		uint64_t bytes = (1 + next_random(&state) % (most >> 21)) << 21;

		if (mine[slot] >= 0) {
			result = give(mine[slot]);
			mine[slot] = -1;
		} else if (context[device]) {
			result = take(device, bytes, kind, &mine[slot]);
			if (result == CUDA_ERROR_OUT_OF_MEMORY) {
				result = CUDA_SUCCESS;
				refusals++;
			}
		}
	}
	for (int slot = 0; slot < 8; slot++) {
		if (mine[slot] >= 0 && result == CUDA_SUCCESS)
			result = give(mine[slot]);
	}
	if (result != CUDA_SUCCESS)
		puts(say(result));
	else
		printf("ok %" PRIu64 " %" PRIu64 "\n", count, refusals);
}

static void fork_child(int device)
{
	CUdeviceptr pointer;
	int answer[2], code = -1;
	pid_t child;

	if (pipe(answer) != 0 || (child = fork()) < 0) {
		puts("what: fork");
		return;
	}
	if (child == 0) {
		code = context[device] ? (int)cu.mem_alloc(&pointer, 1 << 21) : -1;
		_exit(write(answer[1], &code, sizeof(code)) != sizeof(code));
	}
	close(answer[1]);
	if (read(answer[0], &code, sizeof(code)) != sizeof(code))
		code = -2;
	close(answer[0]);
	waitpid(child, NULL, 0);
	printf("ok %d\n", code);
}

static void spawn(char **argv, const char *in, const char *out)
{
	/* Open for both, so that neither open waits. */
	int from = open(in, O_RDWR | O_CLOEXEC), to = open(out, O_RDWR | O_CLOEXEC);
	pid_t child = from < 0 || to < 0 ? -1 : fork();

	if (child == 0) {
		dup2(from, 0);
		dup2(to, 1);
		execl("/proc/self/exe", argv[0], NULL);
		_exit(127);
	}
	if (child < 0)
		puts("what: spawn");
	else
		printf("ok %d\n", child);
	close(from);
	close(to);
}

static void scribble(uint64_t seed, uint64_t count)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uint64_t state = seed * 2 + 1, *page = NULL;
	char line[512];
	uintptr_t begin;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "/memfd:gpuslice") && sscanf(line, "%" SCNxPTR, &begin) == 1) {
			page = (uint64_t *)begin;
			break;
		}
	}
	if (maps)
		fclose(maps);
	for (uint64_t n = 0; page && n < count; n++)
		((volatile uint64_t *)page)[next_random(&state) % (4 * 4096 / 8)] =
		    next_random(&state);
	printf("ok %" PRIu64 "\n", page ? count : 0);
}

static struct {
	nvmlReturn_t (*init)(void);
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *);
	nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);
	nvmlReturn_t (*limits)(nvmlDevice_t, nvmlGetMemoryLimits_v1_t *);
} nvml;

static nvmlReturn_t look_at(unsigned device, nvmlDevice_t *handle)
{
	if (!nvml.init) {
		void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

		if (!library) {
			printf("no NVML: %s\n", dlerror());
			exit(1);
		}
		*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
		*(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
		*(void **)&nvml.processes =
		    dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
		*(void **)&nvml.limits = dlsym(library, "nvmlDeviceGetMemoryLimits_v1");
		if (nvml.init() != NVML_SUCCESS) {
			puts("what: nvmlInit");
			exit(1);
		}
	}
	return nvml.by_index(device, handle);
}

static void limit(unsigned device, char *cgroup)
{
	nvmlGetMemoryLimits_v1_t limits = {.nameSpace = cgroup};
	nvmlDevice_t handle;
	nvmlReturn_t result = look_at(device, &handle);

	if (result == NVML_SUCCESS)
		result = nvml.limits(handle, &limits);
	if (result == NVML_SUCCESS)
		printf("ok %llu\n", limits.hardLimit);
	else
		printf(result == NVML_ERROR_NOT_FOUND ? "none\n" : "what: NVML %d\n", result);
}

static void list(unsigned device)
{
	static nvmlProcessInfo_v2_t all[1024];
	unsigned count = 1024;
	nvmlDevice_t handle;

	if (look_at(device, &handle) != NVML_SUCCESS ||
	    nvml.processes(handle, &count, all) != NVML_SUCCESS) {
		puts("what: NVML");
		return;
	}
	printf("ok");
	for (unsigned i = 0; i < count; i++)
		printf(" %u:%llu", all[i].pid, all[i].usedGpuMemory);
	puts("");
}

int main(int argc, char **argv)
{
	char line[512], word[16] = "", in[200], out[200];
	uint64_t a, b, c;

	(void)argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0); /* unread lines are for the image after "exec" */
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		int n = sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64, word, &a, &b, &c);
		CUresult result;
		int i = 0;

		if (!strcmp(word, "context") && n == 2 && a < DEVICES) {
			puts(say(enter((int)a)));
		} else if (!strcmp(word, "alloc") && n == 4 && a < DEVICES) {
			result = take((int)a, b, (int)c, &i);
			if (result == CUDA_SUCCESS)
				printf("ok %d\n", i);
			else
				puts(say(result));
		} else if (!strcmp(word, "free") && n == 2 && a < MOST && held[a].used) {
			puts(say(give((int)a)));
		} else if (!strcmp(word, "total") && n == 2 && a < DEVICES) {
			size_t free_bytes = 0, total = 0;

			result = enter((int)a);
			if (result == CUDA_SUCCESS)
				result = cu.mem_get_info(&free_bytes, &total);
			if (result == CUDA_SUCCESS)
				printf("ok %zu %zu\n", free_bytes, total);
			else
				puts(say(result));
		} else if (!strcmp(word, "storm") && n == 4 && c >> 21 > 0) {
			storm(a, b, c);
		} else if (!strcmp(word, "fork") && n == 2 && a < DEVICES) {
			fork_child((int)a);
		} else if (sscanf(line, "spawn %199s %199s", in, out) == 2) {
			spawn(argv, in, out);
		} else if (!strcmp(word, "exec")) {
			execl("/proc/self/exe", argv[0], NULL);
		} else if (!strcmp(word, "scribble") && n == 3) {
			scribble(a, b);
		} else if (!strcmp(word, "list") && n == 2) {
			list((unsigned)a);
		} else if (sscanf(line, "limit %" SCNu64 " %199s", &a, in) == 2) {
			limit((unsigned)a, in);
		} else if (!strcmp(word, "stubborn")) {
			signal(SIGTERM, SIG_IGN);
			puts("ok");
		} else if (!strcmp(word, "exit")) {
			return 0;
		} else {
			printf("what: %s", line);
		}
	}
	return 0;
}
