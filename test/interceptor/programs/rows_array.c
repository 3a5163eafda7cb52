/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays. Their sizes were measured on an H100 (test/conformance/expected/h100.txt). */
#include "rows.h"

static CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth,
                                     unsigned int channels, unsigned int flags)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width,
	                                 .Height = height,
	                                 .Depth = depth,
	                                 .Format = CU_AD_FORMAT_FLOAT,
	                                 .NumChannels = channels,
	                                 .Flags = flags};
}

static void arrays_within(void)
{
	static const struct {
		const char *name;
		CUDA_ARRAY3D_DESCRIPTOR shape;
		size_t bytes;
	} list[] = {
	    {"1D", {65536, 0, 0, CU_AD_FORMAT_FLOAT, 4, 0}, 8388608},
	    {"2D", {3000, 2000, 0, CU_AD_FORMAT_FLOAT, 4, 0}, 98566144},
	    {"3D", {256, 256, 256, CU_AD_FORMAT_FLOAT, 1, 0}, 67108864},
	    {"layered", {1000, 1000, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 12582912},
	    {"cubemap", {500, 500, 6, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_CUBEMAP}, 25165824},
	};
	CUDA_ARRAY_DESCRIPTOR plane = {
	    .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	enum { COUNT = sizeof(list) / sizeof(list[0]) };
	CUarray array[COUNT] = {0}, large = NULL;
	long long sum = 0;
	CUresult result;

	for (unsigned i = 0; i < COUNT; i++) {
		OK(cuArray3DCreate_v2(&array[i], &list[i].shape));
		sum += (long long)list[i].bytes;
		charged(list[i].name, sum);
	}
	OK(cuArrayCreate_v2(&large, &plane));
	charged("4096 x 4096 of four floats", sum + 256 * (long long)MIB);
	OK(cuCtxSetCurrent(NULL));
	result = cuArrayDestroy(large);
	OK(cuCtxSetCurrent(own_context));
	if (result != CUDA_SUCCESS) {
		charged("what the driver has not destroyed", sum + 256 * (long long)MIB);
		OK(cuArrayDestroy(large));
	}
	for (unsigned i = 0; i < COUNT; i++)
		OK(cuArrayDestroy(array[i]));
	charged("all destroyed", 0);
	report("1D, 2D, 3D, layered and cubemap arrays charge %lld bytes, as an H100 gave them",
	       sum);
}

/* One texel is 16 bytes, so a row is 256 KiB. */
static CUresult make(size_t bytes, uint64_t *made)
{
	CUDA_ARRAY_DESCRIPTOR plane = {.Width = 16384,
	                               .Height = bytes / (256 * KIB),
	                               .Format = CU_AD_FORMAT_FLOAT,
	                               .NumChannels = 4};
	CUarray array = NULL;
	CUresult result = cuArrayCreate_v2(&array, &plane);

	*made = (uint64_t)(uintptr_t)array;
	return result;
}

static CUresult drop(uint64_t made)
{
	return cuArrayDestroy((CUarray)(uintptr_t)made);
}

static void mipmapped_within(void)
{
	CUDA_ARRAY3D_DESCRIPTOR plane = shape(4096, 4096, 0, 4, 0),
	                        solid = shape(1000, 100, 30, 4, 0);
	CUmipmappedArray a = NULL, b = NULL;

	OK(cuMipmappedArrayCreate(&a, &plane, 5));
	charged("five levels of 4096 x 4096", 358612992);
	OK(cuMipmappedArrayCreate(&b, &solid, 2));
	charged("two levels of 1000 x 100 x 30", 358612992 + 60817408);
	OK(cuMipmappedArrayDestroy(a));
	OK(cuMipmappedArrayDestroy(b));
	charged("both destroyed", 0);
	report(
	    "five levels of 4096 x 4096 charge 358612992 bytes, two of 1000 x 100 x 30 60817408");
}

static CUresult make_mipmapped(size_t bytes, uint64_t *made)
{
	CUDA_ARRAY3D_DESCRIPTOR plane = shape(16384, bytes / (256 * KIB), 0, 4, 0);
	CUmipmappedArray array = NULL;
	CUresult result = cuMipmappedArrayCreate(&array, &plane, 2);

	*made = (uint64_t)(uintptr_t)array;
	return result;
}

static CUresult drop_mipmapped(uint64_t made)
{
	return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)made);
}

/* 1 MiB each, so two in a block of 2 MiB; keeping every fourth keeps every second block. */
static CUresult make_small(CUarray *array)
{
	CUDA_ARRAY_DESCRIPTOR plane = {
	    .Width = 500, .Height = 500, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	return cuArrayCreate_v2(array, &plane);
}

static void small_within(void)
{
	enum { COUNT = 64, APART = 4 };
	CUarray array[COUNT] = {0};

	for (unsigned i = 0; i < COUNT; i++)
		OK(make_small(&array[i]));
	charged("64 arrays of 1 MiB", COUNT * (long long)MIB);
	agrees("64 arrays of 1 MiB", 0);
	for (unsigned i = 0; i < COUNT; i++) {
		if (i % APART)
			OK(cuArrayDestroy(array[i]));
	}
	charged("every fourth of them", (long long)MIB * 2 * COUNT / APART);
	agrees("every fourth of them", 0);
	for (unsigned i = 0; i < COUNT; i += APART)
		OK(cuArrayDestroy(array[i]));
	charged("all destroyed", 0);
	report("64 arrays of 1 MiB are charged 64 MiB, 16 that are left in as many blocks 32");
}

/* Of each four arrays one is kept, until one is refused: as many are kept as blocks fit. */
static void small_beyond(void)
{
	enum { APART = 4, MOST = 1024 };
	static CUarray array[MOST];
	size_t count = 0;
	CUresult result;
	CUdeviceptr most = fill_but(64 * MIB);

	do {
		for (unsigned i = 0; i < APART; i++) {
			result = count + i < MOST ? make_small(&array[count + i])
			                          : CUDA_ERROR_INVALID_VALUE;
			if (result != CUDA_SUCCESS)
				break;
		}
		for (unsigned i = 1; i < APART && result == CUDA_SUCCESS; i++) {
			OK(cuArrayDestroy(array[count + i]));
			array[count + i] = NULL;
		}
		count += APART;
	} while (result == CUDA_SUCCESS);
	OUT_OF_MEMORY("an array more", result);
	agrees("when one is refused", 0);
	if (left() > 4 * MIB)
		failed("%zu MiB are left", left() / MIB);
	for (size_t i = 0; i < count; i++) {
		if (array[i])
			OK(cuArrayDestroy(array[i]));
	}
	give_room(most);
	charged("all destroyed", 0);
	report("%zu blocks are had by a fourth of the arrays that were in them", count / APART);
}

const struct row array_rows[] = {
    {"arrays-small", "cuArrayCreate_v2 cuArrayDestroy", small_within, .beyond = small_beyond},
    {"arrays", "cuArray3DCreate_v2 cuArrayCreate_v2 cuArrayDestroy", arrays_within,
     .kind = {make, drop}},
    {"mipmapped", "cuMipmappedArrayCreate cuMipmappedArrayDestroy", mipmapped_within,
     .kind = {make_mipmapped, drop_mipmapped}},
    {0}};
