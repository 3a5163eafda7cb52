/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: the memory that each takes, and that is left after it. */
#include "conformance.h"

static long long before;
static CUdevResourceDesc parts[2];

static void say(const char *key)
{
	unsigned int flags;
	int active;

	MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
	printf("%s: active %d, held %lld\n", key, active, held() - before);
}

static void split(void)
{
	CUdevResource whole, groups[4], rest;
	unsigned int count = COUNT(groups);

	say_result("resource", cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
	say_result("split", cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, 16));
	printf("split.groups: %u\n", count);
	for (size_t i = 0; i < COUNT(parts); i++)
		MUST(cuDevResourceGenerateDesc(&parts[i], &groups[i], 1));
	say("described");
}

/* Twice: without a primary context of the program's own, and with one. */
static void life(const char *prefix)
{
	CUgreenCtx first, second;
	CUcontext context, again, current;
	CUdeviceptr pointer;
	CUstream stream;
	char key[64];

#define KEY(name) (sprintf(key, "%s.%s", prefix, name), key)
	say_result(KEY("create"),
	           cuGreenCtxCreate(&first, parts[0], 0, CU_GREEN_CTX_DEFAULT_STREAM));
	say(KEY("first"));
	MUST(cuCtxFromGreenCtx(&context, first));
	MUST(cuCtxFromGreenCtx(&again, first));
	printf("%s: same %d, held %lld\n", KEY("context"), context == again, held() - before);
	MUST(cuGreenCtxCreate(&second, parts[1], 0, CU_GREEN_CTX_DEFAULT_STREAM));
	say(KEY("second"));
	MUST(cuCtxSetCurrent(context));
	MUST(cuMemAlloc_v2(&pointer, 64 * MiB));
	say(KEY("allocated"));
	say_result(KEY("stream"),
	           cuGreenCtxStreamCreate(&stream, first, CU_STREAM_NON_BLOCKING, 0));
	MUST(cuCtxGetCurrent(&current));
	printf("%s: %d\n", KEY("is_current"), current == context);
	MUST(cuGreenCtxDestroy(first));
	say(KEY("first_destroyed"));
	say_result(KEY("free"), cuMemFree_v2(pointer));
	MUST(cuGreenCtxDestroy(second));
	say(KEY("second_destroyed"));
	say_result(KEY("destroy_context"), cuCtxDestroy_v2(context));
	MUST(cuCtxSetCurrent(NULL));
	say(KEY("end"));
#undef KEY
}

int main(void)
{
	CUcontext primary;
	CUgreenCtx green;

	start();
	before = held();
	split();
	say_result("create.no_stream", cuGreenCtxCreate(&green, parts[0], 0, 0));
	life("alone");
	MUST(cuDevicePrimaryCtxRetain(&primary, 0));
	say("primary");
	life("beside_primary");
	/* A third one in the same primary context. */
	MUST(cuGreenCtxCreate(&green, parts[0], 0, CU_GREEN_CTX_DEFAULT_STREAM));
	say("third");
	MUST(cuGreenCtxDestroy(green));
	MUST(cuDevicePrimaryCtxRelease_v2(0));
	say("primary_released");
	return 0;
}
