/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include "attach_client.h"
#include "pool.h"
#include "refusal.h"
#include "say.h"
#include "sibling.h"
#include "table.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MADV_WIPEONFORK_ 18 /* Linux 4.14; older headers have no name for it */

struct process *this_process;

static struct process *process_make(void)
{
	size_t size = sizeof(struct process);
	struct process *expected = NULL;
	struct process *made =
	    mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (made == MAP_FAILED)
		return NULL;
	if (madvise(made, size, MADV_WIPEONFORK_) != 0)
		made->pid = (uint32_t)getpid();
	if (!__atomic_compare_exchange_n(&this_process, &expected, made, false, __ATOMIC_ACQ_REL,
	                                 __ATOMIC_ACQUIRE)) {
		munmap(made, size);
		return expected;
	}
	return made;
}

struct process *process_get(void)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);

	if (!process)
		return process_make();
	if (process->pid && process->pid != (uint32_t)syscall(SYS_getpid)) {
		/* A child of fork on a kernel that does not wipe. It has one thread yet. */
		memset(process, 0, sizeof(*process));
		process->pid = (uint32_t)getpid();
	}
	return process;
}

struct process *process_attached(void)
{
	struct process *process = process_get();

	if (!process)
		return NULL;
	if (__builtin_expect(!__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE), 0)) {
		int saved = errno;

		lock_take(&process->attach_lock);
		if (!process->attached)
			attach_process(process);
		lock_give(&process->attach_lock);
		errno = saved;
		if (!__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE))
			return NULL;
	}
	return process;
}

/* With attach_lock held. */
static int find_device(struct process *process, CUdevice ordinal)
{
	CUresult error = CUDA_ERROR_NOT_FOUND;
	size_t bytes = 0;
	CUuuid uuid;

	/* _v2 tells a MIG instance from its device. */
	if (DRIVER_HAS(cuDeviceGetUuid_v2))
		error = DRIVER(cuDeviceGetUuid_v2)(&uuid, ordinal);
	else if (DRIVER_HAS(cuDeviceGetUuid))
		error = DRIVER(cuDeviceGetUuid)(&uuid, ordinal);
	if (error != CUDA_SUCCESS)
		return -1;
	if (DRIVER_HAS(cuDeviceTotalMem_v2))
		(void)DRIVER(cuDeviceTotalMem_v2)(&bytes, ordinal);
	return attach_device(process, (const uint8_t *)uuid.bytes, bytes, ordinal);
}

/* With account_lock held. False if the slice's pool has not the device: then nothing may be charged
 * there. (The enforcer gives it to the pool first, so somebody has overwritten the pool's page.) */
static bool open_account(struct process *process, uint32_t device)
{
	struct account *account = &process->account[device];
	int in_pool;

	if (process->pool_ledger) {
		in_pool =
		    account_find_device(process->pool_ledger, process->ledger->device[device].uuid);
		if (in_pool < 0)
			return false;
		account->pool =
		    ledger_open(process->pool_ledger, (uint32_t)in_pool, process->pool_lane);
	}
	account->slice = ledger_open(process->ledger, device, process->lane);
	return true;
}

int process_device(struct process *process, CUdevice ordinal)
{
	int device;

	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS)
		return -1;
	device = __atomic_load_n(&process->device_of[ordinal], __ATOMIC_ACQUIRE);
	if (__builtin_expect(device != 0, 1))
		return device - 1;

	lock_take(&process->attach_lock);
	device = process->device_of[ordinal];
	if (device == 0) {
		int saved = errno;

		device = find_device(process, ordinal) + 1;
		errno = saved;
	}
	if (device != 0) {
		uint32_t bit = 1u << (device - 1);

		lock_take(&process->account_lock);
		if (!(process->opened & bit)) {
			if (open_account(process, (uint32_t)device - 1))
				process->opened |= bit;
			else
				device = 0;
		}
		lock_give(&process->account_lock);
		__atomic_store_n(&process->device_of[ordinal], (uint8_t)device, __ATOMIC_RELEASE);
	}
	lock_give(&process->attach_lock);
	return device - 1;
}

int process_device_by_uuid(struct process *process, const uint8_t uuid[16], uint64_t bytes)
{
	int device, saved = errno;

	lock_take(&process->attach_lock);
	device = attach_device(process, uuid, bytes, -1);
	lock_give(&process->attach_lock);
	errno = saved;
	return device;
}

bool process_ready(CUdevice ordinal)
{
	struct process *process = process_attached();

	return process && process_device(process, ordinal) >= 0;
}

int process_devices;

CUdevice process_current_ordinal(void)
{
	CUdevice ordinal;
	int count;

	/* With one device there is nothing to ask, and asking (11 ns on an H100's host) would be a
	 * good part of what the interceptor costs. Without a context the driver refuses the call
	 * itself. */
	if (__builtin_expect(process_has_one_device(), 1))
		return 0;
	if (__atomic_load_n(&process_devices, __ATOMIC_RELAXED) == 0 &&
	    DRIVER_HAS(cuDeviceGetCount) && DRIVER(cuDeviceGetCount)(&count) == CUDA_SUCCESS)
		__atomic_store_n(&process_devices, count, __ATOMIC_RELAXED);
	if (!DRIVER_HAS(cuCtxGetDevice) || DRIVER(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
		return -1;
	return ordinal;
}

void process_count(CUdevice ordinal)
{
	struct process *process = process_get();
	int device = process_device(process, ordinal);

	if (device >= 0)
		ledger_count_allocation(&process->account[device].slice);
}

const struct ledger_account *process_begin_uncharged(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device < 0)
		return NULL;
	ledger_begin_uncharged(&process->account[device].slice);
	return &process->account[device].slice;
}

void process_end_uncharged(const struct ledger_account *lane, bool succeeded)
{
	if (!lane->ledger)
		return; /* a child that a signal's handler forked meanwhile, and has not attached */
	if (succeeded)
		ledger_count_allocation(lane);
	ledger_end_uncharged(lane);
}

static void refuse(struct process *process, int device, uint64_t bytes, bool by_pool,
                   const char *what)
{
	struct refusal refusal;

	lock_take(&process->account_lock);
	account_count_refusal(&process->account[device], by_pool);
	refusal = refusal_look(process, (uint32_t)device, bytes, by_pool);
	lock_give(&process->account_lock);
	refusal_report(process, (uint32_t)device, &refusal, what);
}

/* by_pool is account_charge()'s. */
static enum ledger_result try_charge(struct process *process, int device, uint64_t bytes,
                                     bool *by_pool)
{
	struct account *account = &process->account[device];
	enum ledger_result result;

	lock_take(&process->account_lock);
	result = account_charge(account, bytes, by_pool);
	lock_give(&process->account_lock);
	return result;
}

/* Give back what the dead hold that this process can see to be dead: of its slice, and of other
 * members of the pool in its pid namespace. Returns whether anything came back. */
static bool settle_dead(struct process *process, int device)
{
	const struct account *account = &process->account[device];
	bool any = sibling_settle_dead(process->ledger, (uint32_t)device, process->lane);

	if (account->pool.ledger)
		any |= sibling_settle_dead(account->pool.ledger, account->pool.device,
		                           account->pool.lane);
	return any;
}

/* The way that is taken seldom: it did not fit at once. */
static __attribute__((noinline)) enum charge_result
charge_slowly(struct process *process, CUdevice ordinal, int device, uint64_t bytes,
              const char *what, enum ledger_result result, bool by_pool)
{
	int saved = errno;

	while (result == LEDGER_REFUSED) {
		bool more = pool_give_back(process, ordinal);

		if (settle_dead(process, device))
			more = true;
		/* Once more even if nothing came back: somebody else may have settled what we saw.
		 */
		result = try_charge(process, device, bytes, &by_pool);
		if (!more)
			break;
	}
	if (result == LEDGER_DAMAGED)
		say_once(process, ONCE_DAMAGED,
		         "the %s's ledger was overwritten: no more GPU memory is granted",
		         by_pool ? "pool" : "slice");
	if (result != LEDGER_OK && what)
		refuse(process, device, bytes, by_pool, what);
	errno = saved;
	return result == LEDGER_OK ? CHARGE_OK : CHARGE_REFUSED;
}

enum charge_result process_charge(CUdevice ordinal, uint64_t bytes, const char *what)
{
	struct process *process = process_attached();
	enum ledger_result result;
	bool by_pool;
	int device;

	if (__builtin_expect(!process, 0))
		return CHARGE_UNATTACHED;
	device = process_device(process, ordinal);
	if (__builtin_expect(device < 0, 0))
		return CHARGE_UNATTACHED;
	if (!bytes)
		return CHARGE_OK; /* a context whose cost nobody knows yet */
	result = try_charge(process, device, bytes, &by_pool);
	if (__builtin_expect(result != LEDGER_OK, 0))
		return charge_slowly(process, ordinal, device, bytes, what, result, by_pool);
	return CHARGE_OK;
}

enum charge_result process_try_charge(CUdevice ordinal, uint64_t bytes)
{
	return process_charge(ordinal, bytes, NULL);
}

/* Add to what is held, up or down, without asking a limit. */
static void adjust(CUdevice ordinal, uint64_t more, uint64_t less, bool context)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;
	struct account *account;

	if (device < 0)
		return;
	account = &process->account[device];
	lock_take(&process->account_lock);
	account_adjust(account, more, less);
	if (context) {
		uint64_t *sum = &process->context_bytes[device];

		*sum = *sum + more > less ? *sum + more - less : 0;
		account_set_context(account, *sum);
	}
	lock_give(&process->account_lock);
}

void process_charge_anyway(CUdevice ordinal, uint64_t bytes)
{
	adjust(ordinal, bytes, 0, false);
}

void process_release(CUdevice ordinal, uint64_t bytes)
{
	adjust(ordinal, 0, bytes, false);
}

enum charge_result process_charge_context(CUdevice ordinal, uint64_t bytes)
{
	enum charge_result result = process_charge(ordinal, bytes, "a context");
	struct process *process = process_get();
	int device;

	if (result != CHARGE_OK)
		return result;
	device = process_device(process, ordinal);
	lock_take(&process->account_lock);
	process->context_bytes[device] += bytes;
	account_set_context(&process->account[device], process->context_bytes[device]);
	lock_give(&process->account_lock);
	return CHARGE_OK;
}

void process_release_context(CUdevice ordinal, uint64_t bytes)
{
	adjust(ordinal, 0, bytes, true);
}

bool process_truth(CUdevice ordinal, uint64_t *bytes)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;
	struct attach_request request = {.op = ATTACH_OP_TRUTH, .device = (uint32_t)device};
	struct attach_reply reply = {0};
	enum ask_result result;
	int saved = errno;

	if (device < 0)
		return false;
	result = ask_enforcer(&request, &reply, NULL, NULL);
	errno = saved;
	if (result != ASK_ANSWERED || reply.status != ATTACH_OK)
		return false;
	*bytes = reply.bytes;
	return true;
}
