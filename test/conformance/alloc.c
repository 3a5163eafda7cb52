/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

static void refusals(void)
{
	CUdeviceptr pointer, large;
	CUdeviceptr_v1 old;
	unsigned int old_free, old_total;
	size_t available, total;
	void *host;

	MUST(cuMemGetInfo_v2(&available, &total));
	say_result("alloc.zero", cuMemAlloc_v2(&pointer, 0));
	say_result("alloc.null", cuMemAlloc_v2(NULL, 4096));
	say_result("alloc.2^64-6", cuMemAlloc_v2(&pointer, (size_t)-6));
	say_result("alloc.total+1", cuMemAlloc_v2(&pointer, total + 1));
	say_result("alloc.total", cuMemAlloc_v2(&pointer, total));
	say_result("alloc_v1", cuMemAlloc(&old, 4096));
	say_result("free_v1", cuMemFree(4096));
	say_result("meminfo_v1", cuMemGetInfo(&old_free, &old_total));

	MUST(cuMemAlloc_v2(&large, 4 * MiB));
	MUST(cuMemHostAlloc(&host, 4096, 0));
	say_result("free.null", cuMemFree_v2(0));
	say_result("free.unknown", cuMemFree_v2(0x1000));
	say_result("free.inside", cuMemFree_v2(large + 512));
	say_result("free.host", cuMemFree_v2((uintptr_t)host));
	say_result("free.first", cuMemFree_v2(large));
	say_result("free.second", cuMemFree_v2(large));
	MUST(cuMemFreeHost(host));
}

static void without_context(CUcontext context)
{
	CUdeviceptr pointer, other;

	MUST(cuMemAlloc_v2(&pointer, 4 * MiB));
	MUST(cuCtxSetCurrent(NULL));
	say_result("no_context.alloc", cuMemAlloc_v2(&other, 4 * MiB));
	say_result("no_context.free", cuMemFree_v2(pointer));
	MUST(cuCtxSetCurrent(context));
	cuMemFree_v2(pointer);
}

/* Single allocations on an empty card. */
static void granularity(void)
{
	static const size_t sizes[] = {
	    1,       100 * KiB,   1 * MiB, 1 * MiB + 1,  2 * MiB - 1,
	    2 * MiB, 2 * MiB + 1, 4 * MiB, 32 * MiB + 1, 1 * GiB + 1,
	};

	for (size_t i = 0; i < COUNT(sizes); i++) {
		char text[32];
		CUdeviceptr pointer, base;
		size_t range;
		long long before = held(), during;

		MUST(cuMemAlloc_v2(&pointer, sizes[i]));
		during = held();
		MUST(cuMemGetAddressRange_v2(&base, &range, pointer));
		MUST(cuMemFree_v2(pointer));
		printf("one.%s: held %lld, range %zu, left %lld\n", size_text(text, sizes[i]),
		       during - before, range, held() - before);
	}
}

/* At most 64 MiB together. */
static void packing(void)
{
	static const size_t sizes[] = {
	    1,         512,       513,       4 * KiB, 20 * KiB,    100 * KiB,
	    200 * KiB, 300 * KiB, 768 * KiB, 1 * MiB, 1 * MiB + 1,
	};
	static CUdeviceptr pointers[4096];

	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t count = 64 * MiB / sizes[i] < 1000 ? 64 * MiB / sizes[i] : 1000;
		unsigned long long alignment = 2 * MiB;
		char text[32];
		long long before = held(), during;

		for (size_t k = 0; k < count; k++) {
			MUST(cuMemAlloc_v2(&pointers[k], sizes[i]));
			while (pointers[k] % alignment)
				alignment /= 2;
		}
		during = held();
		for (size_t k = 0; k < count; k++)
			MUST(cuMemFree_v2(pointers[k]));
		printf("many.%s: count %zu, held %lld, aligned %llu, left %lld\n",
		       size_text(text, sizes[i]), count, during - before, alignment,
		       held() - before);
	}
}

/* 20 pieces fit in a block; when is it freed? */
static void one_keeps_the_block(void)
{
	CUdeviceptr pointers[20];
	long long before = held();

	for (size_t i = 0; i < COUNT(pointers); i++)
		MUST(cuMemAlloc_v2(&pointers[i], 100 * KiB));
	for (size_t i = 1; i < COUNT(pointers); i++)
		MUST(cuMemFree_v2(pointers[i]));
	printf("block.one_left: %lld\n", held() - before);
	MUST(cuMemFree_v2(pointers[0]));
	printf("block.none_left: %lld\n", held() - before);
}

static void mixed_sizes(void)
{
	static const size_t sizes[] = {1, 4 * KiB, 100 * KiB, 512 * KiB, 1 * MiB};
	CUdeviceptr pointers[COUNT(sizes)];
	long long before = held();

	for (size_t i = 0; i < COUNT(sizes); i++) {
		char text[32];

		MUST(cuMemAlloc_v2(&pointers[i], sizes[i]));
		printf("mixed.with_%s: %lld\n", size_text(text, sizes[i]), held() - before);
	}
	for (size_t i = 0; i < COUNT(sizes); i++)
		MUST(cuMemFree_v2(pointers[i]));
}

static void pitch(void)
{
	static const struct {
		size_t width, height;
		unsigned int element;
	} shapes[] = {{1, 1, 4},        {100, 100, 4},   {512, 1000, 4},   {513, 1000, 8},
	              {4000, 1000, 16}, {4097, 1024, 4}, {100000, 100, 4}, {1, 100000, 4}};
	CUdeviceptr pointer;
	size_t stride;

	for (size_t i = 0; i < COUNT(shapes); i++) {
		long long before = held();

		MUST(cuMemAllocPitch_v2(&pointer, &stride, shapes[i].width, shapes[i].height,
		                        shapes[i].element));
		printf("pitch.%zux%zu.%u: pitch %zu, held %lld\n", shapes[i].width,
		       shapes[i].height, shapes[i].element, stride, held() - before);
		MUST(cuMemFree_v2(pointer));
	}
	say_result("pitch.element_3", cuMemAllocPitch_v2(&pointer, &stride, 100, 100, 3));
	say_result("pitch.zero_width", cuMemAllocPitch_v2(&pointer, &stride, 0, 100, 4));
	say_result("pitch.zero_height", cuMemAllocPitch_v2(&pointer, &stride, 100, 0, 4));
	say_result("pitch.overflow",
	           cuMemAllocPitch_v2(&pointer, &stride, (size_t)1 << 40, (size_t)1 << 40, 4));
}

static void managed(void)
{
	CUdeviceptr pointer;
	long long before = held();

	MUST(cuMemAllocManaged(&pointer, 64 * MiB, 1));
	printf("managed.untouched: %lld\n", held() - before);
	MUST(cuMemsetD8_v2(pointer, 0, 64 * MiB));
	MUST(cuCtxSynchronize());
	printf("managed.touched: %lld\n", held() - before);
	MUST(cuMemFree_v2(pointer));
	printf("managed.freed: %lld\n", held() - before);
	say_result("managed.zero", cuMemAllocManaged(&pointer, 0, 1));
	say_result("managed.no_flags", cuMemAllocManaged(&pointer, 4096, 0));
}

static void async_pointer(void)
{
	CUdeviceptr pointer;

	MUST(cuMemAllocAsync(&pointer, 4 * MiB, NULL));
	say_result("free.async_pointer", cuMemFree_v2(pointer));
	MUST(cuMemAlloc_v2(&pointer, 4 * MiB));
	say_result("free_async.sync_pointer", cuMemFreeAsync(pointer, NULL));
	cuMemFree_v2(pointer);
}

/* Last, as the driver may crash. */
static void null_outputs(void)
{
	size_t available, total;

	say_result("meminfo.null_free", cuMemGetInfo_v2(NULL, &total));
	say_result("meminfo.null_total", cuMemGetInfo_v2(&available, NULL));
}

int main(void)
{
	CUcontext context = start_with_context();

	refusals();
	without_context(context);
	granularity();
	packing();
	one_keeps_the_block();
	mixed_sizes();
	pitch();
	managed();
	async_pointer();
	null_outputs();
	return 0;
}
