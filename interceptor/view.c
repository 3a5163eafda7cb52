/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

struct view view_of(const struct process *process, int device)
{
	struct view view = {.total = UINT64_MAX, .left = 0};
	const struct ledger_device *d;
	uint64_t limit, used;

	if (!process || device < 0)
		return view;
	d = &process->ledger->device[device];
	used = __atomic_load_n(&d->word.used, __ATOMIC_RELAXED);
	limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
	if (!process->ledger->record)
		view.total = __atomic_load_n(&d->quota, __ATOMIC_RELAXED);
	view.left = limit > used ? limit - used : 0;
	return view;
}
