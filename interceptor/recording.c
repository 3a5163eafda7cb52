/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include "context.h"
#include "state.h"
#include "stream.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_own(CUstream stream, bool per_thread)
{
	return stream == STREAM_OWN || (!stream && per_thread);
}

static uint64_t key_of(CUstream stream, bool per_thread)
{
	return is_own(stream, per_thread) ? process_this_thread() : (uint64_t)(uintptr_t)stream;
}

static void put(uint64_t key, const struct recording *recording)
{
	struct recordings *recordings = STATE_TAKE(recordings);
	struct recording *known = map_put(&recordings->known, key, NULL);

	if (known)
		*known = *recording;
	lock_give(&recordings->lock);
}

static bool take(uint64_t key, struct recording *recording)
{
	struct recordings *recordings = STATE_TAKE(recordings);
	struct recording *known = map_find(&recordings->known, key);

	if (known) {
		*recording = *known;
		map_remove(&recordings->known, known);
	}
	lock_give(&recordings->lock);
	return known;
}

void recording_began(CUstream stream, bool per_thread)
{
	CUcontext context = stream_context(stream);
	struct recording recording = {.context = context ? (uint64_t)(uintptr_t)context
	                                                 : context_current()};

	if (is_own(stream, per_thread))
		recording.thread = (uint32_t)syscall(SYS_gettid);
	put(key_of(stream, per_thread), &recording);
}

void recording_ended(CUstream stream, bool per_thread)
{
	struct recording recording;

	if (!stream_records(stream, per_thread))
		(void)take(key_of(stream, per_thread), &recording);
}

bool recording_take(CUstream stream, struct recording *recording)
{
	return take((uint64_t)(uintptr_t)stream, recording);
}

void recording_put(CUstream stream, const struct recording *recording)
{
	put((uint64_t)(uintptr_t)stream, recording);
}

void recording_context_gone(uint64_t context)
{
	struct recordings *recordings = STATE_TAKE(recordings);
	struct recording *at = NULL;

	while ((at = map_next(&recordings->known, at))) {
		if (at->context == context)
			at = map_remove_at(&recordings->known, at);
	}
	lock_give(&recordings->lock);
}

static bool is_alive(uint32_t thread)
{
	int saved = errno;
	bool alive = syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH;

	errno = saved;
	return alive;
}

static bool records(uint64_t key, const struct recording *recording)
{
	CUstream stream = recording->thread ? STREAM_OWN : (CUstream)(uintptr_t)key;
	CUresult result;
	int status = 0;

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
	struct recordings *recordings = STATE_TAKE(recordings);
	struct recording *at = NULL;
	bool any = false;

	while (!any && (at = map_next(&recordings->known, at))) {
		any = records(map_key(at), at);
		if (!any)
			at = map_remove_at(&recordings->known, at);
	}
	lock_give(&recordings->lock);
	return any;
}
