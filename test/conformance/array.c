/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: the card's bytes for a shape. */
#include "conformance.h"

#define SMALL_COPIES 64 /* only many show the size of packed arrays */

#define VIDEO 0x100 /* CUDA_ARRAY3D_VIDEO_ENCODE_DECODE */

enum { U8 = CU_AD_FORMAT_UNSIGNED_INT8, F16 = CU_AD_FORMAT_HALF, F32 = CU_AD_FORMAT_FLOAT };

static const struct shape {
	const char *kind;
	CUDA_ARRAY3D_DESCRIPTOR array;
} shapes[] = {
#define WITH(kind, width, height, depth, format, channels, flags)                                  \
	{                                                                                          \
		kind,                                                                              \
		{                                                                                  \
			width, height, depth, format, channels, flags                              \
		}                                                                                  \
	}
#define LINE(width, format, channels) WITH("1d", width, 0, 0, format, channels, 0)
#define PLANE(width, height, format, channels) WITH("2d", width, height, 0, format, channels, 0)
#define BOX(width, height, depth, format, channels)                                                \
	WITH("3d", width, height, depth, format, channels, 0)
    LINE(1, U8, 1),
    LINE(1000, F32, 1),
    LINE(4096, F32, 4),
    LINE(65536, F32, 4),
    LINE(131072, U8, 1),
    PLANE(1, 1, U8, 1),
    PLANE(16, 16, F32, 1),
    PLANE(33, 17, F32, 1),
    PLANE(64, 64, F32, 4),
    PLANE(100, 100, U8, 1),
    PLANE(100, 100, F32, 1),
    PLANE(127, 129, F32, 4),
    PLANE(256, 256, F32, 1),
    PLANE(500, 500, F32, 1),
    PLANE(512, 512, F32, 1),
    PLANE(513, 512, F32, 1),
    PLANE(512, 513, F32, 1),
    PLANE(1000, 1000, U8, 1),
    PLANE(1000, 1000, F16, 1),
    PLANE(1000, 1000, F32, 1),
    PLANE(1000, 1000, F32, 2),
    PLANE(1000, 1000, F32, 4),
    PLANE(1, 65536, F32, 1),
    PLANE(65536, 1, F32, 1),
    PLANE(1920, 1080, U8, 4),
    PLANE(3000, 2000, F32, 4),
    PLANE(4096, 4096, F32, 4),
    PLANE(16384, 16384, U8, 1),
    BOX(1, 1, 1, U8, 1),
    BOX(16, 16, 16, F32, 1),
    BOX(17, 17, 17, F32, 1),
    BOX(64, 64, 64, F32, 1),
    BOX(65, 65, 65, F32, 1),
    BOX(100, 100, 100, F32, 1),
    BOX(128, 128, 128, F32, 4),
    BOX(1000, 10, 10, F32, 1),
    BOX(10, 10, 1000, F32, 1),
    BOX(256, 256, 256, F32, 1),
    /* Sizes of the blocks of a box: each height and depth rules out some candidates. */
    BOX(4096, 1, 33, F32, 4),
    BOX(4096, 2, 100, F32, 4),
    BOX(4096, 9, 17, F32, 4),
    BOX(4096, 17, 1, F32, 4),
    BOX(4096, 17, 9, F32, 4),
    BOX(4096, 17, 17, F32, 4),
    BOX(4096, 33, 5, F32, 4),
    BOX(4096, 33, 33, F32, 4),
    BOX(4096, 40, 40, F32, 4),
    BOX(4096, 65, 2, F32, 4),
    BOX(4096, 65, 3, F32, 4),
    BOX(4096, 129, 1, F32, 4),
    WITH("1d_layered", 1000, 0, 10, F32, 1, CUDA_ARRAY3D_LAYERED),
    WITH("2d_layered", 100, 100, 10, F32, 1, CUDA_ARRAY3D_LAYERED),
    WITH("2d_layered", 1000, 1000, 3, F32, 1, CUDA_ARRAY3D_LAYERED),
    WITH("2d_layered", 16, 16, 2048, F32, 1, CUDA_ARRAY3D_LAYERED),
    WITH("cubemap", 64, 64, 6, F32, 1, CUDA_ARRAY3D_CUBEMAP),
    WITH("cubemap", 500, 500, 6, F32, 4, CUDA_ARRAY3D_CUBEMAP),
    WITH("cubemap_layered", 100, 100, 18, F32, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED),
    WITH("nv12", 1920, 1080, 0, CU_AD_FORMAT_NV12, 3, 0),
    WITH("nv12", 3840, 2160, 0, CU_AD_FORMAT_NV12, 3, 0),
    WITH("nv12_video", 1920, 1080, 0, CU_AD_FORMAT_NV12, 3, VIDEO),
    WITH("nv12_one_channel", 1920, 1080, 0, CU_AD_FORMAT_NV12, 1, 0),
    WITH("bc1", 1024, 1024, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0),
    WITH("bc1", 4096, 4096, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0),
    WITH("bc3", 4096, 4096, 0, CU_AD_FORMAT_BC1_UNORM + 4, 4, 0),
    WITH("bc7", 1000, 1000, 0, CU_AD_FORMAT_BC1_UNORM + 12, 4, 0),
    WITH("unorm8x4", 2000, 2000, 0, CU_AD_FORMAT_UNORM_INT8X1 + 2, 4, 0),
    WITH("sparse", 4096, 4096, 0, F32, 4, CUDA_ARRAY3D_SPARSE),
    WITH("deferred", 4096, 4096, 0, F32, 4, CUDA_ARRAY3D_DEFERRED_MAPPING),
    WITH("zero_width", 0, 100, 0, F32, 1, 0),
    WITH("three_channels", 100, 100, 0, F32, 3, 0),
};

static void say_shape(const char *what, const struct shape *shape)
{
	const CUDA_ARRAY3D_DESCRIPTOR *array = &shape->array;

	printf("%s.%s.%zux%zux%zu.0x%02x.%u: ", what, shape->kind, array->Width, array->Height,
	       array->Depth, (unsigned int)array->Format, array->NumChannels);
}

static void arrays(void)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		CUarray copies[SMALL_COPIES];
		long long before = held(), one, many;
		int count = 0;
		CUresult result = cuArray3DCreate_v2(&copies[count], &shapes[i].array);

		say_shape("array", &shapes[i]);
		if (result != CUDA_SUCCESS) {
			printf("%s\n", name_of(result));
			continue;
		}
		one = held() - before;
		for (count = 1; one <= 2 * (long long)MiB && count < SMALL_COPIES; count++)
			MUST(cuArray3DCreate_v2(&copies[count], &shapes[i].array));
		many = held() - before;
		printf("held %lld", one);
		if (count > 1)
			printf(", %d hold %lld", count, many);
		while (count--)
			MUST(cuArrayDestroy(copies[count]));
		printf(", left %lld\n", held() - before);
	}
}

static void mipmaps(void)
{
	static const struct shape list[] = {
	    PLANE(64, 64, F32, 1),
	    PLANE(1000, 1000, F32, 1),
	    PLANE(1024, 1024, F32, 1),
	    PLANE(4096, 4096, F32, 4),
	    BOX(128, 128, 128, F32, 1),
	    BOX(100, 100, 100, F32, 1),
	    BOX(1000, 100, 30, F32, 4),
	    WITH("2d_layered", 1000, 1000, 3, F32, 1, CUDA_ARRAY3D_LAYERED),
	    WITH("2d_layered", 512, 512, 4, F32, 1, CUDA_ARRAY3D_LAYERED),
	    WITH("cubemap", 256, 256, 6, F32, 1, CUDA_ARRAY3D_CUBEMAP),
	    WITH("sparse", 4096, 4096, 0, F32, 4, CUDA_ARRAY3D_SPARSE),
	    WITH("deferred", 4096, 4096, 0, F32, 4, CUDA_ARRAY3D_DEFERRED_MAPPING),
	};
	static const unsigned int levels[] = {2, 100};

	for (size_t i = 0; i < COUNT(list); i++)
		for (size_t k = 0; k < COUNT(levels); k++) {
			CUmipmappedArray mipmap;
			long long before = held();
			CUresult result =
			    cuMipmappedArrayCreate(&mipmap, &list[i].array, levels[k]);
			char what[32];

			sprintf(what, "mipmap%u", levels[k]);
			say_shape(what, &list[i]);
			if (result != CUDA_SUCCESS) {
				printf("%s\n", name_of(result));
				continue;
			}
			printf("held %lld", held() - before);
			MUST(cuMipmappedArrayDestroy(mipmap));
			printf(", left %lld\n", held() - before);
		}
}

static void sharing(void)
{
	CUDA_ARRAY3D_DESCRIPTOR small = {16, 16, 0, F32, 1, 0};
	CUdeviceptr pointer;
	CUarray array;
	long long before = held();

	MUST(cuMemAlloc_v2(&pointer, 4 * KiB));
	printf("share.alloc: %lld\n", held() - before);
	MUST(cuArray3DCreate_v2(&array, &small));
	printf("share.alloc_and_array: %lld\n", held() - before);
	MUST(cuArrayDestroy(array));
	MUST(cuMemFree_v2(pointer));
}

int main(void)
{
	start_with_context();
	arrays();
	mipmaps();
	sharing();
	return 0;
}
