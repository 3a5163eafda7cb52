/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the rows. A row is one kind of memory of docs/evidence/coverage.md, in a slice:
 * `within` allocates some of it and checks the charge, `beyond` requests more than the quota has
 * left. Each runs in a process of its own, alone in its slice but for a peer that it starts itself.
 * Charges are read as the slice's free bytes, by cuMemGetInfo.
 */
#ifndef ROWS_H
#define ROWS_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* The whole blocks of 2 MiB in `bytes`, as charged() takes them. */
static inline long long whole_blocks(size_t bytes)
{
	return (long long)(bytes & ~(2 * MIB - 1));
}

#define SECONDS 60 /* limit for one process */

/* One kind of memory of any size: a request that does not fit is refused and leaks nothing; one
 * that fits succeeds before and after. */
struct kind {
	CUresult (*make)(size_t bytes, uint64_t *made);
	CUresult (*drop)(uint64_t made);
};

struct row {
	const char *name;
	const char *calls; /* the hooked functions that it calls, separated by blanks */
	void (*within)(void);
	void (*beyond)(void); /* NULL: refused_beyond() of its kind */
	void (*begin)(void);  /* called before both; NULL: begin() */
	bool (*lacks)(void);  /* returns whether the driver lacks what both need */
	struct kind kind;
};

struct peer {
	const char *name;
	void (*run)(int socket);
};

/* Each ends with an entry without a name. */
extern const struct row linear_rows[], pool_rows[], physical_rows[], array_rows[], context_rows[],
    bind_rows[], graph_rows[], share_rows[], info_rows[], module_rows[], library_rows[],
    stack_rows[], stack_graph_rows[], keep_rows[];
extern const struct peer share_peers[];

/* Functions without hooks, so that driver.def has no prototypes of them. */
typedef struct CUevent_st *CUevent;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

typedef struct {
	int type;
	unsigned char bytes[140];
} CUdevResource;
static_assert(sizeof(CUdevResource) == 144, "CUdevResource");

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, elementSize;
	size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type,
                                          unsigned long long flags);
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array);
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type);
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count,
                                     const CUdevResource *whole, CUdevResource *rest,
                                     unsigned int flags, unsigned int least);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources,
                                   unsigned int count);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS *parameters,
                              CUcontext context);

/* A function that not every driver has, by its name; NULL if absent. */
void *driver_symbol(const char *name);
#define OPTIONAL(name) ((__typeof__(&name))driver_symbol(#name))
bool simulated(void);

/*
 * start() and begin() make the primary context current, observe() one of cuCtxCreate. begin() and
 * observe() then call settle(), which waits until all memory of the slice's processes is charged,
 * and remembers the free bytes.
 */
extern CUcontext own_context;
void start(void);
void begin(void);
void observe(void);
void settle(void);

size_t left(void);
size_t quota(void);

/*
 * Checks that the slice has `bytes` less free than at settle(). Driver truth has 3 s to correct a
 * charge that is too high, and none for one that is too low, since it would hide that. A real
 * card's driver may hold up to 16 MiB of its own more or less (streams, code). charged_late() is
 * for memory that only driver truth charges; charged_about() for steps where the simulated driver
 * holds bytes of its own, too.
 */
void charged(const char *step, long long bytes);
void charged_late(const char *step, long long bytes);
void charged_about(const char *step, long long bytes, long long slack);

/* The bytes that NVML lists for the slice's processes; false if unknown. agrees(): the charge is no
 * less than that at once, and no more in the end; agrees_late() waits for both. */
bool truth(size_t *bytes);
void agrees(const char *step, long long slack);
void agrees_late(const char *step, long long slack);

void expect(const char *step, CUresult result, CUresult wanted);
#define OK(call) expect(#call, call, CUDA_SUCCESS)
#define OUT_OF_MEMORY(step, call) expect(step, call, CUDA_ERROR_OUT_OF_MEMORY)
__attribute__((format(printf, 1, 2))) void failed(const char *format, ...);

/* Adds to the row's line, which is printed if the row passes. */
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);

/* The memory can be written and read, at both ends. holds() only reads what usable() wrote, maybe
 * in another process, if the driver shares bytes: the simulated one shares their count only. */
void usable(const char *step, CUdeviceptr pointer, size_t bytes);
void holds(const char *step, CUdeviceptr pointer, size_t bytes);

/* Linear memory in whole blocks: less than `keep` and a block of the quota stay free. */
CUdeviceptr fill(size_t keep);

/* The same until give_room(); charged_beside() is charged_about() without that memory. */
CUdeviceptr fill_but(size_t keep);
void give_room(CUdeviceptr pointer);
void charged_beside(const char *step, long long bytes, long long slack);

/* A part of the free bytes, in whole steps of 32 MiB. */
size_t part(double of);

void refused_beyond(const struct kind *kind);

/* Peers: a process of the same slice with a context of its own, or one that rows_lend.c talks to. A
 * message is a few bytes, and maybe a descriptor (else -1). */
struct message {
	size_t bytes;
	CUipcMemHandle ipc;
	CUmemPoolPtrExportData pointer;
	char way[16]; /* rows_keep.c's */
};
/* One peer at a time, which ends with this process. peer_tell() sends a message, and replaces it by
 * the answer. */
void peer_begin(const char *name);
void peer_tell(struct message *message, int descriptor, int *received);
void peer_end(void);
extern long long peer_context; /* the charge of its context */
void message_send(int socket, const struct message *message, int descriptor);
bool message_receive(int socket, struct message *message, int *descriptor);
void peer_keeper(int socket);
void peer_maker(int socket);

CUmemAllocationProp on_device(int handle_types);
void access_to(CUdeviceptr address, size_t bytes);

int lend_main(const char *kind, const char *path);
int borrow_main(const char *kind, const char *path);

/* Prints this process's line, and returns its exit status. */
int verdict(const char *name, const char *way);

#endif
