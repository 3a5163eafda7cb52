/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program per row of docs/evidence/coverage.md, within the quota and beyond it. Run in an
 * otherwise idle slice of at least 2 GiB, on the simulated driver or on a card:
 *
 *   rows list                  the rows: name, a tab, the hooked functions that it calls
 *   rows NAME within|beyond    one of them
 *   rows all                   all of them, each in a process of its own
 *   rows lend|borrow ipc|fd|external|pool SOCKET
 *                              memory of a process outside the slice: see rows_lend.c
 *
 * Prints a line for each: PASS or FAIL, name, way, and details. The exit status is the number of
 * failures.
 *
 *   gcc -std=gnu11 -Iinterceptor -o rows test/interceptor/programs/rows*.c -lcuda -ldl -lpthread
 */
#include "rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct row *const families[] = {
    linear_rows,  pool_rows,    physical_rows, bind_rows,       array_rows,
    context_rows, graph_rows,   share_rows,    keep_rows,       info_rows,
    module_rows,  library_rows, stack_rows,    stack_graph_rows};

#define FAMILIES (sizeof(families) / sizeof(families[0]))

static const struct row *row_of(const char *name)
{
	for (size_t i = 0; i < FAMILIES; i++) {
		for (const struct row *row = families[i]; row->name; row++) {
			if (strcmp(row->name, name) == 0)
				return row;
		}
	}
	return NULL;
}

static int list(void)
{
	for (size_t i = 0; i < FAMILIES; i++) {
		for (const struct row *row = families[i]; row->name; row++)
			printf("%s\t%s\n", row->name, row->calls);
	}
	return 0;
}

static int one(const struct row *row, const char *way)
{
	void (*start)(void) = row->begin ? row->begin : begin;

	alarm(SECONDS);
	start();
	if (row->lacks && row->lacks())
		return verdict(row->name, way);
	if (strcmp(way, "within") == 0)
		row->within();
	else if (row->beyond)
		row->beyond();
	else
		refused_beyond(&row->kind);
	return verdict(row->name, way);
}

static int run(const struct row *row, const char *way)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "rows", row->name, way, (char *)NULL);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		printf("FAIL %s %s: no process for it\n", row->name, way);
		return 1;
	}
	if (WIFSIGNALED(status))
		printf("FAIL %s %s: ended by signal %d\n", row->name, way, WTERMSIG(status));
	else if (WEXITSTATUS(status) == 127)
		printf("FAIL %s %s: cannot be executed\n", row->name, way);
	return status != 0;
}

static int all(void)
{
	int failures = 0, runs = 0;

	for (size_t i = 0; i < FAMILIES; i++) {
		for (const struct row *row = families[i]; row->name; row++) {
			failures += run(row, "within");
			failures += run(row, "beyond");
			runs += 2;
		}
	}
	printf("%d of %d failed\n", failures, runs);
	return failures;
}

static int peer(const char *name, int socket)
{
	for (const struct peer *peer = share_peers; peer->name; peer++) {
		if (strcmp(peer->name, name) == 0) {
			alarm(SECONDS);
			peer->run(socket);
			return 0;
		}
	}
	return 1;
}

int main(int count, char **argument)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 2 && strcmp(argument[1], "list") == 0)
		return list();
	if (count == 2 && strcmp(argument[1], "all") == 0)
		return all();
	if (count == 4 && strcmp(argument[1], "lend") == 0)
		return lend_main(argument[2], argument[3]);
	if (count == 4 && strcmp(argument[1], "borrow") == 0)
		return borrow_main(argument[2], argument[3]);
	if (count == 4 && strcmp(argument[1], "peer") == 0)
		return peer(argument[2], atoi(argument[3]));
	if (count == 3 && row_of(argument[1]) &&
	    (strcmp(argument[2], "within") == 0 || strcmp(argument[2], "beyond") == 0))
		return one(row_of(argument[1]), argument[2]);
	fprintf(stderr, "usage: rows list | all | NAME within|beyond |"
	                " lend|borrow ipc|fd|external|pool SOCKET\n");
	return 2;
}
