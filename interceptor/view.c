/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include "handover.h"

/* The slice's pool may have less left than the slice. */
static struct view with_pool(const struct process *process, const uint8_t *uuid, struct view view)
{
	uint32_t device;
	const struct common *pool = process_pool(process, uuid, &device);
	const struct ledger_device *d;
	uint64_t limit, used;

	if (!pool)
		return (struct view){.total = view.total, .left = 0};
	d = &pool->ledger->device[device];
	used = __atomic_load_n(&d->word.used, __ATOMIC_RELAXED);
	limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
	view.total = least(view.total, __atomic_load_n(&d->quota, __ATOMIC_RELAXED));
	view.left = least(view.left, limit > used ? limit - used : 0);
	return view;
}

struct view view_of(int device)
{
	const struct process *process = process_seen();
	struct view view = {.total = UINT64_MAX, .left = 0};
	const struct ledger_device *d;
	uint64_t limit, used;

	if (device < 0)
		return view;
	handover_look();
	d = &process->ledger->device[device];
	used = __atomic_load_n(&d->word.used, __ATOMIC_RELAXED);
	limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
	if (!process->ledger->record)
		view.total = __atomic_load_n(&d->quota, __ATOMIC_RELAXED);
	view.left = limit > used ? limit - used : 0;
	return process->pool_count ? with_pool(process, d->uuid, view) : view;
}
