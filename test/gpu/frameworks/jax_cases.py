# SPDX-License-Identifier: Apache-2.0
"""JAX; whether it takes its pool at once, lets it grow, or has none comes from the environment. See phases.py."""
import ctypes

import jax
import jax.numpy as jnp

import phases
from phases import CHUNK, MIB


def told():
    """(free, total) by the driver's API: JAX has no function for them."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    # JAX uses the primary context, which exists by now.
    failed = (cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxPushCurrent_v2(context) or
              cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) or
              cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) or cuda.cuDevicePrimaryCtxRelease_v2(0))
    if failed:
        raise OSError(f"the driver answers {failed}")
    return free.value, total.value


class Jax(phases.Case):
    def start(self):
        device = jax.devices()[0]
        if device.platform == "cpu":
            raise RuntimeError(f"JAX found no GPU: {device}")
        phases.say(version=jax.__version__)

    def shown(self):
        return told()

    def compute(self):
        x = jnp.ones((2048, 2048))
        product = (x @ x)[7, 7]
        big = jnp.full((128 * MIB,), 1, jnp.int32)  # 512 MiB
        right = float(product) == 2048 and int(big.sum()) == 128 * MIB
        self.held += [x, big]
        statistics = jax.devices()[0].memory_stats() or {}  # none with the platform's allocator
        phases.say(pool=statistics.get("bytes_limit", 0))
        return right

    def take(self):
        return jax.block_until_ready(jnp.zeros((CHUNK // 4,), jnp.int32))


if __name__ == "__main__":
    phases.run({"jax": Jax})
