/* SPDX-License-Identifier: Apache-2.0 */
#include "import.h"

#include "grant.h"
#include "lender.h"
#include "pages.h"
#include "quiet.h"
#include "state.h"

static struct imports *imports(void)
{
	return &state_get()->imports;
}

/* Called with the lock held. */
static struct import *new_import(struct imports *all)
{
	struct import *import = all->free;

	if (!import)
		return pages_map(sizeof(*import));
	all->free = import->next;
	return import;
}

/* Called with the lock held. */
static bool open_name(struct imports *all, uint64_t name)
{
	uint32_t *count = map_put(&all->opened, name, NULL);

	if (count && !(*count)++)
		lender_note(name, LENDER_OPEN);
	return count;
}

static void close_name(struct imports *all, uint64_t name)
{
	uint32_t *count = map_find(&all->opened, name);

	if (!count || --*count)
		return;
	map_remove(&all->opened, count);
	lender_unnote(name, LENDER_OPEN);
}

/* Called with the lock held. The lender need not detect it any more. */
static void remove_marks(struct imports *all, struct import *import)
{
	if (import->descriptor)
		fileset_close(import->descriptor);
	if (import->name)
		close_name(all, import->name);
	import->descriptor = 0;
	import->name = import->lender = 0;
}

struct import *import_begin(uint64_t lender, CUdevice ordinal, int descriptor, const void *name)
{
	struct imports *all = imports();
	QUIETLY;
	struct import *import;
	int kept = 0;

	if (lender)
		recheck_begin();
	if (lender && descriptor >= 0 && !name)
		kept = fileset_keep(&state_get()->handovers.files, descriptor);
	lock_take(&all->lock);
	import = new_import(all);
	if (import) {
		*import = (struct import){.references = 1, .ordinal = ordinal, .next = all->list};
		all->list = import;
		if (name && lender && open_name(all, lender_name(name)))
			import->name = lender_name(name);
		if (kept > 0)
			import->descriptor = kept;
		if (import->name || import->descriptor)
			import->lender = lender;
	}
	lock_give(&all->lock);
	if (import && import->lender)
		recheck_wake();
	return import;
}

/* Called with the lock held. Charges this process from now on. */
static void take_over(struct imports *all, struct import *import)
{
	remove_marks(all, import);
	import->charged = import->bytes;
	if (import->ordinal >= 0)
		process_charge_anyway(import->ordinal, import->charged, KIND_MEMORY);
}

void import_is_on(struct import *import, CUdevice ordinal)
{
	LOCKED(&imports()->lock);

	import->ordinal = ordinal;
}

bool import_reaches(struct import *import, uint64_t bytes, enum ledger_call call, uint64_t *more)
{
	struct imports *all = imports();
	struct process *process = process_attached();
	uint64_t wish = 0;

	lock_take(&all->lock);
	if (import->lender && process && lender_has_left(process, import->lender))
		take_over(all, import);
	if (!import->lender && bytes > import->charged)
		wish = bytes - import->charged;
	if (!wish && bytes > import->bytes)
		import->bytes = bytes;
	lock_give(&all->lock);
	if (more)
		*more = wish;
	if (!wish)
		return true;
	if (grant(import->ordinal, wish, KIND_MEMORY, call) != GRANTED)
		return false;
	lock_take(&all->lock);
	import->charged += wish;
	import->bytes = import->charged;
	lock_give(&all->lock);
	return true;
}

void import_shrinks(struct import *import, uint64_t bytes)
{
	struct imports *all = STATE_TAKE(imports);

	import->charged -= bytes;
	import->bytes -= bytes;
	lock_give(&all->lock);
	process_release(import->ordinal, bytes, KIND_MEMORY);
}

void import_refer(struct import *import)
{
	LOCKED(&imports()->lock);

	import->references++;
}

void import_end(struct import *import)
{
	struct imports *all = imports();
	struct import **link;

	if (!import)
		return;
	QUIETLY;
	LOCKED(&all->lock);
	if (--import->references == 0) {
		for (link = &all->list; *link != import; link = &(*link)->next)
			;
		*link = import->next;
		if (import->charged)
			process_release(import->ordinal, import->charged, KIND_MEMORY);
		remove_marks(all, import);
		import->next = all->free;
		all->free = import;
	}
}

/* Charges this process for memory of dead lenders. Returns whether any lender is alive. */
static bool watch_lenders(void)
{
	struct imports *all = imports();
	struct process *process = process_attached();
	bool any = false;

	if (!process)
		return false;
	LOCKED(&all->lock);
	for (struct import *import = all->list; import; import = import->next) {
		if (!import->lender || import->lender == lender_self(process))
			continue;
		if (lender_is_dead(process, import->lender))
			take_over(all, import);
		else
			any = true;
	}
	return any;
}
UPCALL(recheck, watch_lenders);
