/* SPDX-License-Identifier: Apache-2.0 */
/* The gate's stubs. Each calls its function of gate_real with the caller's arguments unchanged.
 * Their number is unknown, so 12 words of the stack are copied: with the registers, at least 18
 * arguments. While the process counts no calls, a stub is a jump. */
#include "gate.h"

	.file	"gate.S"
	.text

#if defined(__x86_64__)

/* %eax is the stub's number. */
	.type	gate, @function
gate:
	.cfi_startproc
	.cfi_personality 0x1b, gate_left
	leaq	gate_real(%rip), %r11
	movq	(%r11, %rax, 8), %r11
	movq	state + GATE_CALLS(%rip), %r10
	testq	%r10, %r10
	jnz	1f
	jmp	*%r11
1:	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	pushq	%r10
	pushq	%r11
	/* A full barrier: either the enforcer sees the call, or this sees the eviction. */
	lock addq $GATE_CALL, (%r10)
	movq	state + GATE_AWAY(%rip), %rax
	cmpq	$0, (%rax)
	jne	4f
2:	.irp	at, 104, 96, 88, 80, 72, 64, 56, 48, 40, 32, 24, 16
	pushq	\at(%rbp)
	.endr
	call	*%r11
	movq	-8(%rbp), %r10
	cmpq	%r10, state + GATE_CALLS(%rip)
	jne	3f		/* a child forked during the call: this is its parent's lane */
	lock subq $1, (%r10)
3:	leave
	.cfi_remember_state
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
	ret
	.cfi_restore_state
4:	.irp	register, rdi, rsi, rdx, rcx, r8, r9
	pushq	%\register
	.endr
	subq	$128, %rsp
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7
	movups	%xmm\n, 16 * \n(%rsp)
	.endr
	movq	%r10, %rdi
	movq	%rax, %rsi
	movq	%r11, %rdx
	call	gate_wait
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7
	movups	16 * \n(%rsp), %xmm\n
	.endr
	addq	$128, %rsp
	.irp	register, r9, r8, rcx, rdx, rsi, rdi
	popq	%\register
	.endr
	movq	-16(%rbp), %r11
	jmp	2b
	.cfi_endproc
	.size	gate, . - gate

.macro STUB
	endbr64
	movl	$number, %eax
	jmp	gate
.endm

#elif defined(__aarch64__)

/* w16 is the stub's number. x9 to x11, x16 and x17 hold no arguments. */
	.type	gate, %function
gate:
	.cfi_startproc
	.cfi_personality 0x1b, gate_left
	adrp	x17, gate_real
	add	x17, x17, #:lo12:gate_real
	ldr	x16, [x17, w16, uxtw #3]
	adrp	x17, state + GATE_CALLS
	add	x17, x17, #:lo12:state + GATE_CALLS
	ldar	x17, [x17]
	cbnz	x17, 1f
	br	x16
1:	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	mov	x29, sp
	.cfi_def_cfa_register x29
	stp	x17, x16, [sp, #16]
	mov	w10, #(GATE_CALL & 0xffff)
	movk	w10, #(GATE_CALL >> 16), lsl #16
2:	ldxr	x9, [x17]
	add	x9, x9, x10
	stxr	w11, x9, [x17]
	cbnz	w11, 2b
	dmb	ish		/* either the enforcer sees the call, or this sees the eviction */
	adrp	x9, state + GATE_AWAY
	add	x9, x9, #:lo12:state + GATE_AWAY
	ldr	x9, [x9]
	ldr	x10, [x9]
	cbnz	x10, 6f
3:	sub	sp, sp, #96
	.irp	at, 0, 16, 32, 48, 64, 80
	ldp	x9, x10, [x29, #(32 + \at)]
	stp	x9, x10, [sp, #\at]
	.endr
	blr	x16
	ldr	x17, [x29, #16]
	adrp	x9, state + GATE_CALLS
	add	x9, x9, #:lo12:state + GATE_CALLS
	ldr	x9, [x9]
	cmp	x9, x17
	b.ne	5f		/* a child forked during the call: this is its parent's lane */
4:	ldxr	x9, [x17]
	sub	x9, x9, #1
	stlxr	w11, x9, [x17]
	cbnz	w11, 4b
5:	mov	sp, x29
	.cfi_remember_state
	.cfi_def_cfa_register sp
	ldp	x29, x30, [sp], #32
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_restore_state
6:	sub	sp, sp, #208
	stp	q0, q1, [sp]
	stp	q2, q3, [sp, #32]
	stp	q4, q5, [sp, #64]
	stp	q6, q7, [sp, #96]
	stp	x0, x1, [sp, #128]
	stp	x2, x3, [sp, #144]
	stp	x4, x5, [sp, #160]
	stp	x6, x7, [sp, #176]
	str	x8, [sp, #192]
	mov	x0, x17
	mov	x1, x9
	mov	x2, x16
	bl	gate_wait
	ldp	q0, q1, [sp]
	ldp	q2, q3, [sp, #32]
	ldp	q4, q5, [sp, #64]
	ldp	q6, q7, [sp, #96]
	ldp	x0, x1, [sp, #128]
	ldp	x2, x3, [sp, #144]
	ldp	x4, x5, [sp, #160]
	ldp	x6, x7, [sp, #176]
	ldr	x8, [sp, #192]
	mov	sp, x29
	ldr	x16, [x29, #24]
	b	3b
	.cfi_endproc
	.size	gate, . - gate

.macro STUB
	hint	#34		/* bti c */
	mov	w16, #number
	b	gate
.endm

#endif

	.balign	64
	.globl	gate_stubs
	.hidden	gate_stubs
gate_stubs:
	.cfi_startproc
	.set	number, 0
	.rept	GATE_STUBS
	.balign	GATE_STUB_BYTES
	STUB
	.set	number, number + 1
	.endr
	.balign	GATE_STUB_BYTES
	.cfi_endproc
	.size	gate_stubs, . - gate_stubs

	.section .note.GNU-stack, "", %progbits
