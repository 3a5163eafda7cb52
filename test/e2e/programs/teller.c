/* SPDX-License-Identifier: Apache-2.0 */
/*
 * teller: answers each line on its standard input about device 0. "info": "FREE of TOTAL"
 * (cuMemGetInfo). "total": cuDeviceTotalMem's figure. A number of bytes, which it allocates and
 * keeps: "ok" or "refused".
 */
#include "driver.h"

#include "charged.h"

#include <string.h>

int main(void)
{
	char line[64];

	use_primary();
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		size_t available = 0, total = 0;
		CUdeviceptr pointer;

		if (strcmp(line, "info\n") == 0) {
			MUST(cuMemGetInfo_v2(&available, &total));
			printf("%zu of %zu\n", available, total);
		} else if (strcmp(line, "total\n") == 0) {
			MUST(cuDeviceTotalMem_v2(&total, 0));
			printf("%zu\n", total);
		} else {
			CUresult result = cuMemAlloc_v2(&pointer, strtoull(line, NULL, 10));

			if (result != CUDA_ERROR_OUT_OF_MEMORY)
				must("cuMemAlloc", result);
			puts(result ? "refused" : "ok");
		}
	}
	return 0;
}
