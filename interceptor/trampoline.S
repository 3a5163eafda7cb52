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

#endif

	TRAMPOLINE dlsym, route_dlsym, libc_dlsym
	TRAMPOLINE dlvsym, route_dlvsym, libc_dlvsym

	.section .note.GNU-stack, "", %progbits
