# SPDX-License-Identifier: Apache-2.0
"""A Numba kernel and device arrays. See phases.py for the course."""
import numpy

# NumPy 2.4 has it no more, and Numba 0.68 asks for it when it is imported.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack

import numba  # noqa: E402
from numba import cuda  # noqa: E402

import phases  # noqa: E402
from phases import CHUNK, MIB  # noqa: E402


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
