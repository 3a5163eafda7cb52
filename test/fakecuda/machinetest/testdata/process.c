/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA process that does what it is told: a command per line of standard input, one line of
 * answer each. Results are the driver's numbers.
 */
#define _GNU_SOURCE
#include "../../../conformance/conformance.h"

#include <unistd.h>

#define MAX_HELD 4096

static CUdeviceptr pointers[MAX_HELD];
static int pointer_count;
static void *libnvml;

static void load_all(void)
{
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	libnvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!libcuda || !libnvml)
		stop("%s", dlerror());
	load_driver(libcuda);
	load_nvml(libnvml);
}

static CUresult use_device(int device)
{
	CUcontext context;
	CUresult result = cuDevicePrimaryCtxRetain(&context, device);

	return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

static CUresult take(const char *how, size_t bytes)
{
	CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUdeviceptr *pointer = &pointers[pointer_count];
	CUhandle handle;
	CUresult result;

	if (pointer_count == MAX_HELD)
		return CUDA_ERROR_UNKNOWN;
	if (strcmp(how, "create") == 0)
		return cuMemCreate(&handle, bytes, &on_card, 0);
	if (strcmp(how, "async") == 0)
		result = cuMemAllocAsync(pointer, bytes, NULL);
	else
		result = cuMemAlloc_v2(pointer, bytes);
	pointer_count += result == CUDA_SUCCESS;
	return result;
}

/* The first allocation of another driver of this process, in a context of its own. */
static CUresult take_by_second(size_t bytes)
{
	void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	__typeof__(cuInit) init;
	__typeof__(cuDevicePrimaryCtxRetain) retain;
	__typeof__(cuCtxSetCurrent) set_current;
	__typeof__(cuMemAlloc_v2) allocate;
	CUcontext context;
	CUdeviceptr pointer;
	CUresult result;

	if (!driver)
		stop("%s", dlerror());
	load(driver, "cuInit", &init);
	load(driver, "cuDevicePrimaryCtxRetain", &retain);
	load(driver, "cuCtxSetCurrent", &set_current);
	load(driver, "cuMemAlloc_v2", &allocate);
	result = init(0);
	if (result == CUDA_SUCCESS)
		result = retain(&context, 0);
	if (result == CUDA_SUCCESS)
		result = set_current(context);
	return result == CUDA_SUCCESS ? allocate(&pointer, bytes) : result;
}

/* pid:bytes of each process on the card with that NVML index */
static void say_processes(unsigned int index)
{
	static nvmlProcessInfo_v2_t list[1024];
	nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *);
	nvmlDevice_t device;
	unsigned int count = 1024;

	load(libnvml, "nvmlDeviceGetHandleByIndex_v2", &by_index);
	if (nvmlInit_v2() != NVML_SUCCESS || by_index(index, &device) != NVML_SUCCESS ||
	    nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) != NVML_SUCCESS) {
		printf("failed\n");
		return;
	}
	for (unsigned int i = 0; i < count; i++)
		printf("%s%u:%llu", i ? " " : "", list[i].pid, list[i].usedGpuMemory);
	printf("\n");
}

/* limit CGROUP BYTES on the first card */
static void limit(const char *line)
{
	nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *);
	nvmlReturn_t (*set)(nvmlDevice_t, nvmlSetMemoryLimits_v1_t *);
	nvmlSetMemoryLimits_v1_t limits;
	nvmlDevice_t device;
	char cgroup[400];

	load(libnvml, "nvmlDeviceGetHandleByIndex_v2", &by_index);
	load(libnvml, "nvmlDeviceSetMemoryLimits_v1", &set);
	limits.nameSpace = cgroup;
	limits.softLimit = 0;
	if (sscanf(line, "%*s %399s %llu", cgroup, &limits.hardLimit) != 2 ||
	    by_index(0, &device) != NVML_SUCCESS)
		printf("failed\n");
	else
		printf("%d\n", set(device, &limits));
}

/* limits CGROUP: hard and used, or NVML's error */
static void say_limits(const char *line)
{
	nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *);
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlGetMemoryLimits_v1_t *);
	nvmlGetMemoryLimits_v1_t limits;
	nvmlDevice_t device;
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
	char cgroup[400];

	load(libnvml, "nvmlDeviceGetHandleByIndex_v2", &by_index);
	load(libnvml, "nvmlDeviceGetMemoryLimits_v1", &get);
	limits.nameSpace = cgroup;
	if (sscanf(line, "%*s %399s", cgroup) == 1 && by_index(0, &device) == NVML_SUCCESS)
		result = get(device, &limits);
	if (result == NVML_SUCCESS)
		printf("%llu %llu\n", limits.hardLimit, limits.currentUsed);
	else
		printf("%d\n", result);
}

static void shut_nvml_down(void)
{
	nvmlReturn_t (*shutdown)(void);

	load(libnvml, "nvmlShutdown", &shutdown);
	nvmlInit_v2();
	shutdown();
	dlclose(libnvml);
	printf("0\n");
}

/* Takes and gives back at random, for ever, up to four at once; what it says is that it began. */
static void churn(size_t most)
{
	unsigned int seed = (unsigned int)getpid();
	CUdeviceptr slots[4] = {0};

	printf("0\n");
	fflush(stdout);
	for (;;) {
		CUdeviceptr *slot = &slots[(unsigned int)rand_r(&seed) % COUNT(slots)];
		size_t bytes = (size_t)rand_r(&seed) % most + 1;

		if (*slot)
			cuMemFree_v2(*slot);
		if (cuMemAlloc_v2(slot, bytes) != CUDA_SUCCESS)
			*slot = 0;
	}
}

static void obey(const char *line, const char *command, size_t number)
{
	size_t available, total;

	if (strcmp(command, "init") == 0)
		printf("%d\n", cuInit(0));
	else if (strcmp(command, "use") == 0)
		printf("%d\n", use_device((int)number));
	else if (strcmp(command, "alloc") == 0 || strcmp(command, "async") == 0 ||
	         strcmp(command, "create") == 0)
		printf("%d\n", take(command, number));
	else if (strcmp(command, "second") == 0)
		printf("%d\n", take_by_second(number));
	else if (strcmp(command, "free") == 0)
		printf("%d\n", pointer_count ? cuMemFree_v2(pointers[--pointer_count]) : -1);
	else if (strcmp(command, "info") == 0 &&
	         cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS)
		printf("%zu %zu\n", available, total);
	else if (strcmp(command, "limit") == 0)
		limit(line);
	else if (strcmp(command, "limits") == 0)
		say_limits(line);
	else if (strcmp(command, "processes") == 0)
		say_processes((unsigned int)number);
	else if (strcmp(command, "nvml") == 0)
		printf("%d\n", nvmlInit_v2());
	else if (strcmp(command, "shutdown") == 0)
		shut_nvml_down();
	else if (strcmp(command, "exec") == 0)
		execlp("sh", "sh", "-c", "echo another program; cat", (char *)NULL);
	else if (strcmp(command, "churn") == 0)
		churn(number);
	else
		printf("failed\n");
	fflush(stdout);
}

int main(void)
{
	char line[512], command[32];
	size_t number;

	load_all();
	while (fgets(line, sizeof(line), stdin)) {
		number = 0;
		if (sscanf(line, "%31s %zu", command, &number) >= 1)
			obey(line, command, number);
	}
	return 0;
}
