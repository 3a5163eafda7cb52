/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that computes digests (digest.h), as the driver compiles it: a block of threads for
 * each DIGEST_BYTES from `data` on.
 *
 * Thread t takes the 16 bytes at 16 t, and every 4096 bytes after those, and mixes them into two
 * numbers a and b. One step of the mix maps no two pairs (a, b), and no two values of the 16 bytes,
 * to one pair. The digest is the sum of all threads' pairs.
 */
#ifndef GPUSLICE_DIGEST_PTX_H
#define GPUSLICE_DIGEST_PTX_H

#define DIGEST_KERNEL "gpuslice_digest"
#define DIGEST_BYTES (2ull << 20)
#define DIGEST_THREADS 256u
#define DIGEST_M 0x9e3779b97f4a7c15ull
#define DIGEST_N 0xc2b2ae3d27d4eb4full

#define DIGEST_MIX(x, y)                                                                           \
	"xor.b64 %a, %a, %" x "; mul.lo.u64 %a, %a, %m;\n"                                         \
	"xor.b64 %b, %b, %" y "; mul.lo.u64 %b, %b, %n;\n"                                         \
	"shr.u64 %s, %a, 32; xor.b64 %b, %b, %s;\n"                                                \
	"shr.u64 %s, %b, 29; add.u64 %a, %a, %s;\n"

/* clang-format off */
static const char digest_ptx[] =
	".version 7.0\n"
	".target sm_52\n"
	".address_size 64\n"
	".visible .entry gpuslice_digest(.param .u64 data, .param .u64 digests)\n"
	"{\n"
	".reg .pred %p<2>;\n"
	".reg .b32 %r<4>;\n"
	".reg .b64 %a, %b, %s, %t, %from, %to, %m, %n, %x<4>, %y<4>;\n"
	".shared .align 16 .b8 sum[16];\n"
	"ld.param.u64 %from, [data];\n"
	"ld.param.u64 %to, [digests];\n"
	"mov.u32 %r0, %tid.x;\n"
	"mov.u32 %r1, %ctaid.x;\n"
	"mul.wide.u32 %s, %r1, 2097152;\n"
	"add.u64 %from, %from, %s;\n"
	"mul.wide.u32 %s, %r0, 16;\n"
	"add.u64 %from, %from, %s;\n"
	"mul.wide.u32 %s, %r1, 16;\n"
	"add.u64 %to, %to, %s;\n"
	"mov.b64 %m, 0x9e3779b97f4a7c15;\n"
	"mov.b64 %n, 0xc2b2ae3d27d4eb4f;\n"
	"add.u32 %r2, %r0, 1;\n"
	"cvt.u64.u32 %s, %r2;\n"
	"mul.lo.u64 %a, %s, %n;\n"
	"mul.lo.u64 %b, %a, %m;\n"
	"setp.ne.u32 %p0, %r0, 0;\n"
	"@%p0 bra ZEROED;\n"
	"mov.u64 %s, 0;\n"
	"st.shared.u64 [sum], %s;\n"
	"st.shared.u64 [sum+8], %s;\n"
	"ZEROED:\n"
	"bar.sync 0;\n"
	"mov.u32 %r3, 128;\n"
	"NEXT:\n"
	"ld.global.v2.u64 {%x0, %y0}, [%from];\n"
	"ld.global.v2.u64 {%x1, %y1}, [%from+4096];\n"
	"ld.global.v2.u64 {%x2, %y2}, [%from+8192];\n"
	"ld.global.v2.u64 {%x3, %y3}, [%from+12288];\n"
	DIGEST_MIX("x0", "y0")
	DIGEST_MIX("x1", "y1")
	DIGEST_MIX("x2", "y2")
	DIGEST_MIX("x3", "y3")
	"add.u64 %from, %from, 16384;\n"
	"sub.u32 %r3, %r3, 1;\n"
	"setp.ne.u32 %p1, %r3, 0;\n"
	"@%p1 bra NEXT;\n"
	DIGEST_MIX("n", "m")
	DIGEST_MIX("m", "n")
	"red.shared.add.u64 [sum], %a;\n"
	"red.shared.add.u64 [sum+8], %b;\n"
	"bar.sync 0;\n"
	"@%p0 bra DONE;\n"
	"ld.shared.u64 %s, [sum];\n"
	"ld.shared.u64 %t, [sum+8];\n"
	"st.global.v2.u64 [%to], {%s, %t};\n"
	"DONE:\n"
	"ret;\n"
	"}\n";
/* clang-format on */

#endif
