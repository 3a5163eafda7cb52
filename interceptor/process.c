/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include "attach_client.h"
#include "quiet.h"
#include "table.h"
#include "upcall.h"

struct process *process_attach(void)
{
	struct process *process = process_get();

	if (__builtin_expect(!__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE), 0)) {
		struct quiet quiet = quiet_begin();

		lock_take(&process->attach_lock);
		if (!process->attached)
			attach_process(process);
		lock_give(&process->attach_lock);
		quiet_end(quiet);
		if (!__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE))
			return NULL;
		gate_begun();
		for (UPCALL_EACH(call, process_begun))
			(*call)();
	}
	return process;
}

CUresult process_device_uuid(CUdevice ordinal, CUuuid *uuid)
{
	/* _v2 distinguishes a MIG instance from its device. */
	return DRIVER_HAS(cuDeviceGetUuid_v2) ? DRIVER(cuDeviceGetUuid_v2)(uuid, ordinal)
	                                      : DRIVER(cuDeviceGetUuid)(uuid, ordinal);
}

/* Called with attach_lock held. */
static int find_device(struct process *process, CUdevice ordinal)
{
	size_t bytes = 0;
	CUuuid uuid;

	if (process_device_uuid(ordinal, &uuid) != CUDA_SUCCESS)
		return -1;
	if (DRIVER_HAS(cuDeviceTotalMem_v2))
		(void)DRIVER(cuDeviceTotalMem_v2)(&bytes, ordinal);
	return attach_device(process, (const uint8_t *)uuid.bytes, bytes, ordinal);
}

const struct common *process_pool(const struct process *process, const uint8_t uuid[16],
                                  uint32_t *device)
{
	for (uint32_t i = 0; i < process->pool_count; i++) {
		int found = account_find_device(process->pools[i].ledger, uuid);

		if (found >= 0) {
			*device = (uint32_t)found;
			return &process->pools[i];
		}
	}
	return NULL;
}

/* Called with account_lock held. False if none of the slice's pools has the device, and nothing may
 * be charged there. (The enforcer adds a device to the pool first, so the pool's page was
 * overwritten.) */
static bool open_account(struct process *process, uint32_t device)
{
	struct account *account = &process->held[device].account;

	if (process->pool_count) {
		uint32_t in_pool;
		const struct common *pool =
		    process_pool(process, process->ledger->device[device].uuid, &in_pool);

		if (!pool)
			return false;
		account->pool = ledger_open(pool->ledger, in_pool, pool->lane);
	}
	account->slice = ledger_open(process->ledger, device, process->lane);
	return true;
}

int process_find_device(struct process *process, CUdevice ordinal)
{
	int device;

	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS)
		return -1;
	QUIETLY;
	LOCKED(&process->attach_lock);
	device = process->device_of[ordinal];
	if (device == 0)
		device = find_device(process, ordinal) + 1;
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
	return device - 1;
}

int process_device_by_uuid(struct process *process, const uint8_t uuid[16], uint64_t bytes)
{
	QUIETLY;
	LOCKED(&process->attach_lock);

	return attach_device(process, uuid, bytes, -1);
}

CUdevice process_current_ordinal(void)
{
	CUresult result;
	CUdevice ordinal;
	int count;

	/* With one device, spare cuCtxGetDevice: 11 ns on an H100's host, much of the interceptor's
	 * cost. */
	if (__builtin_expect(process_has_one_device() && process_seen()->device_of[0], 1))
		return 0;
	if (__atomic_load_n(&at_hand.devices, __ATOMIC_RELAXED) == 0 &&
	    DRIVER_HAS(cuDeviceGetCount) && DRIVER(cuDeviceGetCount)(&count) == CUDA_SUCCESS)
		__atomic_store_n(&at_hand.devices, count, __ATOMIC_RELAXED);
	result = DRIVER(cuCtxGetDevice)(&ordinal);
	if (result == CUDA_SUCCESS)
		return ordinal;
	/* A call in a stream needs no current context, but no call works in an uninitialised
	 * driver, as in a forked child. */
	return process_has_one_device() && result != CUDA_ERROR_NOT_INITIALIZED ? 0 : -1;
}

/* Called with account_lock held. */
static void count_kind(struct held *held, uint64_t more, uint64_t less, enum kind kind)
{
	uint64_t *sum = kind == KIND_OVERHEAD ? &held->overhead : &held->unlisted;

	if (kind == KIND_MEMORY)
		return;
	/* Other threads read it without the lock. */
	__atomic_store_n(sum, *sum + more > less ? *sum + more - less : 0, __ATOMIC_RELAXED);
	if (kind == KIND_OVERHEAD)
		account_set_context(&held->account, *sum);
}

enum ledger_result process_charge(struct process *process, int device, uint64_t bytes,
                                  enum kind kind, bool *by_pool)
{
	struct held *held = &process->held[device];
	enum ledger_result result;

	LOCKED(&process->account_lock);
	result = account_charge(&held->account, bytes, by_pool);
	if (result == LEDGER_OK)
		count_kind(held, bytes, 0, kind);
	return result;
}

static void adjust(CUdevice ordinal, uint64_t more, uint64_t less, enum kind kind)
{
	struct process *process = process_seen();
	int device = process_device_attached(ordinal);

	if (device < 0)
		return;
	LOCKED(&process->account_lock);
	account_adjust(&process->held[device].account, more, less);
	count_kind(&process->held[device], more, less, kind);
}

void process_charge_anyway(CUdevice ordinal, uint64_t bytes, enum kind kind)
{
	adjust(ordinal, bytes, 0, kind);
}

void process_release(CUdevice ordinal, uint64_t bytes, enum kind kind)
{
	adjust(ordinal, 0, bytes, kind);
}

void process_recharge(CUdevice ordinal, uint64_t before, uint64_t after, enum kind kind)
{
	if (after > before)
		process_charge_anyway(ordinal, after - before, kind);
	else if (after < before)
		process_release(ordinal, before - after, kind);
}

bool process_truth(int device, uint64_t *bytes)
{
	struct attach_request request = {.op = ATTACH_OP_TRUTH, .device = (uint32_t)device};
	struct attach_reply reply = {0};
	QUIETLY;

	if (ask_enforcer(&request, &reply, NULL, NULL) != ASK_ANSWERED || reply.status != ATTACH_OK)
		return false;
	*bytes = reply.bytes;
	return true;
}
