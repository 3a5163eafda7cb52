/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rows share. A row is one kind of memory of docs/evidence/coverage.md, in a slice:
 * `within` takes some of it and looks what is charged, `beyond` asks for more than the quota has
 * left. Each runs in a process of its own, alone in its slice but for a peer that it starts itself.
 *
 * What the ledger says is read as a program can: the slice's free bytes by cuMemGetInfo.
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

/* The whole blocks of 2 MiB in so many bytes, as charged() takes them. */
static inline long long whole_blocks(size_t bytes)
{
	return (long long)(bytes & ~(2 * MIB - 1));
}

#define SECONDS 60 /* that one process may take */

/*
 * One kind of memory of any size: what does not fit is refused and leaks nothing,
 * what fits is granted before and after.
 */
struct kind {
	CUresult (*make)(size_t bytes, uint64_t *made);
	CUresult (*drop)(uint64_t made);
};

struct row {
	const char *name;
	const char *calls; /* the hooked functions that it calls, by blanks */
	void (*within)(void);
	void (*beyond)(void); /* NULL: refused_beyond() of its kind */
	void (*begin)(void);  /* comes before both; NULL: begin() */
	bool (*lacks)(void);  /* says so if the driver has not what both need */
	struct kind kind;
};

/* Another process of the slice, which a row starts by its name. */
struct peer {
	const char *name;
	void (*run)(int socket);
};

/* Each ends with an entry without a name. */
extern const struct row linear_rows[], pool_rows[], physical_rows[], array_rows[], context_rows[],
    bind_rows[], graph_rows[], share_rows[], info_rows[], module_rows[], library_rows[],
    stack_rows[], stack_graph_rows[], keep_rows[];
extern const struct peer share_peers[];

/* Entry points that pass, so that driver.def has no prototypes of them. */
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

/* An entry point that not every driver has, by its name: NULL where it is not there. */
void *driver_symbol(const char *name);
#define OPTIONAL(name) ((__typeof__(&name))driver_symbol(#name))
bool simulated(void);

/* start() makes the primary context current; begin() does, too, and observe() makes one of
 * cuCtxCreate current, and both then call settle(). It waits until all that the slice's processes
 * hold is charged, and remembers what is free. */
extern CUcontext own_context;
void start(void);
void begin(void);
void observe(void);
void settle(void);

/* The slice's free bytes, and its quota. */
size_t left(void);
size_t quota(void);

/*
 * The slice has `bytes` less free than at settle(). What is too much is given 3 s, for driver truth
 * to miss it; what is too little is not, or driver truth would find what nobody charged. On a real
 * card the driver may hold up to 16 MiB of its own more or less than then (streams, code).
 * charged_late() is for what only driver truth charges; charged_about() for steps where the
 * simulated driver holds bytes of its own, too.
 */
void charged(const char *step, long long bytes);
void charged_late(const char *step, long long bytes);
void charged_about(const char *step, long long bytes, long long slack);

/* What NVML says that the slice's processes hold; false if it does not say. agrees(): the slice is
 * charged no less than that at once, and no more in the end; agrees_late() gives both a while. */
bool truth(size_t *bytes);
void agrees(const char *step, long long slack);
void agrees_late(const char *step, long long slack);

void expect(const char *step, CUresult result, CUresult wanted);
#define OK(call) expect(#call, call, CUDA_SUCCESS)
#define OUT_OF_MEMORY(step, call) expect(step, call, CUDA_ERROR_OUT_OF_MEMORY)
__attribute__((format(printf, 1, 2))) void failed(const char *format, ...);

/* What the row's line says when all went well; several calls add up. */
__attribute__((format(printf, 1, 2))) void saw(const char *format, ...);

/* The memory can be written and read: a few of its bytes at both ends. holds() only reads what
 * usable() wrote, maybe in another process, if the driver shares bytes: the simulated one has them
 * counted, but each process has its own. */
void usable(const char *step, CUdeviceptr pointer, size_t bytes);
void holds(const char *step, CUdeviceptr pointer, size_t bytes);

/* Linear memory, in whole blocks, that leaves less than `keep` and a block of the quota free. */
CUdeviceptr fill(size_t keep);

/* The same until give_room(); charged_beside() is charged_about() of what is charged beside it. */
CUdeviceptr fill_but(size_t keep);
void give_room(CUdeviceptr pointer);
void charged_beside(const char *step, long long bytes, long long slack);

/* A part of the bytes that are free, in whole steps of 32 MiB. */
size_t part(double of);

void refused_beyond(const struct kind *kind);

/* Peers: a process of the same slice with a context of its own, or one that rows_lend.c talks to.
 * A message is a few bytes, and maybe a descriptor (else -1). */
struct message {
	size_t bytes;
	CUipcMemHandle ipc;
	CUmemPoolPtrExportData pointer;
	char way[16]; /* rows_keep.c's */
};
/* `context` is what its context takes of the quota. Ends with this process. */
pid_t peer_start(const char *name, int *socket, size_t *context);
void message_send(int socket, const struct message *message, int descriptor);
bool message_receive(int socket, struct message *message, int *descriptor);
void peer_keeper(int socket);
void peer_maker(int socket);

CUmemAllocationProp on_device(int handle_types);
void access_to(CUdeviceptr address, size_t bytes);

/* rows lend KIND SOCKET, rows borrow KIND SOCKET: memory that crosses slices. */
int lend_main(const char *kind, const char *path);
int borrow_main(const char *kind, const char *path);

/* Prints the line of what was done in this process, and is its exit status. */
int verdict(const char *name, const char *way);

#endif
