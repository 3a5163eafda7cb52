/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bindings: the initial value of an entry of entry_function, until its library is found. A
 * binding calls entry_bind() to find the function, and jumps to it with the caller's arguments
 * unchanged.
 */
	.file	"entry.S" /* or the symbol table names a temporary file */
	.text

#if defined(__x86_64__)

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

	.set	entry, 0
#define HOOK(name, arguments, charged, released) BINDING name
#define CALL(name, arguments) BINDING name
#include "driver.def"
#define HOOK(name, arguments, shown, released) BINDING name
#define CALL(name, arguments) BINDING name
#include "nvml.def"

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
