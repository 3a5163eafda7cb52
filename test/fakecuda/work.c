/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "work.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Instructions: in a launch, and with each hold of the lock afterwards. */
#define AT_ONCE 4000000
#define AT_A_TIME 20000

struct work {
	struct work *next;
	CUcontext context;
	CUstream stream;
	uint64_t number;
	struct ptx_run *run;
	struct image *image;
};

static struct work *first, **end = &first;
static uint64_t last_number;
static bool has_worker;
static pthread_cond_t less = PTHREAD_COND_INITIALIZER; /* work is left */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

static CUcontext holder(CUcontext context)
{
	return context->parent ? context->parent : context;
}

static void free_work(struct work *work)
{
	ptx_end(work->run);
	image_drop(work->image);
	free(work);
}

static void take_out(struct work **link)
{
	struct work *work = *link;

	*link = work->next;
	if (end == &work->next)
		end = link;
	free_work(work);
	pthread_cond_broadcast(&less);
}

/* True if it has ended. After a fault in its context no kernel continues. */
static bool step(struct work *work, uint64_t instructions)
{
	CUcontext context = holder(work->context);
	CUresult result = context->wrong ? context->wrong : ptx_step(work->run, instructions);

	if (result == CUDA_ERROR_NOT_READY)
		return false;
	context->wrong = result;
	return true;
}

/* Other threads get the lock between two steps, and most of the processor's time. */
static void *go_on(void *unused)
{
	static const struct timespec moment = {.tv_nsec = 500000};

	(void)unused;
	for (;;) {
		CUresult entered = driver_enter();

		if (entered != CUDA_SUCCESS)
			return NULL;
		while (!first)
			driver_wait(&more);
		if (step(first, AT_A_TIME))
			take_out(&first);
		driver_leave(CUDA_SUCCESS);
		nanosleep(&moment, NULL);
	}
}

/* Without this thread the launch runs all of it. Signals of the program are for its own threads. */
static bool start_worker(void)
{
	sigset_t all, before;
	pthread_t thread;

	if (has_worker)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	has_worker = pthread_create(&thread, NULL, go_on, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (has_worker)
		pthread_detach(thread);
	return has_worker;
}

void work_give(CUcontext context, CUstream stream, struct ptx_run *run, struct image *image)
{
	struct work *work = calloc(1, sizeof(*work));
	struct work here = {.context = context, .run = run, .image = image};
	bool is_done = !first && step(&here, AT_ONCE);

	if (!is_done && work && start_worker()) {
		*work = (struct work){.context = context,
		                      .stream = stream,
		                      .number = ++last_number,
		                      .run = run,
		                      .image = image_hold(image)};
		*end = work;
		end = &work->next;
		pthread_cond_signal(&more);
		return;
	}
	while (!is_done)
		is_done = step(&here, AT_ONCE);
	ptx_end(run);
	free(work);
}

uint64_t work_last(void)
{
	return last_number;
}

static bool is_default(CUstream stream)
{
	return stream == STREAM_ALL || stream == CU_STREAM_LEGACY;
}

bool work_is_left(CUcontext context, CUstream stream, uint64_t last)
{
	for (const struct work *work = first; work && work->number <= last; work = work->next)
		if ((!context || holder(work->context) == holder(context)) &&
		    (is_default(stream) || is_default(work->stream) || work->stream == stream))
			return true;
	return false;
}

CUresult work_wait(CUcontext context, CUstream stream, uint64_t last)
{
	while (work_is_left(context, stream, last))
		driver_wait(&less);
	return context && holder(context)->wrong ? context_fault(holder(context)->wrong)
	                                         : CUDA_SUCCESS;
}

CUresult work_wait_all(CUcontext context)
{
	return work_wait(context, STREAM_ALL, last_number);
}

void work_forget_stream(CUstream stream)
{
	for (struct work *work = first; work; work = work->next)
		if (work->stream == stream)
			work->stream = STREAM_ALL;
}

void work_drop(CUcontext context)
{
	for (struct work **link = &first; *link;)
		if (holder((*link)->context) == context)
			take_out(link);
		else
			link = &(*link)->next;
}
