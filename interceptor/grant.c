/* SPDX-License-Identifier: Apache-2.0 */
#include "grant.h"

#include "quiet.h"
#include "refusal.h"
#include "say.h"
#include "sibling.h"
#include "table.h"

/* Settle exited siblings that this process can see: of its slice, and of the pool's other slices in
 * its pid namespace. Return whether any bytes were released. */
static bool settle_dead(struct process *process, int device)
{
	const struct account *account = &process->held[device].account;
	bool any = sibling_settle_dead(process->ledger, (uint32_t)device, process->lane);

	if (account->pool.ledger)
		any |= sibling_settle_dead(account->pool.ledger, account->pool.device,
		                           account->pool.lane);
	return any;
}

struct request {
	CUdevice ordinal;
	uint64_t bytes;
	enum kind kind;
	enum ledger_call call;
	bool quietly; /* an optional request */
};

/* The request did not fit at once. */
static __attribute__((noinline)) enum grant_result make_room(struct process *process, int device,
                                                             const struct request *request,
                                                             enum ledger_result result,
                                                             bool by_pool)
{
	QUIETLY;

	while (result == LEDGER_REFUSED) {
		bool more = false;

		for (UPCALL_EACH(call, grant_room))
			more |= (*call)(request->ordinal);
		more |= settle_dead(process, device);
		/* Retry even if nothing was released: another process may have settled the same
		 * sibling. */
		result = process_charge(process, device, request->bytes, request->kind, &by_pool);
		if (!more)
			break;
	}
	if (result == LEDGER_DAMAGED)
		say_once(process, ONCE_DAMAGED,
		         "the %s's ledger was overwritten: no more GPU memory is granted",
		         by_pool ? "pool" : "slice");
	if (result != LEDGER_OK && !request->quietly)
		refusal_report(process, (uint32_t)device, request->bytes, by_pool, request->call);
	return result == LEDGER_OK ? GRANTED : REFUSED;
}

static bool is_open(int device)
{
	return __atomic_load_n(&process_seen()->open, __ATOMIC_RELAXED) & 1u << device;
}

static void settle(CUdevice ordinal, int device)
{
	for (UPCALL_EACH(call, grant_settle))
		(*call)(ordinal, device);
}

static enum grant_result fulfil(const struct request *request)
{
	struct process *process = process_attached();
	enum ledger_result result;
	bool by_pool;
	int device;

	if (__builtin_expect(!process, 0))
		return UNATTACHED;
	device = process_device(process, request->ordinal);
	if (__builtin_expect(device < 0, 0))
		return UNATTACHED;
	if (!request->bytes)
		return GRANTED;
	/* Driver truth cannot tell a small allocation under way from overhead: settle after it. */
	if (__builtin_expect(is_open(device), 0) && request->kind != KIND_OVERHEAD &&
	    request->call != LEDGER_CALL_BLOCK)
		settle(request->ordinal, device);
	result = process_charge(process, device, request->bytes, request->kind, &by_pool);
	if (__builtin_expect(result != LEDGER_OK, 0))
		return make_room(process, device, request, result, by_pool);
	return GRANTED;
}

enum grant_result grant(CUdevice ordinal, uint64_t bytes, enum kind kind, enum ledger_call call)
{
	struct request request = {.ordinal = ordinal, .bytes = bytes, .kind = kind, .call = call};

	return fulfil(&request);
}

enum grant_result grant_if_free(CUdevice ordinal, uint64_t bytes, enum kind kind)
{
	struct request request = {
	    .ordinal = ordinal, .bytes = bytes, .kind = kind, .quietly = true};

	return fulfil(&request);
}

CUresult grant_error(void)
{
	CUdevice ordinal;
	CUresult result = DRIVER(cuCtxGetDevice)(&ordinal);

	return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult grant_error_on(CUdevice ordinal)
{
	CUresult result = process_device_uuid(ordinal, &(CUuuid){{0}});

	return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

bool grant_any_left(CUdevice ordinal, enum ledger_call call)
{
	if (grant(ordinal, 1, KIND_OVERHEAD, call) != GRANTED)
		return false;
	process_release(ordinal, 1, KIND_OVERHEAD);
	return true;
}

/* Let the first thread find these words without a search. */
static void note_at_once(struct process *process, const struct ledger_account *account)
{
	struct at_once *at = &process->at_once;

	if (__atomic_load_n(&at->uncharged, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&at->allocations, ledger_allocations_word(account), __ATOMIC_RELAXED);
	__atomic_store_n(&at->uncharged, &account->ledger->lane[account->lane].first_uncharged,
	                 __ATOMIC_RELEASE);
}

const struct ledger_account *grant_begin_uncharged(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);
	const struct ledger_account *account;

	if (device < 0)
		return NULL;
	account = &process_seen()->held[device].account.slice;
	ledger_begin_uncharged(account, process_is_first_thread());
	if (process_has_one_device() && at_hand.wiped)
		note_at_once(process_seen(), account);
	return account;
}

void grant_end_uncharged(const struct ledger_account *account, bool succeeded)
{
	bool first;

	if (__builtin_expect(!account->ledger, 0))
		return; /* a child that a signal handler has just forked, not attached yet */
	first = process_is_first_thread();
	if (succeeded)
		ledger_count_allocation(account, first);
	ledger_end_uncharged(account, first);
}

void grant_settle_after(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device >= 0 && is_open(device))
		settle(ordinal, device);
}

void grant_retire_allocations(CUdevice ordinal, uint32_t *full)
{
	struct process *process = process_get();

	ledger_retire_allocations(process->ledger, (uint32_t)process_device(process, ordinal),
	                          full);
}

void grant_count(CUdevice ordinal)
{
	struct process *process = process_get();
	int device = process_device(process, ordinal);

	if (device >= 0)
		ledger_count_allocation(&process->held[device].account.slice,
		                        process_is_first_thread());
}
