// SPDX-License-Identifier: Apache-2.0
//
// runtime KIND within|beyond: memory as programs of the CUDA runtime take it, in a slice of 2 GiB or more that is
// otherwise empty. `within` takes some and looks what is charged; `beyond` asks for more than the quota has left.
// Prints a line that begins with PASS or FAIL, and exits 0 if it is PASS.
//
//   runtime list       the kinds, one a line
//
//   nvcc -arch=native -cudart static|shared -o runtime test/gpu/runtime.cu test/gpu/runtime_array.cu
#include "runtime.h"

#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const size_t MIB = 1 << 20;

// What a driver may hold of its own, more or less than at first.
static const long long SLACK = 16 << 20;
// Seconds in which driver truth has looked twice.
static const double PATIENCE = 3;

static char wrong[1024];
static size_t base; // what was free at first

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...)
{
	size_t length = strlen(wrong);
	va_list arguments;

	if (length && length < sizeof(wrong) - 2)
		length += snprintf(wrong + length, sizeof(wrong) - length, "; ");
	va_start(arguments, format);
	vsnprintf(wrong + length, sizeof(wrong) - length, format, arguments);
	va_end(arguments);
}

static void expect(const char *step, cudaError_t result, cudaError_t wanted)
{
	if (result != wanted)
		failed("%s answers %s, not %s", step, cudaGetErrorName(result), cudaGetErrorName(wanted));
	(void)cudaGetLastError(); // it is told once
}

#define OK(call) expect(#call, call, cudaSuccess)
#define REFUSED(step, call) expect(step, call, cudaErrorMemoryAllocation)

static size_t left()
{
	size_t available = 0, total = 0;

	OK(cudaMemGetInfo(&available, &total));
	return available;
}

static double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// So much is charged: too little at no time, too much for no longer than driver truth needs.
static void charged(const char *step, long long bytes)
{
	double end = now() + PATIENCE;
	long long used;

	do {
		used = (long long)base - (long long)left();
		if (llabs(used - bytes) <= SLACK)
			return;
		usleep(10000);
	} while (used > bytes && now() < end);
	failed("%s: %lld bytes are charged, %lld are expected", step, used, bytes);
}

static size_t blocks(size_t bytes)
{
	return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

// --- memory whose size can be chosen ---

// `takes` is what the card gives for it.
struct made {
	void *pointer;
	cudaArray_t array;
	size_t takes;
};

static cudaError_t make_linear(size_t bytes, made *m)
{
	m->takes = blocks(bytes);
	return cudaMalloc(&m->pointer, bytes);
}

static cudaError_t drop_linear(made *m)
{
	return cudaFree(m->pointer);
}

// Rows of 60,001 bytes, which the driver widens.
static cudaError_t make_pitch(size_t bytes, made *m)
{
	size_t pitch = 0, rows = bytes / 60001;
	cudaError_t result = cudaMallocPitch(&m->pointer, &pitch, 60001, rows);

	m->takes = blocks(pitch * rows);
	return result;
}

static cudaError_t make_3d(size_t bytes, made *m)
{
	cudaPitchedPtr pointer = {};
	size_t depth = bytes / 60001 / 100;
	cudaError_t result = cudaMalloc3D(&pointer, make_cudaExtent(60001, 100, depth));

	m->pointer = pointer.ptr;
	m->takes = blocks(pointer.pitch * 100 * depth);
	return result;
}

static cudaError_t make_managed(size_t bytes, made *m)
{
	m->takes = blocks(bytes);
	return cudaMallocManaged(&m->pointer, bytes);
}

static cudaError_t make_async(size_t bytes, made *m)
{
	m->takes = (bytes + 32 * MIB - 1) / (32 * MIB) * (32 * MIB);
	return cudaMallocAsync(&m->pointer, bytes, (cudaStream_t)0);
}

static cudaError_t drop_async(made *m)
{
	cudaError_t result = cudaFreeAsync(m->pointer, (cudaStream_t)0);

	return result == cudaSuccess ? cudaDeviceSynchronize() : result;
}

// Rows of 64 KiB.
static cudaError_t make_array(size_t bytes, made *m)
{
	cudaChannelFormatDesc texel = cudaCreateChannelDesc<float>();

	m->takes = blocks(bytes / (64 << 10) * (64 << 10));
	return cudaMallocArray(&m->array, &texel, 16384, bytes / (64 << 10));
}

// Slices of 4 MiB. The driver makes whole groups of them: 25 take as much of the card as 32 (H100, 580.159.04).
static cudaError_t make_array_3d(size_t bytes, made *m)
{
	cudaChannelFormatDesc texel = cudaCreateChannelDesc<float>();
	size_t slices = bytes / (4 * MIB);

	m->takes = (slices + 31) / 32 * 32 * 4 * MIB;
	return cudaMalloc3DArray(&m->array, &texel, make_cudaExtent(1024, 1024, slices));
}

static cudaError_t drop_array(made *m)
{
	return cudaFreeArray(m->array);
}

struct kind {
	const char *name;
	cudaError_t (*make)(size_t bytes, made *m);
	cudaError_t (*drop)(made *m);
};

static const kind kinds[] = {{"cudaMalloc", make_linear, drop_linear},
                             {"cudaMallocPitch", make_pitch, drop_linear},
                             {"cudaMalloc3D", make_3d, drop_linear},
                             {"cudaMallocManaged", make_managed, drop_linear},
                             {"cudaMallocAsync", make_async, drop_async},
                             {"cudaMallocArray", make_array, drop_array},
                             {"cudaMalloc3DArray", make_array_3d, drop_array}};

static void memory_within(const kind *k)
{
	made first = {}, second = {};

	OK(k->make(100 * MIB, &first));
	charged("100 MiB", first.takes);
	if (first.pointer) {
		OK(cudaMemset(first.pointer, 1, 64 << 10));
		OK(cudaDeviceSynchronize());
	}
	OK(k->make(256 * MIB, &second));
	// A pool's steps are of all that it holds.
	charged("256 MiB more", (long long)(first.takes + second.takes));
	OK(k->drop(&first));
	OK(k->drop(&second));
	charged("freed", 0);
}

static void memory_beyond(const kind *k)
{
	made first = {}, second = {};
	size_t half = left() / 2 / (32 * MIB) * (32 * MIB), most = half + half / 2;

	REFUSED("more than there is left", k->make(left() + 64 * MIB, &first));
	charged("after a refusal", 0);
	OK(k->make(half, &first));
	REFUSED("more beside it than fits", k->make(most, &second));
	OK(k->drop(&first));
	charged("given back after a refusal", 0);
	OK(k->make(most, &second));
	OK(k->drop(&second));
	charged("at the end", 0);
}

// --- code ---

// Its frame is as large as the array, whose every byte may be asked for.
template <int BYTES> __global__ void frame(unsigned *out, unsigned at)
{
	volatile char bytes[BYTES];

	for (unsigned i = 0; i < BYTES; i += 512)
		bytes[(i + at) % BYTES] = (char)i;
	*out = bytes[at % BYTES] + bytes[(at * 7) % BYTES];
}

// What the first launch takes, by what the runtime says of the frame: local memory is taken for all threads that the
// card can run at a time, beyond 1 KiB of each.
static long long stacks(const void *function)
{
	cudaFuncAttributes attributes = {};
	int processors = 0, threads = 0;

	OK(cudaFuncGetAttributes(&attributes, function));
	OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
	OK(cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
	return ((long long)attributes.localSizeBytes - 1024) * processors * threads;
}

template <int BYTES> static cudaError_t launch(unsigned *out)
{
	frame<BYTES><<<1, 1>>>(out, 3);
	cudaError_t result = cudaGetLastError(), later = cudaDeviceSynchronize();

	return result == cudaSuccess ? later : result;
}

static unsigned *place()
{
	unsigned *out = NULL;

	OK(cudaMalloc(&out, sizeof(*out)));
	return out;
}

static void frame_within()
{
	unsigned *out = place();
	long long small = stacks((const void *)frame<2048>), large = stacks((const void *)frame<4096>);

	charged("looked up", 0);
	OK(launch<2048>(out));
	charged("a frame of 2 KiB", small);
	OK(launch<4096>(out));
	charged("a frame of 4 KiB", large);
	OK(launch<2048>(out));
	charged("and the first again", large);
	OK(cudaDeviceSetLimit(cudaLimitStackSize, 1024));
	charged("the limit lowered", 0);
}

static void frame_beyond()
{
	unsigned *out = place();
	void *pointer = NULL;
	size_t room = left(), filled;

	REFUSED("a frame of 64 KiB", launch<65536>(out));
	charged("refused before it", 0);
	filled = room - (size_t)stacks((const void *)frame<4096>) + 64 * MIB;
	OK(cudaMalloc(&pointer, filled));
	REFUSED("a frame of 4 KiB", launch<4096>(out));
	charged("and this", (long long)blocks(filled));
	OK(launch<512>(out));
	OK(cudaFree(pointer));
	OK(launch<4096>(out));
	OK(cudaDeviceSetLimit(cudaLimitStackSize, 1024));
	charged("at the end", 0);
}

static void array_within()
{
	OK(use_array());
	charged("the first use of the code", (long long)ARRAY_BYTES);
	OK(use_array());
	charged("the second", (long long)ARRAY_BYTES);
}

// The driver cannot unload what it loaded at the first use, so the refused use stays charged: nothing is left.
static void array_beyond()
{
	void *pointer = NULL;
	size_t filled = (left() - ARRAY_BYTES + 64 * MIB) / (2 * MIB) * (2 * MIB);

	OK(cudaMalloc(&pointer, filled));
	REFUSED("the first use of the code", use_array());
	charged("held by the driver", (long long)base);
}

// The code is loaded with the context where CUDA_MODULE_LOADING=EAGER, which whoever starts this has set; the quota is
// such that the array fits or does not.
static int eager(bool fits)
{
	cudaError_t result = cudaFree(0);
	size_t available = 0, total = 0;

	if (result == cudaSuccess)
		result = cudaMemGetInfo(&available, &total);
	if (fits && result == cudaSuccess && total - available < ARRAY_BYTES)
		failed("only %zu bytes are charged", total - available);
	expect(fits ? "the first call" : "the first call, without room for the code", result,
	       fits ? cudaSuccess : cudaErrorMemoryAllocation);
	printf("%s eager %s%s%s\n", wrong[0] ? "FAIL" : "PASS", fits ? "within" : "beyond", wrong[0] ? ": " : "", wrong);
	return wrong[0] != '\0';
}

int main(int count, char **argument)
{
	const kind *found = NULL;
	bool within;

	if (count == 2 && strcmp(argument[1], "list") == 0) {
		for (const kind &k : kinds)
			puts(k.name);
		puts("frame\narray");
		return 0;
	}
	if (count != 3)
		return 64;
	within = strcmp(argument[2], "within") == 0;
	if (strcmp(argument[1], "eager") == 0)
		return eager(within);
	if (cudaFree(0) != cudaSuccess) {
		printf("FAIL %s: no context\n", argument[1]);
		return 1;
	}
	sleep(2); // what the context takes is known to driver truth
	base = left();
	for (const kind &k : kinds) {
		if (strcmp(k.name, argument[1]) == 0)
			found = &k;
	}
	if (found)
		within ? memory_within(found) : memory_beyond(found);
	else if (strcmp(argument[1], "frame") == 0)
		within ? frame_within() : frame_beyond();
	else if (strcmp(argument[1], "array") == 0)
		within ? array_within() : array_beyond();
	else
		return 64;
	printf("%s %s %s%s%s\n", wrong[0] ? "FAIL" : "PASS", argument[1], argument[2], wrong[0] ? ": " : "", wrong);
	return wrong[0] != '\0';
}
