/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym and dlvsym: ask route_dlsym() first; if it has no answer, jump to the C library's own with
 * the caller's arguments and return address as they were, for RTLD_NEXT means the
 * caller's next, and the C library tells the caller by its return address. If there is
 * none to jump to, return NULL.
 */
	.text

#if defined(__x86_64__)

.macro TRAMPOLINE name, route, real
	.globl	\name
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
	call	\route
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rax, %rax
	jnz	1f
	movq	\real(%rip), %rax
	testq	%rax, %rax
	jz	1f
	jmp	*%rax
1:	ret
	.cfi_endproc
	.size	\name, . - \name
.endm

/*
 * The bindings: what an entry of entry_function is until its library is found. A binding has
 * entry_bind() find the function and goes on to it, with the caller's arguments as they were.
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

.macro TRAMPOLINE name, route, real
	.globl	\name
	.type	\name, %function
\name:
	.cfi_startproc
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	\route
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	cbnz	x16, 1f
	adrp	x16, \real
	ldr	x16, [x16, #:lo12:\real]
	cbz	x16, 1f
	br	x16
1:	mov	x0, x16
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

	TRAMPOLINE dlsym, route_dlsym, libc_dlsym
	TRAMPOLINE dlvsym, route_dlvsym, libc_dlvsym

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
