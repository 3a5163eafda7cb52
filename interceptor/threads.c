/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include "elf_symbol.h"

#include <signal.h>
#include <stddef.h>

bool threads_begin(pthread_t *thread, void *(*run)(void *), void *argument)
{
	__typeof__(&pthread_create) create = NULL;
	sigset_t all, before;
	bool begun;

#ifdef __SANITIZE_THREAD__ /* it must know each thread */
	create = pthread_create;
#else
	*(void **)&create = elf_find_in_libc("pthread_create");
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

	*(void **)&join = elf_find_in_libc("pthread_join");
	(void)join(thread, NULL); /* pthread_join is present where pthread_create is */
}
