/*
 * Calls to functions of libpthread and libdl, neither of which the library needs: every process in a
 * container would load both, and on a glibc from 2.34 on they are empty.
 *
 * An entry jumps to the function that the loader found, wherever it was (another interposer's as well). Where
 * it found none - an old glibc, in a program that had no threads at its start - the entry looks at the objects
 * loaded by now (compat.c), at each call, and returns the listed value when there is none either.
 */
#define EAGAIN 11
#define ENOSYS 38
#define LATE(name, missing) late name, missing

	.macro save register
	pushq \register
	.cfi_adjust_cfa_offset 8
	.endm

	.macro restore register
	popq \register
	.cfi_adjust_cfa_offset -8
	.endm

	.macro late name:req, missing:req
	.section .text.late.\name, "ax", @progbits
	.weak __real_\name
	.globl __wrap_\name
	.hidden __wrap_\name
	.type __wrap_\name, @function
	.p2align 4
__wrap_\name:
	.cfi_startproc
	endbr64
	movq __real_\name@GOTPCREL(%rip), %rax
	testq %rax, %rax
	je 1f
	jmp *%rax
1:	save %rdi
	save %rsi
	save %rdx
	save %rcx
	save %r8
	leaq 4f(%rip), %rdi
	call cuwarden_late_function
	restore %r8
	restore %rcx
	restore %rdx
	restore %rsi
	restore %rdi
	testq %rax, %rax
	je 2f
	jmp *%rax
2:	movq $\missing, %rax
	ret
	.cfi_endproc
	.size __wrap_\name, . - __wrap_\name
	.section .rodata.late.\name, "a", @progbits
4:	.asciz "\name"
	.endm

	.hidden cuwarden_late_function
#include "late.list"

	.section .note.GNU-stack, "", @progbits
