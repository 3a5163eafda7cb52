/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym, dlvsym, dlopen and dlmopen: ask route.c first. If it has an answer, return that, and NULL
 * for ROUTE_NOTHING (route.c). Otherwise jump to the real function with the caller's arguments and
 * return address unchanged: RTLD_NEXT means the caller's next object, and the loader identifies the
 * caller by its return address. Without a real function return NULL.
 *
 * Other namespaces call a dlsym of their own each, selected by the namespace's number: it jumps to
 * their C library's, which sets their dlerror().
 */
#include "registers.inc"

	.file	"route.S" /* or the symbol table names a temporary file */
	.text

#if defined(__x86_64__)

.macro TRAMPOLINE name, route, real, namespace
	.type	\name, @function
\name:
	.cfi_startproc
	endbr64
	SAVE
	movl	$\namespace, %ecx
	movq	SAVED(%rsp), %r8
	call	\route
	RESTORE
	testq	%rax, %rax
	jnz	1f
	movq	\real + 8 * \namespace(%rip), %rax
	testq	%rax, %rax
	jz	2f
	jmp	*%rax
1:	cmpq	$-1, %rax
	jne	2f
	xorl	%eax, %eax
2:	ret
	.cfi_endproc
	.size	\name, . - \name
.endm

#elif defined(__aarch64__)

.macro TRAMPOLINE name, route, real, namespace
	.type	\name, %function
\name:
	.cfi_startproc
	SAVE
	mov	w3, #\namespace
	mov	x4, x30
	bl	\route
	RESTORE
	cbnz	x16, 1f
	adrp	x16, \real + 8 * \namespace
	ldr	x16, [x16, #:lo12:\real + 8 * \namespace]
	cbz	x16, 1f
	br	x16
1:	cmn	x16, #1
	csel	x0, xzr, x16, eq
	ret
	.cfi_endproc
	.size	\name, . - \name
.endm

#endif

	.globl	dlsym, dlvsym, dlopen, dlmopen
	TRAMPOLINE dlsym, route_dlsym, loader_dlsym, 0
	TRAMPOLINE dlvsym, route_dlvsym, loader_dlvsym, 0
	TRAMPOLINE dlopen, route_dlopen, loader_dlopen, 0
	.globl	dlopen_of_libc
	.hidden	dlopen_of_libc
	TRAMPOLINE dlopen_of_libc, route_dlopen, loader_dlopen, 1
	TRAMPOLINE dlmopen, route_dlmopen, loader_dlmopen, 0

#define OTHER_NAMESPACES 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 /* LOADER_NAMESPACES of loader.h, but for the base */

	.irp	n, OTHER_NAMESPACES
	TRAMPOLINE dlsym_of_\n, route_dlsym, loader_dlsym, \n
	TRAMPOLINE dlvsym_of_\n, route_dlvsym, loader_dlvsym, \n
	.endr

	.section .data.rel.ro, "aw"
	.balign	8
	.globl	trampoline_dlsym, trampoline_dlvsym
	.hidden	trampoline_dlsym, trampoline_dlvsym
trampoline_dlsym:
	.quad	dlsym
	.irp	n, OTHER_NAMESPACES
	.quad	dlsym_of_\n
	.endr
trampoline_dlvsym:
	.quad	dlvsym
	.irp	n, OTHER_NAMESPACES
	.quad	dlvsym_of_\n
	.endr

	.section .note.GNU-stack, "", %progbits
