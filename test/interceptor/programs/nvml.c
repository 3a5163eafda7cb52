/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML shows the slice with the same figures as CUDA, and only its processes. Linked with libcuda
 * and libnvidia-ml.
 *
 *   nvml show             one line of figures and processes, from NVML alone
 *   nvml agree STRANGER   in a slice of 4 GiB: everything else, with a second process in the
 *                         slice, and with process STRANGER outside it, which holds memory too
 *   nvml member OUT IN    the second process: reports its 512 MiB to OUT, waits for IN
 *
 * Prints what is wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define MANY 64

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned int *, void *);

static nvmlDevice_t device;
static int wrong;

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	wrong = 1;
}

static void expect(const char *step, unsigned long long is, unsigned long long wanted)
{
	if (is != wanted)
		complain("%s: %llu, expected %llu", step, is, wanted);
}

/* --- figures ---------------------------------------------------------------------------------- */

static unsigned long long left(void)
{
	size_t available = 0, total = 0;

	expect("cuMemGetInfo_v2", cuMemGetInfo_v2(&available, &total), CUDA_SUCCESS);
	return available;
}

/* CUDA and NVML show the same. If the enforcer applied driver truth between the two calls, they are
 * repeated. */
static void agree(const char *step)
{
	nvmlMemory_v2_t second = {.version = NVML_MEMORY_V2};
	size_t available = 0, total = 0, device_total = 0;
	nvmlMemory_t first;

	for (int tries = 0; tries < 1000; tries++) {
		cuMemGetInfo_v2(&available, &total);
		expect("nvmlDeviceGetMemoryInfo", nvmlDeviceGetMemoryInfo(device, &first), 0);
		expect("nvmlDeviceGetMemoryInfo_v2", nvmlDeviceGetMemoryInfo_v2(device, &second),
		       0);
		if (left() == available)
			break;
	}
	cuDeviceTotalMem_v2(&device_total, 0);
	expect(step, total, 4 * GIB);
	expect(step, device_total, total);
	expect(step, first.total, total);
	expect(step, first.free, available);
	expect(step, first.used, total - available);
	expect(step, second.total, total);
	expect(step, second.reserved, 0);
	expect(step, second.free, available);
	expect(step, second.used, total - available);
}

/* --- lists ------------------------------------------------------------------------------------ */

struct entry {
	unsigned int pid;
	unsigned long long bytes;
};

static const struct list {
	const char *name;
	list_function *function;
	size_t stride;
	int compute;
} lists[] = {
#define LIST(name, version, compute)                                                               \
	{                                                                                          \
#name, (list_function *)name, sizeof(nvmlProcessInfo_##version##_t), compute       \
	}
    LIST(nvmlDeviceGetComputeRunningProcesses, v1, 1),
    LIST(nvmlDeviceGetComputeRunningProcesses_v2, v2, 1),
    LIST(nvmlDeviceGetComputeRunningProcesses_v3, v2, 1),
    LIST(nvmlDeviceGetGraphicsRunningProcesses, v1, 0),
    LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, v2, 0),
    LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, v2, 0),
    LIST(nvmlDeviceGetMPSComputeRunningProcesses, v1, 0),
    LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, v2, 0),
    LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, v2, 0),
};

static unsigned int read_list(const struct list *list, struct entry *entries)
{
	static unsigned char space[MANY * sizeof(nvmlProcessDetail_v1_t)];
	unsigned int count = MANY;

	expect(list->name, (unsigned int)list->function(device, &count, space), NVML_SUCCESS);
	for (unsigned int i = 0; i < count; i++) {
		memcpy(&entries[i].pid, space + i * list->stride, sizeof(entries[i].pid));
		memcpy(&entries[i].bytes, space + i * list->stride + 8, sizeof(entries[i].bytes));
	}
	return count;
}

/* The list has exactly these processes, each with at least these bytes. A pid of 0 is no entry. */
static void holds(const char *what, const struct entry *entries, unsigned int count,
                  const struct entry wanted[2])
{
	unsigned int number = (wanted[0].pid != 0) + (wanted[1].pid != 0);

	if (count != number)
		complain("%s: %u entries, expected %u", what, count, number);
	for (unsigned int i = 0; i < count; i++) {
		const struct entry *e = &entries[i];
		const struct entry *w = e->pid == wanted[0].pid ? &wanted[0] : &wanted[1];

		if (e->pid != w->pid || e->bytes < w->bytes || e->bytes > 4 * GIB)
			complain("%s: process %u with %llu bytes", what, e->pid, e->bytes);
	}
}

static void protocol(const struct list *list, unsigned int members)
{
	unsigned char space[MANY * sizeof(nvmlProcessDetail_v1_t)];
	unsigned int count = 0, number = list->compute ? members : 0;

	expect(list->name, (unsigned int)list->function(device, &count, NULL),
	       number ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
	expect(list->name, count, number);
	if (number) {
		count = number - 1;
		memset(space, 0x77, sizeof(space));
		expect(list->name, (unsigned int)list->function(device, &count, space),
		       NVML_ERROR_INSUFFICIENT_SIZE);
		expect(list->name, count, number);
		expect(list->name, space[(number - 1) * list->stride], 0x77);
	}
	count = number;
	memset(space, 0x77, sizeof(space));
	expect(list->name, (unsigned int)list->function(device, &count, space), NVML_SUCCESS);
	expect(list->name, count, number);
	expect(list->name, space[number * list->stride], 0x77);
	if (list->compute) { /* the simulation ignores the arrays of an empty list */
		count = MANY;
		expect(list->name, (unsigned int)list->function(device, &count, NULL),
		       NVML_ERROR_INVALID_ARGUMENT);
	}
	expect(list->name, (unsigned int)list->function(device, NULL, NULL),
	       NVML_ERROR_INVALID_ARGUMENT);
}

static void details(const struct entry wanted[2], unsigned int members)
{
	static const struct entry none[2];
	nvmlProcessDetail_v1_t space[MANY];
	nvmlProcessDetailList_v1_t list = {.version = NVML_PROCESS_DETAIL_LIST_V1};
	struct entry entries[MANY];

	for (list.mode = 0; list.mode <= NVML_PROCESS_MODE_MPS; list.mode++) {
		int compute = list.mode == NVML_PROCESS_MODE_COMPUTE;

		list.numProcArrayEntries = 0;
		list.procArray = NULL;
		expect("detail list without room",
		       (unsigned int)nvmlDeviceGetRunningProcessDetailList(device, &list),
		       compute && members ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
		expect("detail list's length", list.numProcArrayEntries, compute ? members : 0);
		list.numProcArrayEntries = MANY;
		list.procArray = space;
		expect("detail list",
		       (unsigned int)nvmlDeviceGetRunningProcessDetailList(device, &list), 0);
		for (unsigned int i = 0; i < list.numProcArrayEntries; i++)
			entries[i] = (struct entry){space[i].pid, space[i].usedGpuMemory};
		holds("detail list", entries, list.numProcArrayEntries, compute ? wanted : none);
	}
	expect("detail list of a mode that there is not",
	       (unsigned int)nvmlDeviceGetRunningProcessDetailList(device, &list),
	       NVML_ERROR_INVALID_ARGUMENT);
	list.mode = NVML_PROCESS_MODE_COMPUTE;
	list.version = 1;
	expect("detail list of a wrong version",
	       (unsigned int)nvmlDeviceGetRunningProcessDetailList(device, &list),
	       NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	expect("detail list of NULL",
	       (unsigned int)nvmlDeviceGetRunningProcessDetailList(device, NULL),
	       NVML_ERROR_INVALID_ARGUMENT);
}

/* Only these processes may be busy; on a card perhaps none is. */
static void busy(const struct entry wanted[2])
{
	nvmlProcessUtilizationSample_t samples[MANY];
	nvmlProcessUtilizationInfo_v1_t infos[MANY];
	nvmlProcessesUtilizationInfo_v1_t info = {.version = NVML_PROCESSES_UTILIZATION_INFO_V1,
	                                          .processSamplesCount = MANY,
	                                          .procUtilArray = infos};
	unsigned int count = 0;

	expect("utilization of NULL",
	       (unsigned int)nvmlDeviceGetProcessUtilization(device, NULL, &count, 0),
	       NVML_ERROR_INSUFFICIENT_SIZE);
	count = MANY;
	if (nvmlDeviceGetProcessUtilization(device, samples, &count, 0) != NVML_SUCCESS)
		count = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (samples[i].pid != wanted[0].pid && samples[i].pid != wanted[1].pid)
			complain("utilization of process %u", samples[i].pid);
	}
	if (nvmlDeviceGetProcessesUtilizationInfo(device, &info) != NVML_SUCCESS)
		info.processSamplesCount = 0;
	for (unsigned int i = 0; i < info.processSamplesCount; i++) {
		if (infos[i].pid != wanted[0].pid && infos[i].pid != wanted[1].pid)
			complain("utilization info of process %u", infos[i].pid);
	}
	if (getenv("FAKECUDA_STATE") && !getenv("FAKECUDA_NVML_LISTS") &&
	    (count != 2 || info.processSamplesCount != 2))
		complain("%u and %u are busy, expected 2", count, info.processSamplesCount);
	info.version = 0;
	expect("utilization info of a wrong version",
	       (unsigned int)nvmlDeviceGetProcessesUtilizationInfo(device, &info),
	       NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

static void all_lists(const struct entry wanted[2], unsigned int members)
{
	static const struct entry none[2];
	struct entry entries[MANY];

	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		holds(lists[i].name, entries, read_list(&lists[i], entries),
		      lists[i].compute ? wanted : none);
		protocol(&lists[i], members);
	}
	details(wanted, members);
}

/* Linked and looked-up names of NVML lead to the interceptor, others to NVML. */
static void routes(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	Dl_info info;

	if (!library) {
		complain("%s", dlerror());
		return;
	}
	if (dlsym(library, "nvmlDeviceGetMemoryInfo_v2") != (void *)nvmlDeviceGetMemoryInfo_v2 ||
	    dlsym(library, "nvmlDeviceGetMemoryInfo") != (void *)nvmlDeviceGetMemoryInfo)
		complain("dlsym finds another function than the one that is linked");
	if (!dladdr((void *)nvmlDeviceGetMemoryInfo_v2, &info) ||
	    !strstr(info.dli_fname, "libgpuslice"))
		complain("a linked function of NVML is not ours");
	if (!dladdr(dlsym(library, "nvmlDeviceGetCount_v2"), &info) ||
	    !strstr(info.dli_fname, "libnvidia-ml"))
		complain("a function that is not hooked is not NVML's");
	if (dlsym(library, "nvmlNoSuchFunction") || !dlerror())
		complain("a name that does not exist was found, or dlerror() forgot it");
	dlclose(library);
}

static void versions(void)
{
	nvmlMemory_v2_t memory = {.version = 1, .total = 7, .free = 7};
	nvmlMemory_t first;

	expect("memory of a wrong version",
	       (unsigned int)nvmlDeviceGetMemoryInfo_v2(device, &memory),
	       NVML_ERROR_FUNCTION_NOT_FOUND);
	expect("total of a wrong version", memory.total, 7);
	expect("free of a wrong version", memory.free, 7);
	expect("memory of NULL", (unsigned int)nvmlDeviceGetMemoryInfo(device, NULL),
	       NVML_ERROR_INVALID_ARGUMENT);
	expect("memory v2 of NULL", (unsigned int)nvmlDeviceGetMemoryInfo_v2(device, NULL),
	       NVML_ERROR_INVALID_ARGUMENT);
	expect("memory of no device", (unsigned int)nvmlDeviceGetMemoryInfo(NULL, &first),
	       NVML_ERROR_INVALID_ARGUMENT);
}

static int prepare(CUdeviceptr *pointer, size_t bytes)
{
	CUcontext context;

	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	       cuMemAlloc_v2(pointer, bytes);
}

static int member(int out, int in)
{
	CUdeviceptr pointer;
	char c;

	if (prepare(&pointer, 512 * MIB))
		return 1;
	agree("in the second process");
	return write(out, wrong ? "w" : "x", 1) == 1 && read(in, &c, 1) == 1 ? wrong : 1;
}

static int show(void)
{
	nvmlMemory_v2_t second = {.version = NVML_MEMORY_V2};
	struct entry entries[MANY];
	unsigned int count;
	nvmlMemory_t first;

	if (nvmlDeviceGetMemoryInfo(device, &first) || nvmlDeviceGetMemoryInfo_v2(device, &second))
		return 1;
	printf("total %llu free %llu used %llu, v2 total %llu reserved %llu free %llu used %llu, "
	       "processes",
	       first.total, first.free, first.used, second.total, second.reserved, second.free,
	       second.used);
	count = read_list(&lists[0], entries);
	for (unsigned int i = 0; i < count; i++)
		printf(" %u", entries[i].pid);
	printf(", bytes");
	for (unsigned int i = 0; i < count; i++)
		printf(" %llu", entries[i].bytes);
	putchar('\n');
	return wrong;
}

int main(int argc, char **argv)
{
	struct entry wanted[2] = {{(unsigned int)getpid(), 256 * MIB}, {0, 512 * MIB}};
	unsigned long long before;
	int from_member[2], to_member[2];
	CUdeviceptr pointer;
	char out[16], in[16], c = 0;
	pid_t pid;

	if (argc < 2 || nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) {
		printf("NVML does not start\n");
		return 1;
	}
	if (strcmp(argv[1], "show") == 0)
		return show();
	if (strcmp(argv[1], "member") == 0 && argc == 4)
		return member(atoi(argv[2]), atoi(argv[3]));

	routes();
	versions();
	if (prepare(&pointer, 256 * MIB))
		return 1;
	agree("alone");
	before = left();
	if (pipe(from_member) || pipe(to_member))
		return 1;
	pid = fork();
	if (pid == 0) {
		close(from_member[0]);
		snprintf(out, sizeof(out), "%d", from_member[1]);
		snprintf(in, sizeof(in), "%d", to_member[0]);
		execl("/proc/self/exe", argv[0], "member", out, in, (char *)NULL);
		_exit(127);
	}
	close(from_member[1]);
	if (read(from_member[0], &c, 1) != 1 || c != 'x')
		complain("the second process did not say that all is well");
	agree("beside the second process");
	if (before - left() < 512 * MIB)
		complain("what the second process holds is not shown to the first");
	wanted[1].pid = (unsigned int)pid;
	if (argc > 2 && atoi(argv[2]) == pid)
		complain("the stranger is one of us");
	all_lists(wanted, 2);
	busy(wanted);

	/* At once, before its lane is settled. */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	wanted[1].pid = 0;
	all_lists(wanted, 1);
	expect("free", cuMemFree_v2(pointer), CUDA_SUCCESS);
	agree("after free");
	nvmlShutdown();
	if (!wrong)
		printf("NVML shows the slice\n");
	return wrong;
}
