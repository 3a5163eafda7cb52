/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include "atomic128.h"

static uint64_t load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *p, uint64_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

/* Copies of a refusal that keeps changing. */
#define REFUSAL_TRIES 8

static uint64_t tag_of(uint32_t lane, uint64_t number)
{
	return (uint64_t)lane << 48 | number;
}

/* Raises *p to `value`; a plain store could undo a later writer's higher one. False if the word is
 * rewritten without end. */
static bool raise_to(uint64_t *p, uint64_t value)
{
	uint64_t seen = load(p);

	for (uint32_t tries = 0; seen < value; tries++) {
		if (__atomic_compare_exchange_n(p, &seen, value, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE))
			break;
		if (tries == LEDGER_TRIES)
			return false;
	}
	return true;
}

void ledger_format(struct ledger *ledger, const uint8_t slice[16])
{
	for (unsigned i = 0; i < 16; i++)
		ledger->slice[i] = slice[i];
	ledger->layout = LEDGER_LAYOUT;
	ledger->lanes = LEDGER_LANES;
	ledger->size = sizeof(struct ledger);
	store(&ledger->magic, LEDGER_MAGIC);
}

bool ledger_valid(const struct ledger *ledger, uint64_t size)
{
	return size == sizeof(struct ledger) && load(&ledger->magic) == LEDGER_MAGIC &&
	       ledger->layout == LEDGER_LAYOUT && ledger->lanes == LEDGER_LANES &&
	       ledger->size == size;
}

/* Reports whether the change took effect. The tag is read first: if the tag was replaced earlier,
 * the change was confirmed before that, and the second read sees it. */
static bool took_effect(const struct ledger *ledger, uint32_t device, uint32_t lane,
                        uint64_t number)
{
	if (load(&ledger->device[device].word.tag) == tag_of(lane, number))
		return true;
	return load(&ledger->lane[lane].entry[device].confirmed) >= number;
}

/*
 * The only place where the device word changes. `sum` is what the lane will hold after change
 * `number`, `held` what it holds now. `limited` refuses what does not fit.
 *
 * Returns LEDGER_OK once the change took effect. *ours is false if another process settled the
 * lane.
 */
static enum ledger_result change(struct ledger *ledger, uint32_t device, uint32_t lane,
                                 uint64_t number, uint64_t held, uint64_t sum, bool limited,
                                 bool settling, bool *ours)
{
	struct ledger_device *d = &ledger->device[device];
	struct ledger_entry *entry = &ledger->lane[lane].entry[device];

	*ours = false;
	if (number > LEDGER_TAG_NUMBER)
		return LEDGER_DAMAGED;
	for (uint32_t tries = 0; tries < LEDGER_TRIES; tries++) {
		uint64_t seen[2], used, previous;

		/* The tag first: it names one state of the word, so a swap that finds it again has
		 * seen no change. */
		seen[1] = load(&d->word.tag);
		seen[0] = load(&d->word.used);

		if (settling) {
			if (seen[1] == tag_of(lane, number) || load(&entry->confirmed) >= number)
				return LEDGER_OK;
		}
		if (sum >= held) {
			uint64_t more = sum - held;

			if (limited) {
				/* Read after the tag and before the swap: ledger_limit() changes
				 * the tag after it has stored a new limit. */
				uint64_t limit = load(&d->limit);

				if (seen[0] > limit || more > limit - seen[0]) {
					/* Two reads: valid together only if the word has not
					 * changed. */
					if (load(&d->word.tag) == seen[1])
						return LEDGER_REFUSED;
					continue;
				}
			}
			used = seen[0] + more;
			if (used < seen[0])
				return LEDGER_DAMAGED;
		} else {
			uint64_t less = held - sum;

			/* The page was overwritten. Zero is the closest estimate; the enforcer
			 * finds the damage. */
			used = seen[0] >= less ? seen[0] - less : 0;
		}

		previous = seen[1] >> 48;
		if (previous > LEDGER_SLOTS)
			return LEDGER_DAMAGED;
		/* Confirm the change about to be replaced: its writer may be dead or stopped. */
		if (!raise_to(&ledger->lane[previous].entry[device].confirmed,
		              seen[1] & LEDGER_TAG_NUMBER) ||
		    !raise_to(&d->peak, seen[0]))
			return LEDGER_BUSY;

		if (!settling) {
			/* The number first: ledger_held() may be reading the older sum, and detects
			 * the overwrite by the number. No reader uses this sum before the swap. */
			store(&entry->number, number);
			store(&entry->sum[number & 1], sum);
		}
		if (atomic128_swap(&d->word.used, seen, used, tag_of(lane, number))) {
			*ours = true;
			return LEDGER_OK;
		}
	}
	return LEDGER_BUSY;
}

struct ledger_account ledger_open(struct ledger *ledger, uint32_t device, uint32_t lane)
{
	const struct ledger_entry *entry = &ledger->lane[lane].entry[device];
	uint64_t number = load(&entry->number);
	struct ledger_account account = {
	    .ledger = ledger, .device = device, .lane = lane, .number = number};

	/* Number 0: no change was written yet. */
	if (number > 0 && !took_effect(ledger, device, lane, number))
		account.number = number - 1;
	account.held = load(&entry->sum[account.number & 1]);
	return account;
}

static enum ledger_result move(struct ledger_account *account, uint64_t sum, bool limited)
{
	bool ours;
	enum ledger_result result =
	    change(account->ledger, account->device, account->lane, account->number + 1,
	           account->held, sum, limited, false, &ours);

	if (result == LEDGER_OK) {
		account->number++;
		account->held = sum;
	}
	return result;
}

enum ledger_result ledger_charge(struct ledger_account *account, uint64_t bytes)
{
	if (bytes > UINT64_MAX - account->held)
		return LEDGER_REFUSED;
	if (__atomic_load_n(&account->ledger->flags, __ATOMIC_ACQUIRE) & LEDGER_CLOSED)
		return LEDGER_REFUSED;
	return move(account, account->held + bytes, true);
}

enum ledger_result ledger_set(struct ledger_account *account, uint64_t held)
{
	if (held == account->held)
		return LEDGER_OK;
	return move(account, held, false);
}

enum ledger_result ledger_release(struct ledger_account *account, uint64_t bytes)
{
	return ledger_set(account, bytes < account->held ? account->held - bytes : 0);
}

enum ledger_result ledger_limit(struct ledger_account *account, uint64_t limit)
{
	store(&account->ledger->device[account->device].limit, limit);
	/* Fails the swap of a charge that read the older limit, since it has read the tag
	 * before. */
	return move(account, account->held, false);
}

enum ledger_result ledger_settle(struct ledger *ledger, uint32_t device, uint32_t lane,
                                 uint64_t generation, uint64_t *bytes)
{
	const struct ledger_lane *l;
	const struct ledger_entry *entry;
	uint64_t number, sum;
	enum ledger_result result;
	bool ours;

	/* A successor opens the enforcer's lane as it is. */
	if (lane == 0 || lane >= LEDGER_LANES || device >= LEDGER_DEVICES)
		return LEDGER_DAMAGED;
	l = &ledger->lane[lane];
	entry = &l->entry[device];
	if (bytes)
		*bytes = 0;
	if (load(&l->generation) != generation)
		return LEDGER_OK;
	/* The owner is dead, so number and sums are stable while the generation is unchanged. */
	number = load(&entry->number);
	if (number > 0 && !took_effect(ledger, device, lane, number))
		sum = load(&entry->sum[(number - 1) & 1]);
	else
		sum = load(&entry->sum[number & 1]);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (load(&l->generation) != generation)
		return LEDGER_OK;
	if (sum == 0)
		return LEDGER_OK;

	result = change(ledger, device, lane, number + 1, sum, 0, false, true, &ours);
	if (result == LEDGER_OK && ours) {
		__atomic_fetch_add(&ledger->device[device].recovered, sum, __ATOMIC_RELAXED);
		if (bytes)
			*bytes = sum;
	}
	return result;
}

enum ledger_result ledger_recycle(struct ledger *ledger, uint32_t lane)
{
	struct ledger_lane *l = &ledger->lane[lane];
	uint64_t generation = load(&l->generation);

	for (uint32_t device = 0; device < LEDGER_DEVICES; device++) {
		enum ledger_result result = ledger_settle(ledger, device, lane, generation, NULL);

		if (result != LEDGER_OK)
			return result;
	}
	/* The generation first, so that a late settler detects its stale reading. */
	store(&l->generation, generation + 1);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (load(&l->first_uncharged) != 0)
		store(&l->first_uncharged, 0);
	if (load(&l->loads) != 0)
		store(&l->loads, 0);
	if (load(&l->calls) != 0)
		store(&l->calls, 0);
	if (load(&l->described) != 0) {
		store(&l->described, 0);
		store(&l->reported, 0);
	}
	l->move = (struct ledger_move){0};
	for (uint32_t device = 0; device < LEDGER_DEVICES; device++) {
		struct ledger_device *d = &ledger->device[device];
		struct ledger_entry *entry = &l->entry[device];

		/* The owner may have died in such a call before it charged anything. */
		if (load(&entry->uncharged) != 0)
			store(&entry->uncharged, 0);
		if (load(&entry->number) == 0)
			continue; /* never used: spare the page */
		__atomic_fetch_add(&d->retired_allocations, ledger_allocations(entry),
		                   __ATOMIC_RELAXED);
		d->retired_refusals += entry->refusals;
		entry->allocations = entry->refusals = entry->context = 0;
		entry->sum[0] = entry->sum[1] = 0;
		/* Skip the number with which this lane was settled. */
		store(&entry->number, entry->number + 1);
	}
	return LEDGER_OK;
}

/* Count at which a half of entry.allocations is retired. */
#define HALF_FULL (1u << 31)

void ledger_retire_allocations(struct ledger *ledger, uint32_t device, uint32_t *half)
{
	/* Several threads may see that this half is full. Only one swap succeeds, and its thread
	 * retires the half. */
	uint32_t now = __atomic_load_n(half, __ATOMIC_RELAXED);

	while (now >= HALF_FULL && !__atomic_compare_exchange_n(half, &now, now - HALF_FULL, false,
	                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	if (now >= HALF_FULL)
		__atomic_fetch_add(&ledger->device[device].retired_allocations, HALF_FULL,
		                   __ATOMIC_RELAXED);
}

uint64_t ledger_allocations(const struct ledger_entry *entry)
{
	uint64_t word = __atomic_load_n(&entry->allocations, __ATOMIC_RELAXED);

	return (uint32_t)word + (word >> 32);
}

void ledger_count_refusal(const struct ledger_account *account)
{
	uint64_t *n = &account->ledger->lane[account->lane].entry[account->device].refusals;

	__atomic_fetch_add(n, 1, __ATOMIC_RELEASE); /* after ledger_describe_refusal() */
}

void ledger_describe_refusal(struct ledger *ledger, uint32_t lane,
                             const struct ledger_refusal *refusal)
{
	struct ledger_lane *l = &ledger->lane[lane];
	struct ledger_refusal next = *refusal;
	uint64_t described = load(&l->described);
	bool reported = described == load(&l->reported);

	next.needed = refusal->by_pool ? 0 : refusal->used + refusal->bytes;
	if (!reported && l->refusal.device == next.device && l->refusal.needed > next.needed)
		next.needed = l->refusal.needed;
	store(&l->described, described + 1);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	l->refusal = next;
	store(&l->described, described + 2);
}

uint64_t ledger_last_refusal(const struct ledger *ledger, uint32_t lane,
                             struct ledger_refusal *refusal)
{
	const struct ledger_lane *l = &ledger->lane[lane];

	for (unsigned tries = 0; tries < REFUSAL_TRIES; tries++) {
		uint64_t described = load(&l->described);

		if (described == load(&l->reported))
			return 0;
		*refusal = l->refusal;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (described % 2 == 0 && load(&l->described) == described)
			return described;
	}
	return 0;
}

void ledger_set_context(const struct ledger_account *account, uint64_t bytes)
{
	store(&account->ledger->lane[account->lane].entry[account->device].context, bytes);
}

uint64_t ledger_held(const struct ledger *ledger, uint32_t device, uint32_t lane)
{
	const struct ledger_entry *entry = &ledger->lane[lane].entry[device];
	uint64_t sum = 0;

	/* The sums alternate, so a concurrent change can yield the wrong one: read until the number
	 * is stable. */
	for (unsigned tries = 0; tries < 1000; tries++) {
		uint64_t number = load(&entry->number);
		bool took = number == 0 || took_effect(ledger, device, lane, number);

		sum = load(&entry->sum[(took ? number : number - 1) & 1]);
		/* Only settling changes without writing intent. After `took`: confirming a later
		 * number confirms this one. */
		if (took_effect(ledger, device, lane, number + 1))
			sum = 0;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (load(&entry->number) == number)
			break;
	}
	return sum;
}

uint64_t ledger_number(const struct ledger *ledger, uint32_t device, uint32_t lane)
{
	const struct ledger_entry *entry = &ledger->lane[lane].entry[device];
	uint64_t took = 0;

	/* Not entry->number: it is written before the change takes effect, and reused after a
	 * refusal. */
	for (unsigned tries = 0; tries < 1000; tries++) {
		uint64_t number = load(&entry->number);

		took = number;
		if (took_effect(ledger, device, lane, number + 1))
			took = number + 1;
		else if (number > 0 && !took_effect(ledger, device, lane, number))
			took = number - 1;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (load(&entry->number) == number)
			break;
	}
	return took;
}

struct ledger_uncharged ledger_uncharged(const struct ledger *ledger, uint32_t device,
                                         uint32_t lane)
{
	const struct ledger_lane *l = &ledger->lane[lane];
	uint64_t first = load(&l->first_uncharged), others = load(&l->entry[device].uncharged);

	return (struct ledger_uncharged){(uint32_t)first + (uint32_t)others,
	                                 (uint32_t)(first >> 32) + (uint32_t)(others >> 32)};
}

struct ledger_uncharged ledger_loads(const struct ledger *ledger, uint32_t lane)
{
	uint64_t word = load(&ledger->lane[lane].loads);

	return (struct ledger_uncharged){(uint32_t)word, (uint32_t)(word >> 32)};
}

/* Adjacent places of one name. */
#define SHARED_WAYS 8u

static uint32_t shared_place(uint64_t name)
{
	return (uint32_t)(name % (LEDGER_SHARED / SHARED_WAYS)) * SHARED_WAYS;
}

bool ledger_lent(const struct ledger *ledger, uint64_t name)
{
	uint32_t place = shared_place(name);

	for (uint32_t i = 0; name && i < SHARED_WAYS; i++) {
		if (load(&ledger->shared[place + i]) == name)
			return true;
	}
	return false;
}

void ledger_lend(struct ledger *ledger, uint64_t name)
{
	uint32_t place = shared_place(name);
	uint64_t pushed_out = name;

	if (!name || ledger_lent(ledger, name))
		return;
	for (uint32_t i = 0; i < SHARED_WAYS; i++) {
		uint64_t none = 0;

		if (__atomic_compare_exchange_n(&ledger->shared[place + i], &none, name, false,
		                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return;
	}
	/* All in use: drop the oldest. */
	for (uint32_t i = 0; i < SHARED_WAYS; i++)
		pushed_out =
		    __atomic_exchange_n(&ledger->shared[place + i], pushed_out, __ATOMIC_ACQ_REL);
}

void ledger_unlend(struct ledger *ledger, uint64_t name)
{
	uint32_t place = shared_place(name);

	for (uint32_t i = 0; name && i < SHARED_WAYS; i++) {
		uint64_t noted = name;

		(void)__atomic_compare_exchange_n(&ledger->shared[place + i], &noted, 0, false,
		                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
}
