/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With FAKECUDA_LATENCY=h100 a call takes about as long as it took on an H100; without it, as
 * long as the bookkeeping takes.
 */
#ifndef FAKECUDA_LATENCY_H
#define FAKECUDA_LATENCY_H

/* Nanoseconds, each observed on one H100 80GB HBM3 with driver 580.159.04. */
enum latency {
	LATENCY_INIT = 200 * 1000 * 1000,
	LATENCY_CONTEXT = 115 * 1000 * 1000,
	LATENCY_ALLOC_BLOCK = 40 * 1000, /* half of an empty alloc and free pair */
	LATENCY_FREE_BLOCK = 30 * 1000,
	LATENCY_ALLOC_SMALL = 2 * 1000,
	LATENCY_ALLOC_ASYNC = 310,
	LATENCY_FREE_ASYNC = 410,
	LATENCY_GRAPH_LAUNCH = 160,
	LATENCY_GRAPH_LAUNCH_MEMORY = 490, /* of a graph that allocates */
	LATENCY_CREATE = 7700,
	LATENCY_RELEASE = 9000,
	LATENCY_SET_ACCESS = 37 * 1000, /* of one piece of memory; of many it is assumed */
	LATENCY_MEMORY_INFO = 4400,
	LATENCY_NVML_MEMORY = 7000,
	LATENCY_NVML_PROCESSES = 60 * 1000,
};

void latency(enum latency nanoseconds);

#endif
