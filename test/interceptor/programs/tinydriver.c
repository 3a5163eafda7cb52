/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 with a few functions, for elastic.c. They return whether they were called with the
 * right arguments and at a permitted time; one calls its argument. */
#include "cuda_abi.h"

#include <stdbool.h>
#include <string.h>

#define API __attribute__((visibility("default")))

API extern int driver_entered, *driver_forbidden, cuTestData;
int driver_entered, *driver_forbidden, cuTestData = 5;

API CUresult cuInit(unsigned int);
API CUresult cuDriverGetVersion(int *);
API CUresult cuGetErrorName(CUresult, const char **);
API CUresult cuDeviceGetCount(int *);
API CUresult cuCtxGetDevice(CUdevice *);
API CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
API CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
API CUresult cuMemGetInfo_v2(size_t *, size_t *);
API CUresult cuCtxSynchronize(void);
API CUresult cuEventSynchronize(void *);
API CUresult cuStreamQuery(CUstream);
API CUresult cuEventQuery(void (*)(void));
API CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                            unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
API CUresult cuTexRefSetMipmapLevelClamp(void *, float, float);
API CUresult cuTestArguments(long, long, long, long, long, long, double, double, double, double,
                             double, double, double, double, long, long, long, long, long, long,
                             long, long, long, long, long, long);
API CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

CUresult cuInit(unsigned int flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	*name = error ? "an error" : "none";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	memset(uuid, 7 + device, sizeof(*uuid));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = 8ull << 30;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	*available = *total = 8ull << 30;
	return CUDA_SUCCESS;
}

static CUresult entered(int right)
{
	bool forbidden = driver_forbidden && __atomic_load_n(driver_forbidden, __ATOMIC_SEQ_CST);

	__atomic_fetch_add(&driver_entered, 1, __ATOMIC_SEQ_CST);
	forbidden |= driver_forbidden && __atomic_load_n(driver_forbidden, __ATOMIC_SEQ_CST);
	return right && !forbidden ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxSynchronize(void)
{
	return entered(1);
}

CUresult cuEventSynchronize(void *event)
{
	return entered(event == (void *)17);
}

CUresult cuStreamQuery(CUstream stream)
{
	return entered(stream == (CUstream)16);
}

CUresult cuEventQuery(void (*callback)(void))
{
	callback();
	return entered(1);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int a, unsigned int b, unsigned int c,
                        unsigned int d, unsigned int e, unsigned int f, unsigned int g,
                        CUstream stream, void **parameters, void **extra)
{
	return entered(function == (CUfunction)11 && a == 1 && b == 2 && c == 3 && d == 4 &&
	               e == 5 && f == 6 && g == 7 && stream == (CUstream)8 &&
	               parameters == (void **)9 && extra == (void **)10);
}

CUresult cuTexRefSetMipmapLevelClamp(void *texture, float low, float high)
{
	return entered(texture == (void *)3 && low == 1.5f && high == -2.25f);
}

CUresult cuTestArguments(long a, long b, long c, long d, long e, long f, double p, double q,
                         double r, double s, double t, double u, double v, double w, long g, long h,
                         long i, long j, long k, long l, long m, long n, long o, long x, long y,
                         long z)
{
	return entered(a == 1 && b == -2 && c == 3 && d == -4 && e == 5 && f == -6 && p == 0.1 &&
	               q == 0.2 && r == 0.3 && s == 0.4 && t == 0.5 && u == 0.6 && v == 0.7 &&
	               w == 0.8 && g == 7 && h == -8 && i == 9 && j == -10 && k == 11 && l == -12 &&
	               m == 13 && n == -14 && o == 15 && x == -16 && y == 17 && z == -18);
}

/* cuTestNumber has another address for each requested version. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *status)
{
	static char numbered[4096];

	(void)flags;
	if (strcmp(name, "cuTestNumber") == 0)
		*function = &numbered[version];
	else if (strcmp(name, "cuTexRefSetMipmapLevelClamp") == 0)
		*function = (void *)cuTexRefSetMipmapLevelClamp;
	else if (strcmp(name, "cuEventSynchronize") == 0)
		*function = (void *)cuEventSynchronize;
	else if (strcmp(name, "cuStreamQuery") == 0)
		*function = (void *)cuStreamQuery;
	else
		return CUDA_ERROR_NOT_FOUND;
	if (status)
		*status = 0;
	return CUDA_SUCCESS;
}
