/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says of pointers: a line for each attribute, with how many bytes are written, and
 * what differs "together", by cuPointerGetAttributes. */
#include "conformance.h"

static const char *const attributes[] = {
    "none",         "context",      "memory_type",  "device_pointer", "host_pointer", "p2p_tokens",
    "sync_memops",  "buffer_id",    "is_managed",   "device_ordinal", "legacy_ipc",   "range_start",
    "range_size",   "mapped",       "handle_types", "rdma",           "access",       "pool",
    "mapping_size", "mapping_base", "block_id",     "decompress",
};

static struct {
	const char *name;
	CUdeviceptr at;
	char word[64]; /* what is to be printed of it; "": nothing */
} memories[20];
static size_t count;
static CUcontext context;
static CUmemoryPool default_pool;

static CUdeviceptr add(const char *name, CUdeviceptr at)
{
	memories[count].name = name;
	return memories[count++].at = at;
}

static CUdeviceptr plain(size_t size)
{
	CUdeviceptr at;

	MUST(cuMemAlloc_v2(&at, size));
	return at;
}

static CUdeviceptr mapped(int handle_types, int flags)
{
	CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                               .requestedHandleTypes = handle_types,
	                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {.location = on_card.location, .flags = flags};
	CUhandle handle;
	CUdeviceptr at;

	MUST(cuMemAddressReserve(&at, 4 * MiB, 0, 0, 0));
	MUST(cuMemCreate(&handle, 2 * MiB, &on_card, 0));
	MUST(cuMemMap(at, 2 * MiB, 0, handle, 0));
	if (flags)
		MUST(cuMemSetAccess(at, 2 * MiB, &access, 1));
	return at;
}

static void make_memories(void)
{
	CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                         .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                         .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool own_pool;
	CUdeviceptr at;
	void *host;

	add("1", plain(1));
	add("neighbour", plain(1));
	add("1MiB+1", plain(1 * MiB + 1));
	add("inside", add("2MiB", plain(2 * MiB)) + 4096);
	MUST(cuDeviceGetDefaultMemPool(&default_pool, 0));
	MUST(cuMemAllocAsync(&at, 1 * MiB + 1, NULL));
	add("pool.inside", add("pool", at) + 4096);
	MUST(cuMemPoolCreate(&own_pool, &wanted));
	MUST(cuMemAllocFromPoolAsync(&at, 1, own_pool, NULL));
	add("own_pool", at);
	MUST(cuMemAllocManaged(&at, 1 * MiB + 1, 1));
	add("managed", at);
	MUST(cuMemHostAlloc(&host, 2 * MiB, 0));
	add("host", (uintptr_t)host);
	add("map.inside", add("map", mapped(0, 3)) + 4096);
	add("map.file", mapped(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
	add("reserved", add("map.closed", mapped(0, 0)) + 2 * MiB);
	add("own_variable", (uintptr_t)&count);
	add("freed", plain(4 * MiB));
	MUST(cuMemFree_v2(memories[count - 1].at));
}

static void say_words(void)
{
	for (size_t i = 0; i < count; i++) {
		const char *word = memories[i].word;

		printf(*word ? " %s" : "", memories[i].name);
		if (*word && (i + 1 == count || strcmp(word, memories[i + 1].word) != 0))
			printf(" = %s;", word);
	}
}

/* Writes the answer as a word, and returns how many bytes it had. */
static int ask(char word[64], int attribute, CUdeviceptr at, bool together)
{
	unsigned char value[64];
	void *data[] = {value};
	uint64_t number = 0;
	CUresult result;
	int wrote = sizeof(value);

	memset(value, 0x5a, sizeof(value));
	result = together ? cuPointerGetAttributes(1, &attribute, data, at)
	                  : cuPointerGetAttribute(value, attribute, at);
	while (wrote && value[wrote - 1] == 0x5a)
		wrote--;
	memcpy(&number, value, wrote < 8 ? (size_t)wrote : 8);
	if (result != CUDA_SUCCESS)
		sprintf(word, "%s%s", name_of(result), wrote ? " and a value" : "");
	else if (number && number == (uintptr_t)context)
		sprintf(word, "the context");
	else if (number && number == (uintptr_t)default_pool)
		sprintf(word, "the default one");
	else if (number && strstr("device_pointer host_pointer range_start mapping_base",
	                          attributes[attribute]))
		sprintf(word, "%+lld", (long long)(number - at));
	else if (number && strstr("buffer_id block_id pool", attributes[attribute]))
		sprintf(word, "some");
	else
		sprintf(word, wrote ? "%lld" : "nothing", (long long)number);
	return result == CUDA_SUCCESS ? wrote : 0;
}

static void say_attribute(int attribute)
{
	char single[64];
	int wrote, bytes = 0;

	printf("%s:", attributes[attribute]);
	for (int together = 0; together < 2; together++) {
		for (size_t i = 0; i < count; i++) {
			ask(single, attribute, memories[i].at, false);
			wrote = ask(memories[i].word, attribute, memories[i].at, together);
			bytes = wrote > bytes ? wrote : bytes;
			if (together && strcmp(memories[i].word, single) == 0)
				memories[i].word[0] = '\0';
		}
		if (together)
			printf(" %d bytes; together:", bytes);
		say_words();
	}
	printf("\n");
}

static void say_set(const char *key, unsigned value)
{
	char was[64], is[64];
	int sync = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;

	for (size_t i = 0; i < count; i++) {
		bool known = ask(was, sync, memories[i].at, false);
		CUresult result = cuPointerSetAttribute(&value, sync, memories[i].at);

		ask(is, sync, memories[i].at, false);
		sprintf(memories[i].word, known ? "%s, %.9s to %.9s" : "%s", name_of(result), was,
		        is);
	}
	printf("%s:", key);
	say_words();
	printf("\n");
}

static void say_calls(const char *key, int attribute, CUdeviceptr at, void *data, void **list)
{
	unsigned one = 1, *set = data ? &one : NULL;
	int numbers[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, attribute};

	printf("%s: %s, list %s, set %s\n", key,
	       name_of(cuPointerGetAttribute(data, attribute, at)),
	       name_of(cuPointerGetAttributes(2, numbers, list, at)),
	       name_of(cuPointerSetAttribute(set, attribute, at)));
}

static void refusals(CUdeviceptr at)
{
	int values[2] = {-5, -5};
	void *list[] = {&values[0], &values[1]};

	say_calls("attribute.0", 0, at, values + 1, list);
	printf("list.with_0: %d\n", values[0]);
	say_calls("attribute.22", COUNT(attributes), at, values, list);
	say_calls("attribute.is_managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, at, values, list);
	MUST(cuCtxSetCurrent(NULL));
	say_calls("no_context", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at, values, list);
	say_calls("null", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at, NULL, NULL);
}

int main(void)
{
	context = start_with_context();
	make_memories();
	for (int i = 1; i < (int)COUNT(attributes); i++)
		say_attribute(i);
	say_set("set", 1);
	say_set("unset", 0);
	refusals(memories[0].at);
	return 0;
}
