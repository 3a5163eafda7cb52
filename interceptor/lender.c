/* SPDX-License-Identifier: Apache-2.0 */
#include "lender.h"

#include "quiet.h"
#include "sibling.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANE_BITS 16 /* low bits of a lender: its lane; above: the generation */
static_assert(LEDGER_LANES <= 1u << LANE_BITS, "a lane's number fits");

/* Returns the lane's owner as a lender; 0: none. */
static uint64_t owner_of(const struct ledger *ledger, uint32_t lane)
{
	const struct ledger_lane *l = &ledger->lane[lane];

	if (__atomic_load_n(&l->state, __ATOMIC_ACQUIRE) == LEDGER_FREE)
		return 0;
	return __atomic_load_n(&l->generation, __ATOMIC_ACQUIRE) << LANE_BITS | lane;
}

uint64_t lender_self(const struct process *process)
{
	return owner_of(process->ledger, process->lane);
}

bool lender_has_left(const struct process *process, uint64_t lender)
{
	return owner_of(process->ledger, lender & ((1u << LANE_BITS) - 1)) != lender;
}

bool lender_is_dead(const struct process *process, uint64_t lender)
{
	uint32_t lane = lender & ((1u << LANE_BITS) - 1);

	return lender_has_left(process, lender) ||
	       sibling_dead(&process->ledger->lane[process->lane], &process->ledger->lane[lane]);
}

/* FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash(uint64_t seed, const void *data, size_t bytes)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < bytes; i++)
		seed = (seed ^ at[i]) * 0x100000001b3ull;
	return seed ? seed : 1;
}

uint64_t lender_name(const void *name)
{
	return hash(0xcbf29ce484222325ull, name, 64);
}

static uint64_t note_of(uint64_t name, uint64_t owner, enum lender_note note)
{
	uint64_t words[] = {owner, note};

	return hash(name, words, sizeof(words));
}

uint64_t lender_who(const struct process *process, uint64_t name, enum lender_note note)
{
	for (uint32_t lane = 1; lane < ledger_lanes(process->ledger); lane++) {
		uint64_t owner = owner_of(process->ledger, lane);

		if (owner && ledger_lent(process->ledger, note_of(name, owner, note)) &&
		    (note == LENDER_LENDS || !lender_is_dead(process, owner)))
			return owner;
	}
	return 0;
}

void lender_note(uint64_t name, enum lender_note note)
{
	struct process *process = process_attached();

	if (process)
		ledger_lend(process->ledger, note_of(name, lender_self(process), note));
}

void lender_unnote(uint64_t name, enum lender_note note)
{
	struct process *process = process_attached();

	if (process)
		ledger_unlend(process->ledger, note_of(name, lender_self(process), note));
}

uint64_t lender_of_name(const void *name)
{
	struct process *process = process_attached();
	QUIETLY;

	return process ? lender_who(process, lender_name(name), LENDER_LENDS) : 0;
}

/* F_SETOWN has no effect without O_ASYNC. A dead process is no owner. */
void lender_own_file(int descriptor)
{
	QUIETLY;
	(void)fcntl(descriptor, F_SETOWN, (int)syscall(SYS_getpid));
}

uint64_t lender_of_file(int descriptor)
{
	struct process *process = process_attached();
	QUIETLY;
	struct f_owner_ex file = {0};
	const struct ledger_lane *me, *other;

	if (!process || fcntl(descriptor, F_GETOWN_EX, &file) != 0 || file.type != F_OWNER_PID ||
	    file.pid <= 0)
		return 0;
	me = &process->ledger->lane[process->lane];
	for (uint32_t lane = 1; lane < ledger_lanes(process->ledger); lane++) {
		uint64_t owner = owner_of(process->ledger, lane);

		other = &process->ledger->lane[lane];
		if (owner && other->pid_ns == me->pid_ns && other->ns_pid == (uint32_t)file.pid)
			return owner;
	}
	return 0;
}
