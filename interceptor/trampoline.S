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
	.file	"trampoline.S" /* or the symbol table names a temporary file */
	.text

#if defined(__x86_64__)

.macro TRAMPOLINE name, route, real, namespace
	.type	\name, @function
\name:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx		/* three pushes and the return address: the stack is aligned */
	.cfi_adjust_cfa_offset 8
	movl	$\namespace, %ecx
	movq	24(%rsp), %r8
	call	\route
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
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

/*
 * The bindings: the initial value of an entry of entry_function, until its library is found. A
 * binding calls entry_bind() to find the function, and jumps to it with the caller's arguments
 * unchanged.
 */
bind:
	.cfi_startproc
	pushq	%rdi
	pushq	%rsi
	pushq	%rdx
	pushq	%rcx
	pushq	%r8
	pushq	%r9
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 56
	movl	%eax, %edi
	call	entry_bind
	addq	$8, %rsp
	popq	%r9
	popq	%r8
	popq	%rcx
	popq	%rdx
	popq	%rsi
	popq	%rdi
	.cfi_adjust_cfa_offset -56
	jmp	*%rax
	.cfi_endproc

.macro BINDING name
binding_\name:
	endbr64
	movl	$entry, %eax
	jmp	bind
	.set	entry, entry + 1
.endm

#elif defined(__aarch64__)

.macro TRAMPOLINE name, route, real, namespace
	.type	\name, %function
\name:
	.cfi_startproc
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	mov	w3, #\namespace
	mov	x4, x30
	bl	\route
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
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

bind:
	.cfi_startproc
	stp	x29, x30, [sp, #-80]!
	.cfi_def_cfa_offset 80
	.cfi_offset x29, -80
	.cfi_offset x30, -72
	stp	x0, x1, [sp, #16]
	stp	x2, x3, [sp, #32]
	stp	x4, x5, [sp, #48]
	stp	x6, x7, [sp, #64]
	mov	w0, w16
	bl	entry_bind
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldp	x2, x3, [sp, #32]
	ldp	x4, x5, [sp, #48]
	ldp	x6, x7, [sp, #64]
	ldp	x29, x30, [sp], #80
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	br	x16
	.cfi_endproc

.macro BINDING name
binding_\name:
	mov	w16, #entry
	b	bind
	.set	entry, entry + 1
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

	.set	entry, 0
#define HOOK(name, arguments, charged, released) BINDING name
#define CALL(name, arguments) BINDING name
#include "driver.def"
#define HOOK(name, arguments, shown, released) BINDING name
#define CALL(name, arguments) BINDING name
#include "nvml.def"

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

	.section .data.rel, "aw"
	.balign	8
	.globl	entry_function
	.hidden	entry_function
	.type	entry_function, %object
entry_function:
#define HOOK(name, arguments, charged, released) .quad binding_##name
#define CALL(name, arguments) .quad binding_##name
#include "driver.def"
#define HOOK(name, arguments, shown, released) .quad binding_##name
#define CALL(name, arguments) .quad binding_##name
#include "nvml.def"
	.size	entry_function, . - entry_function

	.section .note.GNU-stack, "", %progbits
