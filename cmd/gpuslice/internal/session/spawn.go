// SPDX-License-Identifier: Apache-2.0

package session

/*
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>

static struct rlimit files;

// Go raises the soft limit for itself when it starts, after this.
__attribute__((constructor)) static void note_files(void) { getrlimit(RLIMIT_NOFILE, &files); }

static int spawn(pid_t *pid, const char *path, char **argv, char **envp)
{
	struct rlimit raised;

	if (getrlimit(RLIMIT_NOFILE, &raised) != 0 || setrlimit(RLIMIT_NOFILE, &files) != 0)
		return errno;
	int error = posix_spawn(pid, path, NULL, NULL, argv, envp);
	setrlimit(RLIMIT_NOFILE, &raised);
	return error;
}
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// spawn starts a program with this process's descriptors, group and limits by the C library's posix_spawn. Profilers and checkers
// (ncu, compute-sanitizer) follow child processes by preloaded functions of that library, and do not see Go's own system calls.
func spawn(path string, argv, env []string) (pid int, err error) {
	file, args, variables := C.CString(path), cStrings(argv), cStrings(env)
	defer C.free(unsafe.Pointer(file))
	defer freeStrings(args)
	defer freeStrings(variables)
	var child C.pid_t
	if code := C.spawn(&child, file, &args[0], &variables[0]); code != 0 {
		return 0, syscall.Errno(code)
	}
	return int(child), nil
}

// cStrings returns list as C strings with a final null pointer, as for argv.
func cStrings(list []string) []*C.char {
	result := make([]*C.char, len(list)+1)
	for i, s := range list {
		result[i] = C.CString(s)
	}
	return result
}

func freeStrings(list []*C.char) {
	for _, s := range list {
		C.free(unsafe.Pointer(s))
	}
}
