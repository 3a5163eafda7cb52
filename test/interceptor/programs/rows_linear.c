/* SPDX-License-Identifier: Apache-2.0 */
/* Linear memory, and the oldest functions, with 32-bit addresses. */
#include "rows.h"

static CUresult make(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	CUresult result = cuMemAlloc_v2(&pointer, bytes);

	*made = pointer;
	return result;
}

static CUresult drop(uint64_t made)
{
	return cuMemFree_v2(made);
}

/* Four fit in a block of 2 MiB. */
static void small_within(void)
{
	CUdeviceptr pointer[64] = {0};

	for (unsigned i = 0; i < 64; i++)
		OK(cuMemAlloc_v2(&pointer[i], 512 * KIB));
	charged("64 of 512 KiB", 32 * MIB);
	usable("a small one", pointer[63], 512 * KIB);
	for (unsigned i = 0; i < 64; i += 2)
		OK(cuMemFree_v2(pointer[i]));
	charged("half of them freed, from every block", 32 * MIB);
	for (unsigned i = 1; i < 64; i += 2)
		OK(cuMemFreeAsync(pointer[i], NULL));
	OK(cuCtxSynchronize());
	charged("all freed", 0);
	report("64 of 512 KiB charge 16 blocks of 2 MiB, and 0 when they are freed");
}

static void small_beyond(void)
{
	CUdeviceptr rest, pointer[64] = {0};
	unsigned count = 0;
	CUresult result = CUDA_SUCCESS;

	rest = fill(32 * MIB);
	while (count < 64 && result == CUDA_SUCCESS) {
		result = cuMemAlloc_v2(&pointer[count], MIB);
		if (result == CUDA_SUCCESS)
			count++;
	}
	OUT_OF_MEMORY("small memory in a full slice", result);
	if (count == 0 || count > 34)
		failed("%u of 1 MiB fit in 32 MiB", count);
	if (count) {
		OK(cuMemFree_v2(pointer[--count]));
		OK(cuMemAlloc_v2(&pointer[count++], MIB));
	}
	for (unsigned i = 0; i < count; i++)
		OK(cuMemFree_v2(pointer[i]));
	OK(cuMemFree_v2(rest));
	charged("all freed", 0);
	report("%u of 1 MiB, then refused", count);
}

static void large_within(void)
{
	CUdeviceptr a = 0, b = 0;

	OK(cuMemAlloc_v2(&a, 64 * MIB + 1));
	charged("64 MiB and a byte", 66 * MIB);
	OK(cuMemAlloc_v2(&b, 3 * MIB));
	charged("3 MiB more", 70 * MIB);
	usable("64 MiB", a, 64 * MIB + 1);
	OK(cuMemFree_v2(a));
	charged("the first freed", 4 * MIB);
	OK(cuMemFreeAsync(b, NULL));
	OK(cuCtxSynchronize());
	charged("both freed", 0);
	report("64 MiB and a byte charge 66, 3 charge 4");
}

static void pitch_within(void)
{
	CUdeviceptr pointer = 0;
	size_t pitch = 0, bytes;

	OK(cuMemAllocPitch_v2(&pointer, &pitch, 10001, 6000, 4));
	bytes = (pitch * 6000 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
	charged("6000 rows of 10001 bytes", (long long)bytes);
	usable("pitched memory", pointer, pitch * 6000);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("6000 rows of 10001 bytes charge %zu", bytes);
}

static CUresult make_pitch(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	size_t pitch;
	CUresult result = cuMemAllocPitch_v2(&pointer, &pitch, 64 * KIB, bytes / (64 * KIB), 4);

	*made = pointer;
	return result;
}

#define ATTACH_GLOBAL 1

static void managed_within(void)
{
	CUdeviceptr pointer = 0;

	OK(cuMemAllocManaged(&pointer, 64 * MIB, ATTACH_GLOBAL));
	charged("64 MiB that nobody has touched", 64 * MIB);
	usable("managed memory", pointer, 64 * MIB);
	OK(cuCtxSynchronize());
	charged("64 MiB that the card has touched", 64 * MIB);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("64 MiB are charged, touched or not");
}

static CUresult make_managed(size_t bytes, uint64_t *made)
{
	CUdeviceptr pointer = 0;
	CUresult result = cuMemAllocManaged(&pointer, bytes, ATTACH_GLOBAL);

	*made = pointer;
	return result;
}

/* v1 functions: the driver refuses them linear memory in a context of the current API (driver
 * observation). Handles of arrays are pointers, so it need not refuse those. */
static CUresult make_plane(size_t bytes, CUarray *array)
{
	CUDA_ARRAY_DESCRIPTOR_v1 plane = {.Width = 16384,
	                                  .Height = (unsigned int)(bytes / (256 * KIB)),
	                                  .Format = CU_AD_FORMAT_FLOAT,
	                                  .NumChannels = 4};

	return cuArrayCreate(array, &plane);
}

static CUresult make_cube(size_t bytes, CUarray *array)
{
	CUDA_ARRAY3D_DESCRIPTOR_v1 cube = {.Width = 256,
	                                   .Height = 256,
	                                   .Depth = (unsigned int)(bytes / (256 * KIB)),
	                                   .Format = CU_AD_FORMAT_FLOAT,
	                                   .NumChannels = 1};

	return cuArray3DCreate(array, &cube);
}

static void granted_or_not(const char *step, CUresult result, const CUarray *array)
{
	if (result != CUDA_SUCCESS && simulated())
		expect(step, result, CUDA_SUCCESS);
	charged(step, result == CUDA_SUCCESS ? 64 * MIB : 0);
	if (result == CUDA_SUCCESS)
		OK(cuArrayDestroy(*array));
	charged("destroyed", 0);
	report("%s %s", step,
	       result == CUDA_SUCCESS ? "charges 64 MiB" : "is refused by the driver");
}

static void v1_within(void)
{
	unsigned int available, total = 0, pitch;
	CUdeviceptr_v1 pointer = 0;
	CUarray array = NULL;

	expect("cuMemAlloc", cuMemAlloc(&pointer, 64 * MIB), CUDA_ERROR_INVALID_CONTEXT);
	expect("cuMemFree", cuMemFree(0x10000), CUDA_ERROR_INVALID_CONTEXT);
	expect("cuMemGetInfo", cuMemGetInfo(&available, &total), CUDA_ERROR_INVALID_CONTEXT);
	if (cuMemAllocPitch(&pointer, &pitch, 64 * KIB, 1024, 4) == CUDA_SUCCESS)
		failed("cuMemAllocPitch grants memory");
	charged("after calls that the driver refuses", 0);
	OK(cuDeviceTotalMem(&total, 0));
	if (total != (quota() < UINT32_MAX ? quota() : UINT32_MAX))
		failed("cuDeviceTotalMem tells %u bytes", total);
	report("linear memory is refused by the driver");
	granted_or_not("cuArrayCreate", make_plane(64 * MIB, &array), &array);
	granted_or_not("cuArray3DCreate", make_cube(64 * MIB, &array), &array);
}

static void v1_beyond(void)
{
	CUarray array = NULL;
	size_t room = left();

	OUT_OF_MEMORY("cuArrayCreate", make_plane(room + 64 * MIB, &array));
	OUT_OF_MEMORY("cuArray3DCreate", make_cube(room + 64 * MIB, &array));
	charged("after refusals", 0);
	report("%zu MiB are refused", room / MIB + 64);
	granted_or_not("cuArrayCreate", make_plane(64 * MIB, &array), &array);
	granted_or_not("cuArray3DCreate", make_cube(64 * MIB, &array), &array);
}

const struct row linear_rows[] = {
    {"linear-small", "cuMemAlloc_v2 cuMemFree_v2 cuMemFreeAsync cuCtxSynchronize", small_within,
     .beyond = small_beyond},
    {"linear-large", "cuMemAlloc_v2 cuMemFree_v2 cuMemFreeAsync cuCtxSynchronize", large_within,
     .kind = {make, drop}},
    {"pitch", "cuMemAllocPitch_v2 cuMemFree_v2", pitch_within, .kind = {make_pitch, drop}},
    {"managed", "cuMemAllocManaged cuMemFree_v2 cuCtxSynchronize", managed_within,
     .kind = {make_managed, drop}},
    {"v1",
     "cuMemAlloc cuMemFree cuMemGetInfo cuMemAllocPitch cuDeviceTotalMem cuArrayCreate "
     "cuArray3DCreate cuArrayDestroy",
     v1_within, .beyond = v1_beyond},
    {0}};
