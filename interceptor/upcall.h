/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from a file to those of higher levels, which it does not know: the linker collects their
 * functions in a list. (The library has no constructor in which they could register.)
 */
#ifndef GPUSLICE_UPCALL_H
#define GPUSLICE_UPCALL_H

/* Adds a function to a list. */
#define UPCALL(list, function)                                                                     \
	static list##_upcall *const list##_##function                                              \
	    __attribute__((used, section("upcall_" #list))) = function

/* Declares the list of functions of the type `list`_upcall, in no order. */
#define UPCALLS(list)                                                                              \
	extern __attribute__((visibility("hidden")))                                               \
	list##_upcall *const list##_first[] __asm__("__start_upcall_" #list);                      \
	extern __attribute__((visibility("hidden")))                                               \
	list##_upcall *const list##_end[] __asm__("__stop_upcall_" #list)

/* Of a `for`: each function of a list. */
#define UPCALL_EACH(call, list)                                                                    \
	list##_upcall *const *call = list##_first;                                                 \
	call < list##_end;                                                                         \
	call++

#endif
