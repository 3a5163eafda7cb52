#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Package gpuslice for Python in a lease on a real GPU: the recipe, a kernel over a million floats, a large array, and kernels of Triton
and Numba.

Run as root on a machine with an NVIDIA GPU, after `make card-programs`:

    test/gpu/python_lease.py [--out DIR] [--size 8]

--size is that of the large array in GiB; the host's memory holds it twice. Needs grpcio and NumPy; no Go, no runc, no network. Triton and
Numba run where they are installed. Under the simulated driver: LD_LIBRARY_PATH=$PWD/bin/fakecuda and FAKECUDA_STATE, a file that is not there
yet, in a directory that is open to all; a --size of 0.1 is enough.

Prints a line per promise. The exit status is the number of promises not kept.
"""
import argparse
import ctypes
import os
import re
import signal
import sys
import tempfile
import time

import numpy

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import GIB, Host
from lease import ROOT, SCALE, SIMULATED, check, gpuslice, recipe, results
from leases import RIGHT, Leases

try:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
except ImportError:
    triton = None
else:
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

N = 1_000_000


def rate(size, took):
    return f"{size / GIB / took:.1f} GiB/s"


def documented():
    """Runs the first program of docs/use/python.md as it is printed."""
    with open(ROOT + "/docs/use/python.md") as f:
        program = f.read().split("```python\n")[1].split("```")[0]
    os.chdir(ROOT + "/test/lease/examples")
    names = {}
    exec(program, names)
    check("the documented program", gpuslice.list() == [], program.count("\n"))


def million(gpu):
    values = numpy.arange(N, dtype="f")
    x, module = gpu.array(values), gpu.module(SCALE)
    rounds = 2 if SIMULATED else 1000
    begin = time.monotonic()
    for _ in range(rounds):
        module.scale[(N + 255) // 256, 256](x, -1.0, N)
    launched = time.monotonic() - begin
    gpu.sync()
    check(f"a kernel over a million floats, {rounds} times", (x.get() == values).all(), f"{1e6 * launched / rounds:.0f} µs for a launch")


def large(gpu, size):
    values = numpy.arange(size // 8, dtype="u8")
    begin = time.monotonic()
    x = gpu.array(values)
    written, begin = time.monotonic() - begin, time.monotonic()
    out = x.get()
    read = time.monotonic() - begin
    check(f"an array of {size / GIB:g} GiB comes back as it was", (out == values).all(), f"written at {rate(size, written)}, read at {rate(size, read)}")


def added(gpu, name, launch):
    x, y = gpu.array(numpy.arange(N, dtype="f")), gpu.array(numpy.ones(N, dtype="f"))
    launch(x, y)
    check(name, (x.get() == numpy.arange(1, N + 1, dtype="f")).all())


def triton_kernel(gpu):
    """As docs/use/python.md has it."""
    source = triton.compiler.ASTSource(add, {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 1024})
    major, minor = gpu.compute_capability
    k = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, 32))
    m, scratch = gpu.module(k.asm["cubin"]), re.search(r"\.entry \w+\(([^)]*)", k.asm["ptx"])[1].count(".param") - 3
    added(gpu, f"a kernel of Triton {triton.__version__}", lambda x, y: m[k.metadata.name][(N + 1023) // 1024, 32 * k.metadata.num_warps](
        x, y, N, *[ctypes.c_void_p(0)] * scratch, shared=k.metadata.shared))


def numba_kernel(gpu):
    """As docs/use/python.md has it."""
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # NumPy 2.4 has it no more, and Numba 0.68 asks for it when it is imported
    import numba
    from numba import cuda, types

    def add(x, y, n):
        i = cuda.grid(1)
        if i < n:
            x[i] += y[i]

    floats = types.CPointer(types.float32)
    ptx, _ = cuda.compile_ptx(add, types.void(floats, floats, types.int32), cc=gpu.compute_capability)
    m = gpu.module(ptx)
    name = re.search(r"\.entry ([\w$]+)", ptx)[1]
    added(gpu, f"a kernel of Numba {numba.__version__}", lambda x, y: m[name][(N + 255) // 256, 256](x, y, N))


def everything(host, size):
    documented()
    with gpuslice.lease(2 * size + (64 << 20)) as gpu:
        check("the recipe", recipe(gpu)[0] == RIGHT)
        million(gpu)
        large(gpu, size)
        check("the device's compute capability", host.devices()[0]["compute_capability"] == gpu.lease.compute_capability == "%d.%d" % gpu.compute_capability)
        for name, kernel in (("triton", triton_kernel), ("numba", numba_kernel)):
            try:
                __import__(name)
            except ImportError:
                print(f"SKIP  {name} is not installed", flush=True)
                continue
            try:
                kernel(gpu)
            except Exception as e:  # of a version that compiles otherwise: the rest is tried all the same
                check(f"a kernel of {name}", False, repr(e))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-python-"))
    parser.add_argument("--size", type=float, default=8)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    host = Host(options.out)
    leases = Leases(host, options.out)
    os.environ["GPUSLICE_LEASE_SOCKET"] = leases.socket
    try:
        everything(host, int(options.size * 1024) << 20)
        check("no lease is left", gpuslice.list() == [])
        check("no slice is left", host.ps() == [])
    finally:
        leases.daemon.send_signal(signal.SIGTERM)
        leases.daemon.wait()
        host.stop()
    print(f"{sum(results)} of {len(results)} promises kept; logs in {options.out}")
    return len(results) - sum(results)


if __name__ == "__main__":
    sys.exit(main())
