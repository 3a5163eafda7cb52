/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include "elf_symbol.h"

#include <signal.h>
#include <stddef.h>

/* In libpthread before glibc 2.34. */
static void *find(const char *name)
{
	static const char *const names[] = {"libc.so.6", "libpthread.so.0"};
	void *found = NULL;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !found; i++) {
		struct elf_object object;

		if (elf_find_object(names[i], &object))
			found = elf_find_symbol(&object, name);
	}
	return found;
}

bool threads_begin(pthread_t *thread, void *(*run)(void *), void *argument)
{
	__typeof__(&pthread_create) create = NULL;
	sigset_t all, before;
	bool begun;

#ifdef __SANITIZE_THREAD__ /* it must know each thread */
	create = pthread_create;
#else
	*(void **)&create = find("pthread_create");
#endif
	if (!create)
		return false;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	begun = create(thread, NULL, run, argument) == 0;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return begun;
}

void threads_join(pthread_t thread)
{
	__typeof__(&pthread_join) join = NULL;

	*(void **)&join = find("pthread_join");
	(void)join(thread, NULL); /* pthread_join is present where pthread_create is */
}
