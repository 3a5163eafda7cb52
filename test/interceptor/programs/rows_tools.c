/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include "nvml_abi.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of 10 ms: the enforcer samples driver truth each second, or later on a busy machine. */
#define LOOKS 2000

CUcontext own_context;

static size_t base;
static bool wrong;
static char seen[512];

static void add(const char *format, va_list arguments)
{
	size_t length = strlen(seen);

	if (length && length < sizeof(seen) - 2)
		length += (size_t)snprintf(seen + length, sizeof(seen) - length, "; ");
	vsnprintf(seen + length, sizeof(seen) - length, format, arguments);
}

void failed(const char *format, ...)
{
	va_list arguments;

	if (!wrong)
		seen[0] = '\0';
	wrong = true;
	va_start(arguments, format);
	add(format, arguments);
	va_end(arguments);
}

void report(const char *format, ...)
{
	va_list arguments;

	if (wrong)
		return;
	va_start(arguments, format);
	add(format, arguments);
	va_end(arguments);
}

int verdict(const char *name, const char *way)
{
	printf("%s %s %s: %s\n", wrong ? "FAIL" : "PASS", name, way, seen);
	return wrong;
}

void expect(const char *step, CUresult result, CUresult wanted)
{
	const char *got = "?", *want = "?";

	if (result == wanted)
		return;
	cuGetErrorName(result, &got);
	cuGetErrorName(wanted, &want);
	failed("%s answers %s, not %s", step, got, want);
}

void *driver_symbol(const char *name)
{
	static void *library;

	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	return library ? dlsym(library, name) : NULL;
}

bool simulated(void)
{
	char name[128] = "";

	OK(cuDeviceGetName(name, sizeof(name), 0));
	return strstr(name, "(simulated)") != NULL;
}

size_t left(void)
{
	size_t available = 0, total = 0;

	OK(cuMemGetInfo_v2(&available, &total));
	return available;
}

size_t quota(void)
{
	size_t bytes = 0;

	OK(cuDeviceTotalMem_v2(&bytes, 0));
	return bytes;
}

bool truth(size_t *bytes)
{
	static nvmlReturn_t (*processes)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
	static nvmlDevice_t device;
	nvmlProcessInfo_v2_t list[64];
	unsigned int count = 64;

	if (!processes) {
		void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
		nvmlReturn_t (*init)(void) = library ? dlsym(library, "nvmlInit_v2") : NULL;
		nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *) =
		    library ? dlsym(library, "nvmlDeviceGetHandleByUUID") : NULL;
		char text[48];
		CUuuid uuid;
		size_t at;

		if (!init || !by_uuid || init() || cuDeviceGetUuid_v2(&uuid, 0))
			return false;
		at = (size_t)sprintf(text, "GPU-");
		for (unsigned i = 0; i < 16; i++)
			at += (size_t)sprintf(text + at, "%s%02x",
			                      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			                      uuid.bytes[i]);
		if (by_uuid(text, &device))
			return false;
		processes = (__typeof__(processes))dlsym(library,
		                                         "nvmlDeviceGetComputeRunningProcesses_v3");
	}
	if (!processes || processes(device, &count, list))
		return false;
	*bytes = 0;
	for (unsigned int i = 0; i < count; i++)
		*bytes += list[i].usedGpuMemory;
	return true;
}

void settle(void)
{
	size_t held;

	/* The row before this one may have left overhead that the next sample corrects. */
	for (int looks = 0; looks < LOOKS && truth(&held) && quota() - left() != held; looks++)
		usleep(10000);
	base = left();
}

void start(void)
{
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&own_context, 0) ||
	    cuCtxSetCurrent(own_context)) {
		failed("no context");
		exit(verdict("?", "?"));
	}
}

void begin(void)
{
	start();
	settle();
}

void observe(void)
{
	if (cuInit(0) || cuCtxCreate_v2(&own_context, 0, 0)) {
		failed("no context");
		exit(verdict("?", "?"));
	}
	settle();
}

static void look(const char *step, long long bytes, long long slack, bool late)
{
	long long used;

	for (int looks = 0;; looks++) {
		used = (long long)base - (long long)left();
		if (llabs(used - bytes) <= slack)
			return;
		if (looks == LOOKS || (used < bytes && !late))
			break;
		usleep(10000);
	}
	failed("%s: %lld bytes are charged, %lld are expected", step, used, bytes);
}

static long long usual_slack(void)
{
	return simulated() ? 0 : 16 * (long long)MIB;
}

void charged(const char *step, long long bytes)
{
	look(step, bytes, usual_slack(), false);
}

void charged_late(const char *step, long long bytes)
{
	look(step, bytes, usual_slack(), true);
}

void charged_about(const char *step, long long bytes, long long slack)
{
	look(step, bytes, slack, false);
}

static void compare(const char *step, long long slack, bool late)
{
	long long used, more;
	size_t held;

	for (int looks = 0; truth(&held); looks++) {
		used = (long long)quota() - (long long)left();
		more = used - (long long)held;
		/* A full slice shows nothing free, however much it holds beyond that. */
		if (llabs(more) <= slack || (more < 0 && !left()))
			return;
		if (looks == LOOKS || (more < 0 && !late)) {
			failed("%s: %lld bytes are charged, and %zu held", step, used, held);
			return;
		}
		usleep(10000);
	}
}

void agrees(const char *step, long long slack)
{
	compare(step, slack, false);
}

void agrees_late(const char *step, long long slack)
{
	compare(step, slack, true);
}

#define SAMPLE (64 * KIB)
#define WRITTEN 0x5a

static void read_back(const char *step, CUdeviceptr pointer, size_t bytes)
{
	static unsigned char text[SAMPLE];
	size_t length = bytes < SAMPLE ? bytes : SAMPLE;

	for (int end = 0; end < 2; end++) {
		memset(text, 0, length);
		expect(step, cuMemcpyDtoH_v2(text, pointer + (end ? bytes - length : 0), length),
		       CUDA_SUCCESS);
		for (size_t i = 0; i < length; i++) {
			if (text[i] != WRITTEN) {
				failed("%s: a byte is %#x, not %#x", step, text[i], WRITTEN);
				return;
			}
		}
	}
}

void holds(const char *step, CUdeviceptr pointer, size_t bytes)
{
	if (!simulated())
		read_back(step, pointer, bytes);
}

void usable(const char *step, CUdeviceptr pointer, size_t bytes)
{
	size_t length = bytes < SAMPLE ? bytes : SAMPLE;

	expect(step, cuMemsetD8_v2(pointer, WRITTEN, length), CUDA_SUCCESS);
	expect(step, cuMemsetD8_v2(pointer + bytes - length, WRITTEN, length), CUDA_SUCCESS);
	read_back(step, pointer, bytes);
}

CUdeviceptr fill(size_t keep)
{
	CUdeviceptr pointer = 0;
	size_t room = left();

	if (room < keep + 2 * MIB)
		failed("only %zu bytes are free", room);
	else
		expect("to fill the quota",
		       cuMemAlloc_v2(&pointer, (room - keep) / (2 * MIB) * (2 * MIB)),
		       CUDA_SUCCESS);
	return pointer;
}

static long long filled;

CUdeviceptr fill_but(size_t keep)
{
	size_t room = left();
	CUdeviceptr pointer = fill(keep);

	filled = (long long)(room - left());
	return pointer;
}

void give_room(CUdeviceptr pointer)
{
	OK(cuMemFree_v2(pointer));
	filled = 0;
}

void charged_beside(const char *step, long long bytes, long long slack)
{
	charged_about(step, filled + bytes, slack);
}

size_t part(double of)
{
	return (size_t)((double)left() * of) / (32 * MIB) * (32 * MIB);
}

void refused_beyond(const struct kind *kind)
{
	size_t room = left(), half = part(0.5), most = part(0.75);
	uint64_t first = 0, second = 0;

	OUT_OF_MEMORY("more than there is left", kind->make(room + 64 * MIB, &first));
	charged("after a refusal", 0);
	expect("half of what is left", kind->make(half, &first), CUDA_SUCCESS);
	if (room - left() < half)
		failed("half of what is left: only %zu bytes are charged", room - left());
	OUT_OF_MEMORY("more than fits now", kind->make(most, &second));
	expect("to give it back", kind->drop(first), CUDA_SUCCESS);
	charged("given back after a refusal", 0);
	expect("what did not fit", kind->make(most, &second), CUDA_SUCCESS);
	expect("to give that back", kind->drop(second), CUDA_SUCCESS);
	charged("at the end", 0);
	report("%zu MiB free: %zu refused, and %zu beside %zu; later granted", room / MIB,
	       room / MIB + 64, most / MIB, half / MIB);
}

CUmemAllocationProp on_device(int handle_types)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .requestedHandleTypes = handle_types,
	                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

void access_to(CUdeviceptr address, size_t bytes)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = 3};

	OK(cuMemSetAccess(address, bytes, &access, 1));
}
