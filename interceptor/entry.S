/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bindings: the initial value of an entry of entry_function, until its library is found. A
 * binding calls entry_bind() to find the function, and jumps to it with the caller's arguments
 * unchanged.
 */
#include "registers.inc"

	.file	"entry.S" /* or the symbol table names a temporary file */
	.text

#if defined(__x86_64__)

bind:
	.cfi_startproc
	SAVE
	movl	%eax, %edi
	call	entry_bind
	RESTORE
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
	SAVE
	mov	w0, w16
	bl	entry_bind
	RESTORE
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
