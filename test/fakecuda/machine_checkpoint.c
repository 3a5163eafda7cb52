/* SPDX-License-Identifier: Apache-2.0 */
#include "machine_checkpoint.h"

#include "machine_state.h"

/* With the state locked. -1: there is none. */
static int find(pid_t wanted)
{
	unsigned count = atomic_load(&machine_state->record_count);
	pid_t pid;

	for (unsigned i = 0; wanted > 0 && i < count; i++)
		if (machine_record_is_live(i, &pid) && pid == wanted)
			return (int)i;
	return -1;
}

static void put_away(unsigned record)
{
	for (unsigned d = 0; d < machine_state->device_count; d++) {
		machine_state->away_listed[d][record] +=
		    atomic_exchange(&machine_state->listed[d][record], 0);
		machine_state->away_unlisted[d][record] +=
		    atomic_exchange(&machine_state->unlisted[d][record], 0);
	}
}

static bool take_back(unsigned record)
{
	for (unsigned d = 0; d < machine_state->device_count; d++) {
		uint64_t bytes =
		    machine_state->away_listed[d][record] + machine_state->away_unlisted[d][record];

		if (!machine_fits(d, bytes) || !machine_limits_allow(d, record, bytes))
			return false;
	}
	for (unsigned d = 0; d < machine_state->device_count; d++) {
		atomic_fetch_add(&machine_state->listed[d][record],
		                 machine_state->away_listed[d][record]);
		atomic_fetch_add(&machine_state->unlisted[d][record],
		                 machine_state->away_unlisted[d][record]);
		machine_state->away_listed[d][record] = 0;
		machine_state->away_unlisted[d][record] = 0;
	}
	return true;
}

enum machine_step machine_phase(pid_t pid, enum machine_phase *phase)
{
	int record;

	machine_lock();
	record = find(pid);
	if (record != -1)
		*phase = (enum machine_phase)atomic_load(&machine_state->phase[record]);
	machine_unlock();
	return record == -1 ? MACHINE_STEP_NO_PROCESS : MACHINE_STEP_DONE;
}

enum machine_step machine_step(pid_t pid, enum machine_phase from, enum machine_phase to)
{
	enum machine_step step = MACHINE_STEP_DONE;
	int record;

	machine_lock();
	record = find(pid);
	if (record == -1)
		step = MACHINE_STEP_NO_PROCESS;
	else if (atomic_load(&machine_state->phase[record]) == MACHINE_LOST)
		step = MACHINE_STEP_LOST;
	else if (atomic_load(&machine_state->phase[record]) != (int)from)
		step = MACHINE_STEP_WRONG;
	else if (to == MACHINE_CHECKPOINTED && atomic_load(&machine_state->unmovable[record]) > 0)
		step = MACHINE_STEP_UNMOVABLE;
	else if (to == MACHINE_CHECKPOINTED)
		put_away((unsigned)record);
	else if (from == MACHINE_CHECKPOINTED && !take_back((unsigned)record))
		step = MACHINE_STEP_NO_MEMORY;
	if (step == MACHINE_STEP_DONE)
		atomic_store(&machine_state->phase[record], (int)to);
	else if (step == MACHINE_STEP_NO_MEMORY)
		atomic_store(&machine_state->phase[record], MACHINE_LOST);
	machine_unlock();
	return step;
}

void machine_add_unmovable(int count)
{
	atomic_fetch_add(&machine_state->unmovable[machine_own_record()], count);
}

bool machine_is_locked(void)
{
	return atomic_load(&machine_state->phase[machine_own_record()]) != MACHINE_RUNNING;
}
