/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of instructions: for each a sum over 1,024 triples of numbers, the same on any driver. A
 * kernel has its operands as 32 bits in %r1 to %r3, as 64 in %rd1 to %rd3, as floats in %f1 to %f3
 * and as doubles in %fd1 to %fd3, and leaves the result in the fourth register of its kind.
 */
#include "../../interceptor/digest_ptx.h"
#include "code.h"

#define TRIPLES 1024

enum kind { R, RD, F, FD, P };

/* clang-format off */
static const struct {
	const char *name;
	enum kind result;
	const char *text;
} instructions[] = {
	{"add.s32", R, "add.s32 %r4, %r1, %r2;"},
	{"sub.u32", R, "sub.u32 %r4, %r1, %r2;"},
	{"add.u64", RD, "add.u64 %rd4, %rd1, %rd2;"},
	{"add.s16", RD, "cvt.u16.u32 %rs1, %r1; cvt.u16.u32 %rs2, %r2; add.s16 %rs3, %rs1, %rs2; cvt.s64.s16 %rd4, %rs3;"},
	{"mul.lo.s32", R, "mul.lo.s32 %r4, %r1, %r2;"},
	{"mul.hi.s32", R, "mul.hi.s32 %r4, %r1, %r2;"},
	{"mul.hi.u32", R, "mul.hi.u32 %r4, %r1, %r2;"},
	{"mul.wide.s32", RD, "mul.wide.s32 %rd4, %r1, %r2;"},
	{"mul.wide.u32", RD, "mul.wide.u32 %rd4, %r1, %r2;"},
	{"mul.hi.s64", RD, "mul.hi.s64 %rd4, %rd1, %rd2;"},
	{"mul.hi.u64", RD, "mul.hi.u64 %rd4, %rd1, %rd2;"},
	{"mad.lo.u32", R, "mad.lo.u32 %r4, %r1, %r2, %r3;"},
	{"mad.wide.s32", RD, "mad.wide.s32 %rd4, %r1, %r2, %rd3;"},
	{"mad.hi.u64", RD, "mad.hi.u64 %rd4, %rd1, %rd2, %rd3;"},
	{"div.s32", R, "or.b32 %r5, %r2, 1; div.s32 %r4, %r1, %r5;"},
	{"div.u64", RD, "or.b64 %rd5, %rd2, 1; div.u64 %rd4, %rd1, %rd5;"},
	{"div.s64", RD, "shr.s64 %rd5, %rd2, 33; or.b64 %rd5, %rd5, 1; div.s64 %rd4, %rd1, %rd5;"},
	{"rem.s32", R, "shr.s32 %r5, %r2, 9; or.b32 %r5, %r5, 1; rem.s32 %r4, %r1, %r5;"},
	{"rem.u32", R, "or.b32 %r5, %r2, 1; rem.u32 %r4, %r1, %r5;"},
	{"min.s32", R, "min.s32 %r4, %r1, %r2;"},
	{"max.u64", RD, "max.u64 %rd4, %rd1, %rd2;"},
	{"abs.s32", R, "abs.s32 %r4, %r1;"},
	{"neg.s64", RD, "neg.s64 %rd4, %rd1;"},
	{"and", R, "and.b32 %r4, %r1, %r2;"},
	{"or", RD, "or.b64 %rd4, %rd1, %rd2;"},
	{"xor", R, "xor.b32 %r4, %r1, %r2;"},
	{"not", R, "not.b32 %r4, %r1;"},
	{"shl", R, "and.b32 %r5, %r2, 63; shl.b32 %r4, %r1, %r5;"},
	{"shr.u32", R, "and.b32 %r5, %r2, 63; shr.u32 %r4, %r1, %r5;"},
	{"shr.s64", RD, "and.b32 %r5, %r2, 127; shr.s64 %rd4, %rd1, %r5;"},
	{"setp.lt.s32", P, "setp.lt.s32 %p4, %r1, %r2;"},
	{"setp.hs.u64", P, "setp.hs.u64 %p4, %rd1, %rd2;"},
	{"setp.eq", P, "and.b32 %r5, %r1, 1; setp.eq.u32 %p4, %r5, 0;"},
	{"setp.and", P, "setp.gt.s32 %p1, %r1, 0; setp.gt.and.s32 %p4, %r2, 0, %p1;"},
	{"setp.or.not", P, "setp.gt.s32 %p1, %r1, 0; setp.gt.or.s32 %p4, %r2, 0, !%p1;"},
	{"setp.pair", P, "setp.gt.s32 %p1|%p2, %r1, 0; xor.pred %p4, %p1, %p2;"},
	{"setp.gtu.f32", P, "setp.gtu.f32 %p4, %f1, %f2;"},
	{"setp.le.f64", P, "setp.le.f64 %p4, %fd1, %fd2;"},
	{"selp", R, "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, %r3, %r1, %p1;"},
	{"mov.unpack", R, "mov.b64 {%r5, %r6}, %rd1; sub.u32 %r4, %r5, %r6;"},
	{"mov.pack", RD, "mov.b64 %rd4, {%r2, %r1};"},
	{"cvt.s64.s32", RD, "cvt.s64.s32 %rd4, %r1;"},
	{"cvt.s8", R, "cvt.s32.s8 %r4, %r1;"},
	{"cvt.u16.u32", R, "cvt.u16.u32 %rs1, %r1; cvt.u32.u16 %r4, %rs1;"},
	{"cvt.sat.s16.s32", R, "shr.s32 %r5, %r1, 10; cvt.sat.s16.s32 %rs1, %r5; cvt.s32.s16 %r4, %rs1;"},
	{"cvt.sat.u8.s32", R, "shr.s32 %r5, %r1, 20; cvt.sat.u8.s32 %r4, %r5;"},
	{"cvt.rn.f32.u64", F, "cvt.rn.f32.u64 %f4, %rd1;"},
	{"cvt.rn.f64.s64", FD, "cvt.rn.f64.s64 %fd4, %rd1;"},
	{"cvt.rn.f32.f64", F, "cvt.rn.f32.f64 %f4, %fd1;"},
	{"cvt.rzi.s32.f32", R, "cvt.rzi.s32.f32 %r4, %f1;"},
	{"cvt.rni.s32.f32", R, "mul.f32 %f5, %f1, 0f38000000; cvt.rni.s32.f32 %r4, %f5;"},
	{"cvt.rmi.s64.f64", RD, "cvt.rmi.s64.f64 %rd4, %fd1;"},
	{"cvt.rpi.u32.f32", R, "mul.f32 %f5, %f1, 0f38000000; cvt.rpi.u32.f32 %r4, %f5;"},
	{"cvt.rzi.u8.f32", R, "mul.f32 %f5, %f1, 0f34000000; cvt.rzi.u8.f32 %r4, %f5;"},
	{"cvt.rni.f32.f32", F, "mul.f32 %f5, %f1, 0f38000000; cvt.rni.f32.f32 %f4, %f5;"},
	{"add.f32", F, "add.f32 %f4, %f1, %f2;"},
	{"sub.f64", FD, "sub.f64 %fd4, %fd1, %fd2;"},
	{"mul.f32", F, "mul.f32 %f4, %f1, %f2;"},
	{"mul.f64", FD, "mul.f64 %fd4, %fd1, %fd2;"},
	{"mul.sat.f32", F, "mul.sat.f32 %f4, %f1, 0f30000000;"},
	{"fma.rn.f32", F, "fma.rn.f32 %f4, %f1, %f2, %f3;"},
	{"div.rn.f32", F, "div.rn.f32 %f4, %f1, %f2;"},
	{"div.rn.f64", FD, "div.rn.f64 %fd4, %fd1, %fd2;"},
	{"sqrt.rn.f32", F, "abs.f32 %f5, %f1; sqrt.rn.f32 %f4, %f5;"},
	{"sqrt.rn.f64", FD, "abs.f64 %fd5, %fd1; sqrt.rn.f64 %fd4, %fd5;"},
	{"rcp.rn.f32", F, "rcp.rn.f32 %f4, %f1;"},
	{"min.f32", F, "min.f32 %f4, %f1, %f2;"},
	{"max.f64", FD, "max.f64 %fd4, %fd1, %fd2;"},
	{"neg.f32", F, "neg.f32 %f4, %f1;"},
	{"atom.add", R, "st.global.u32 [%rd8], %r1; atom.global.add.u32 %r5, [%rd8], %r2; ld.global.u32 %r6, [%rd8]; xor.b32 %r4, %r5, %r6;"},
	{"atom.max.s32", R, "st.global.u32 [%rd8], %r1; atom.global.max.s32 %r5, [%rd8], %r2; ld.global.u32 %r6, [%rd8]; xor.b32 %r4, %r5, %r6;"},
	{"atom.cas", R, "st.global.u32 [%rd8], %r1; atom.global.cas.b32 %r5, [%rd8], %r1, %r2; ld.global.u32 %r6, [%rd8]; xor.b32 %r4, %r5, %r6;"},
	{"atom.inc", R, "st.global.u32 [%rd8], %r1; atom.global.inc.u32 %r5, [%rd8], %r2; ld.global.u32 %r6, [%rd8]; xor.b32 %r4, %r5, %r6;"},
	{"ld.v2", R, "ld.global.v2.u32 {%r5, %r6}, [%rd8]; sub.u32 %r4, %r5, %r6;"},
	{"st.v4", RD, "st.global.v4.u16 [%rd8], {%rs4, %rs5, %rs6, %rs7}; ld.global.u64 %rd4, [%rd8];"},
	{"ld.s8", R, "ld.global.s8 %r4, [%rd8+3];"},
	{"local", R, "mov.u64 %rd5, buf; and.b64 %rd6, %rd2, 12; add.s64 %rd5, %rd5, %rd6; st.local.u32 [%rd5], %r1; ld.local.u32 %r4, [%rd5];"},
	{"loop", R, "and.b32 %r5, %r1, 31; mov.u32 %r4, 0; AGAIN: add.u32 %r4, %r4, %r2; sub.s32 %r5, %r5, 1; setp.ge.s32 %p1, %r5, 0; @%p1 bra AGAIN;"},
	{"guard", R, "mov.u32 %r4, 1; setp.lt.s32 %p1, %r1, 0; @%p1 mov.u32 %r4, 2; @!%p1 add.u32 %r4, %r4, %r2;"},
};

static const char begin[] =
	".visible .entry k%d(.param .u64 p)\n{\n"
	" .local .align 8 .b8 buf[16];\n"
	" .reg .pred %%p<5>;\n .reg .b16 %%rs<8>;\n .reg .b32 %%r<10>;\n .reg .b64 %%rd<10>;\n"
	" .reg .f32 %%f<6>;\n .reg .f64 %%fd<6>;\n"
	" ld.param.u64 %%rd8, [p];\n cvta.to.global.u64 %%rd8, %%rd8;\n"
	" mov.u32 %%r9, %%tid.x;\n mul.wide.u32 %%rd9, %%r9, 32;\n add.s64 %%rd8, %%rd8, %%rd9;\n"
	" ld.global.v2.u64 {%%rd1, %%rd2}, [%%rd8];\n ld.global.u64 %%rd3, [%%rd8+16];\n"
	" cvt.u32.u64 %%r1, %%rd1;\n cvt.u32.u64 %%r2, %%rd2;\n cvt.u32.u64 %%r3, %%rd3;\n"
	" cvt.u16.u64 %%rs4, %%rd3;\n cvt.u16.u64 %%rs5, %%rd2;\n cvt.u16.u64 %%rs6, %%rd1;\n"
	" mov.u16 %%rs7, %%rs4;\n"
	" cvt.rn.f32.s32 %%f1, %%r1;\n cvt.rn.f32.s32 %%f2, %%r2;\n cvt.rn.f32.s32 %%f3, %%r3;\n"
	" cvt.rn.f64.s64 %%fd1, %%rd1;\n cvt.rn.f64.s64 %%fd2, %%rd2;\n"
	" cvt.rn.f64.s64 %%fd3, %%rd3;\n";

static const char *const ends[] = {
	[R] = " cvt.u64.u32 %rd4, %r4;\n",
	[RD] = "",
	[F] = " mov.b32 %r4, %f4;\n cvt.u64.u32 %rd4, %r4;\n",
	[FD] = " mov.b64 %rd4, %fd4;\n",
	[P] = " selp.u64 %rd4, 1, 0, %p4;\n",
};
/* clang-format on */

struct triple {
	uint64_t values[3], result;
};

static char *all_kernels(void)
{
	size_t room = 2048 * (COUNT(instructions) + 1), length;
	char *text = malloc(room);

	if (!text)
		stop("no memory");
	length = (size_t)snprintf(text, room, "%s", PTX_HEADER);
	for (size_t i = 0; i < COUNT(instructions); i++) {
		length += (size_t)snprintf(text + length, room - length, begin, (int)i);
		length += (size_t)snprintf(text + length, room - length,
		                           " %s\n%s st.global.u64 [%%rd8+24], %%rd4;\n ret;\n}\n",
		                           instructions[i].text, ends[instructions[i].result]);
	}
	return text;
}

static uint64_t mixed(uint64_t seed)
{
	seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9;
	seed = (seed ^ seed >> 27) * 0x94d049bb133111eb;
	return seed ^ seed >> 31;
}

/* No number is 0, nor 0 in its lower half: it may be a divisor. */
static void fill(struct triple *triples)
{
	for (uint64_t i = 0; i < TRIPLES; i++)
		for (uint64_t j = 0; j < 3; j++)
			triples[i].values[j] = mixed(3 * i + j + 1) | 0x10;
}

/* The interceptor's kernel, which the simulated driver computes without carrying out its text. */
static void print_digests(void)
{
	static uint64_t data[2 * DIGEST_BYTES / 8 + 4], digests[4];
	CUdeviceptr at, to;
	CUmodule module;
	CUfunction function;
	void *parameters[] = {&at, &to};

	MUST(cuModuleLoadData(&module, digest_ptx));
	MUST(cuModuleGetFunction(&function, module, DIGEST_KERNEL));
	MUST(cuMemAlloc_v2(&at, sizeof(data)));
	to = at + 2 * DIGEST_BYTES;
	for (int round = 0; round < 4; round++) {
		for (size_t i = 0; i < COUNT(data) && round == 1; i++)
			data[i] = mixed(i);
		data[COUNT(data) / 2] ^= round > 1 ? 1ull << 63 : 0;
		MUST(cuMemcpyHtoD_v2(at, data, sizeof(data)));
		MUST(cuLaunchKernel(function, 2, 1, 1, DIGEST_THREADS, 1, 1, 0, NULL, parameters,
		                    NULL));
		MUST(cuMemcpyDtoH_v2(digests, to, sizeof(digests)));
		printf("digest%d: %016llx %016llx, %016llx %016llx\n", round,
		       (unsigned long long)digests[0], (unsigned long long)digests[1],
		       (unsigned long long)digests[2], (unsigned long long)digests[3]);
	}
}

int main(void)
{
	static struct triple triples[TRIPLES];
	CUdeviceptr buffer;
	CUmodule module;

	start_with_context();
	MUST(cuModuleLoadData(&module, all_kernels()));
	MUST(cuMemAlloc_v2(&buffer, sizeof(triples)));
	for (size_t i = 0; i < COUNT(instructions); i++) {
		void *parameters[] = {&buffer};
		CUfunction function;
		uint64_t sum = 0;
		char name[16];

		fill(triples);
		snprintf(name, sizeof(name), "k%zu", i);
		MUST(cuModuleGetFunction(&function, module, name));
		MUST(cuMemcpyHtoD_v2(buffer, triples, sizeof(triples)));
		MUST(cuLaunchKernel(function, 1, 1, 1, TRIPLES, 1, 1, 0, NULL, parameters, NULL));
		MUST(cuMemcpyDtoH_v2(triples, buffer, sizeof(triples)));
		for (size_t j = 0; j < TRIPLES; j++)
			sum = mixed(sum ^ triples[j].result);
		printf("%s: %016llx\n", instructions[i].name, (unsigned long long)sum);
	}
	print_digests();
	return 0;
}
