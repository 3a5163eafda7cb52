# SPDX-License-Identifier: Apache-2.0
"""A Numba kernel and device arrays. See phases.py for the course."""
import numba
import numpy
from numba import cuda

import phases
from phases import CHUNK, MIB


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


class Numba(phases.Case):
    def start(self):
        phases.say(version=numba.__version__)

    def shown(self):
        return cuda.current_context().get_memory_info()

    def compute(self):
        n = 4 * MIB + 7  # the last block is not full
        x, y = numpy.arange(n, dtype=numpy.float32), numpy.ones(n, dtype=numpy.float32)
        out = cuda.device_array(n, dtype=numpy.float32)
        add[(n + 255) // 256, 256](cuda.to_device(x), cuda.to_device(y), out)
        self.held += [out, cuda.device_array(CHUNK, dtype=numpy.uint8)]
        return bool((out.copy_to_host() == x + y).all())

    def take(self):
        return cuda.device_array(CHUNK, dtype=numpy.uint8)


if __name__ == "__main__":
    phases.run({"numba": Numba})
