# SPDX-License-Identifier: Apache-2.0
"""CuPy with its own pool, the driver's pools, and managed memory. See phases.py for the course."""
import cupy

import phases
from phases import CHUNK, MIB


class Pool(phases.Case):
    """CuPy's own pool, over cudaMalloc."""

    def start(self):
        phases.say(version=cupy.__version__)
        self.pool = self.allocator()
        cupy.cuda.set_allocator(self.pool.malloc)

    def allocator(self):
        return cupy.get_default_memory_pool()

    def shown(self):
        return cupy.cuda.runtime.memGetInfo()

    def compute(self):
        x = cupy.arange(4 * MIB, dtype=cupy.float32)
        twice = x * 2
        big = cupy.full(128 * MIB, 1, dtype=cupy.int32)  # 512 MiB
        self.held += [x, twice, big]
        return bool((twice - x == x).all()) and int(big.sum()) == 128 * MIB

    def take(self):
        return cupy.full(CHUNK // 4, 1, dtype=cupy.int32)

    def release(self):
        cupy.cuda.Device().synchronize()
        self.pool.free_all_blocks()


class Async(Pool):
    """cudaMallocAsync."""

    def allocator(self):
        return cupy.cuda.MemoryAsyncPool()


class Managed(Pool):
    """cudaMallocManaged. A card alone would let this grow into host memory; the quota is what ends it."""

    def allocator(self):
        return cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)


if __name__ == "__main__":
    phases.run({"pool": Pool, "async": Async, "managed": Managed})
