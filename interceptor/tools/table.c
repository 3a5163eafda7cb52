/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table exports|coverage|names: generates files from driver.def, nvml.def and passes.def.
 *
 *   exports   interceptor/exports.txt: the names that libgpuslice.so may export
 *   coverage  docs/evidence/coverage.md
 *   names     kind, a tab, name, and for a pass a tab and its reason; for test/interceptor
 *
 * Runs on the building machine; it is no part of the library.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { GROUP, PASSES, HOOK, CALL, NVML_HOOK, NVML_CALL, PASS, FAMILY, ABSENT };

/* A group's name is its title, and its charge the file that defines its hooks. */
struct row {
	enum kind kind;
	const char *name, *charged, *released;
};

static const struct row rows[] = {
#define GROUP(title, file) {GROUP, title, file, ""},
#define HOOK(name, arguments, charged, released) {HOOK, #name, charged, released},
#define CALL(name, arguments) {CALL, #name, "", ""},
#include "driver.def"
#define GROUP(title, file) {GROUP, title, file, ""},
#define HOOK(name, arguments, shown, released) {NVML_HOOK, #name, shown, released},
#define CALL(name, arguments) {NVML_CALL, #name, "", ""},
#include "nvml.def"
#define GROUP(title) {PASSES, title, "", ""},
#define PASS(name, reason) {PASS, #name, reason, ""},
#define PASS_FAMILY(pattern, reason) {FAMILY, pattern, reason, ""},
#define NOT_IN_580(name, which) {ABSENT, #name, which, ""},
#include "passes.def"
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* Defined in route.S: the table does not know their arguments. */
static const char *const trampolines[] = {"dlmopen", "dlopen", "dlsym", "dlvsym"};

#define TRAMPOLINES (sizeof(trampolines) / sizeof(trampolines[0]))

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void print_exports(void)
{
	const char *names[ROWS + TRAMPOLINES];
	size_t count = 0;

	for (size_t i = 0; i < ROWS; i++) {
		if (rows[i].kind == HOOK || rows[i].kind == NVML_HOOK)
			names[count++] = rows[i].name;
	}
	for (size_t i = 0; i < TRAMPOLINES; i++)
		names[count++] = trampolines[i];
	qsort(names, count, sizeof(names[0]), by_name);
	printf("# Generated from interceptor/driver.def by `make generate`.\n");
	for (size_t i = 0; i < count; i++)
		printf("%s\n", names[i]);
}

static void print_names(void)
{
	static const char *const kinds[] = {
	    [HOOK] = "hook",           [CALL] = "call", [NVML_HOOK] = "nvml-hook",
	    [NVML_CALL] = "nvml-call", [PASS] = "pass", [FAMILY] = "family",
	    [ABSENT] = "absent"};

	for (size_t i = 0; i < ROWS; i++) {
		const char *kind = kinds[rows[i].kind];

		if (kind)
			printf("%s\t%s\t%s\n", kind, rows[i].name, rows[i].charged);
	}
}

/* Length of a name without its version and stream suffixes: of cuMemAlloc in cuMemAlloc_v2_ptsz. */
static size_t stem(const char *name)
{
	const char *underscore = strchr(name, '_');

	return underscore ? (size_t)(underscore - name) : strlen(name);
}

static bool folds(const struct row *a, const struct row *b)
{
	return a->kind == b->kind && stem(a->name) == stem(b->name) &&
	       strncmp(a->name, b->name, stem(a->name)) == 0 &&
	       strcmp(a->charged, b->charged) == 0 && strcmp(a->released, b->released) == 0;
}

/* The rows of one group from `first` on with the same name and contents, as one cell; false if an
 * earlier row did that. */
static bool print_versions(size_t group, size_t first)
{
	for (size_t i = group; i < first; i++) {
		if (folds(&rows[i], &rows[first]))
			return false;
	}
	printf("| `%s`", rows[first].name);
	for (size_t i = first + 1; i < ROWS && rows[i].kind != GROUP && rows[i].kind != PASSES;
	     i++) {
		if (folds(&rows[i], &rows[first]))
			printf(", `%s`", rows[i].name + stem(rows[i].name));
	}
	return true;
}

static void print_coverage(void)
{
	size_t group = 0;

	printf(
	    "# What gpuslice does with each of the driver's functions\n\n"
	    "<!-- Generated from interceptor/driver.def and interceptor/passes.def by `make "
	    "generate`. "
	    "-->\n\n"
	    "Every function that driver 580.159.04 (CUDA 13.0) exports, and some of newer ones. "
	    "Versions of\none name stand together: `cuMemAlloc`, `_v2`. The words are explained in "
	    "[accounting.md](accounting.md#what-is-charged).\nA [table](accounting.md#how-exact) "
	    "there says which charges are exact, which come within a second, and which memory is "
	    "not bounded.\n\n"
	    "A version of one of the charged functions that is not here is newer than this "
	    "gpuslice: it passes, a\nline on standard error says so once, and driver truth finds "
	    "what it takes. So does a function\nof a name that is not here at all.\n\n"
	    "gpusliced itself calls `cuInit`, `cuCheckpointProcess*` and `cuGetErrorName`, in a "
	    "program of its "
	    "own without the library, for slices that are\n[suspended](../use/suspend.md).\n");
	for (size_t i = 0; i < ROWS; i++) {
		const struct row *row = &rows[i];

		switch (row->kind) {
		case GROUP:
			group = i;
			printf("\n## %s\n\n", row->name);
			if (*row->charged)
				printf("[interceptor/%s](../../interceptor/%s)\n\n", row->charged,
				       row->charged);
			printf("| entry points | charged | released by |\n|---|---|---|\n");
			break;
		case PASSES:
			group = i;
			printf("\n## Passed: %s\n\n| entry points | reason |\n|---|---|\n",
			       row->name);
			break;
		case HOOK:
		case NVML_HOOK:
			if (print_versions(group, i))
				printf(" | %s | %s |\n", row->charged,
				       *row->released ? row->released : "–");
			break;
		case PASS:
		case FAMILY:
			if (print_versions(group, i))
				printf(" | %s |\n", row->charged);
			break;
		case CALL:
		case NVML_CALL:
		case ABSENT:
			break;
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	if (strcmp(what, "exports") == 0)
		print_exports();
	else if (strcmp(what, "coverage") == 0)
		print_coverage();
	else if (strcmp(what, "names") == 0)
		print_names();
	else {
		fprintf(stderr, "usage: table exports|coverage|names\n");
		return 2;
	}
	return fflush(stdout) || ferror(stdout);
}
