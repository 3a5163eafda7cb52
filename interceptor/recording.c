/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include "context.h"
#include "quiet.h"
#include "state.h"
#include "stream.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_PACE 100000 /* nanoseconds */

static bool is_own(CUstream stream, bool per_thread)
{
	return stream == STREAM_OWN || (!stream && per_thread);
}

static uint64_t key_of(CUstream stream, bool per_thread)
{
	return is_own(stream, per_thread) ? process_this_thread() : map_key_of(stream);
}

static void put(uint64_t key, const struct recording *recording)
{
	STATE_LOCKED(recordings, recordings);
	struct recording *known = map_put(&recordings->known, key, NULL);

	if (known)
		*known = *recording;
}

void recording_begin(CUstream stream, bool per_thread)
{
	struct timespec pace = {.tv_nsec = WAIT_PACE};
	CUcontext context = stream_context(stream);
	struct recording recording = {
	    .context = context ? (uint64_t)(uintptr_t)context : context_current(), .begins = true};
	QUIETLY;

	if (is_own(stream, per_thread))
		recording.thread = (uint32_t)syscall(SYS_gettid);
	put(key_of(stream, per_thread), &recording);
	while (__atomic_load_n(&state.recordings.waits, __ATOMIC_SEQ_CST))
		nanosleep(&pace, NULL);
}

void recording_update(CUstream stream, bool per_thread)
{
	bool records = stream_records(stream, per_thread);
	STATE_LOCKED(recordings, recordings);
	struct recording *known = map_find(&recordings->known, key_of(stream, per_thread));

	if (known && records)
		known->begins = false;
	else if (known)
		map_remove(&recordings->known, known);
}

bool recording_take(CUstream stream, struct recording *recording)
{
	STATE_LOCKED(recordings, recordings);
	struct recording *known = map_find(&recordings->known, map_key_of(stream));

	if (known) {
		*recording = *known;
		map_remove(&recordings->known, known);
	}
	return known;
}

void recording_put(CUstream stream, const struct recording *recording)
{
	put(map_key_of(stream), recording);
}

void recording_context_gone(uint64_t context)
{
	STATE_LOCKED(recordings, recordings);
	struct recording *at = NULL;

	while ((at = map_next(&recordings->known, at))) {
		if (at->context == context)
			at = map_remove_at(&recordings->known, at);
	}
}

static bool is_alive(uint32_t thread)
{
	QUIETLY;

	return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH;
}

static bool is_under_way(uint64_t key, const struct recording *recording)
{
	CUstream stream = recording->thread ? STREAM_OWN : (CUstream)(uintptr_t)key;
	CUresult result;
	int status = 0;

	if (recording->begins)
		return true;
	/* A default stream of another thread has no handle here. */
	if (recording->thread && key != process_this_thread())
		return is_alive(recording->thread);
	if (context_enter(recording->context) != CUDA_SUCCESS)
		return false;
	result = BEHIND(cuStreamIsCapturing)(stream, &status);
	context_leave();
	return result == CUDA_SUCCESS && status;
}

bool recording_any(void)
{
	STATE_LOCKED(recordings, recordings);
	struct recording *at = NULL;
	bool any = false;

	while (!any && (at = map_next(&recordings->known, at))) {
		any = is_under_way(map_key(at), at);
		if (!any)
			at = map_remove_at(&recordings->known, at);
	}
	return any;
}

CUresult recording_wait(uint64_t owner)
{
	uint32_t *waits = &state.recordings.waits;
	CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

	__atomic_fetch_add(waits, 1, __ATOMIC_SEQ_CST);
	if (!recording_any())
		result = context_wait(owner);
	__atomic_fetch_sub(waits, 1, __ATOMIC_SEQ_CST);
	return result;
}
