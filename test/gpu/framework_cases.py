# SPDX-License-Identifier: Apache-2.0
"""The cases of frameworks.py: which program, with which settings, and which error is its framework's own when there is
no memory. A case in C is one more line here and its source in frameworks/, which phases.h tells about.
"""
import dataclasses
import re

from host import GIB

QUOTA = 6 * GIB

TORCH_OOM = r"torch\.(cuda\.)?OutOfMemoryError: "
JAX_OOM = r"\S*(XlaRuntimeError|JaxRuntimeError): RESOURCE_EXHAUSTED: "
CUPY_OOM = r"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating "
NUMBA_OOM = r".*CUDA_ERROR_OUT_OF_MEMORY"


@dataclasses.dataclass
class Case:
    name: str
    program: str  # in frameworks/: a Python program, or one in C, which is compiled
    args: tuple = ()
    oom: str = "CUDA_ERROR_OUT_OF_MEMORY$"  # prefix of `oom`
    env: dict = dataclasses.field(default_factory=dict)
    timeout: float = 100  # seconds
    more: object = None  # (words by phase, rests) -> deviations
    # The driver lists managed memory for no process, so nvidia-smi's sum may be less than the charge.
    unlisted: bool = False

    @property
    def kind(self):
        return "c" if self.program.endswith(".c") else "python"


def torch(name, args, timeout=100, more=None, **env):
    return Case(name, "torch_cases.py", args, TORCH_OOM, env, timeout, more)


def jax(name, more=None, **env):
    return Case(name, "jax_cases.py", ("jax",), JAX_OOM, env, 120, more)


def cupy(name, arg, **more):
    return Case(name, "cupy_cases.py", (arg,), CUPY_OOM, **more)


def async_backend(words, _):
    backend = words.get("", {}).get("allocator")
    return [] if backend == "cudaMallocAsync" else [f"PyTorch's allocator is {backend}"]


def both_out_of_memory(words, _):
    reader = words.get("beyond", {}).get("reader_oom", "nothing")
    return [] if re.match(TORCH_OOM, reader) else [f"the reader's error: {reader}"]


def three_quarters(words, rests):
    """JAX takes 75 % of the total that it is shown, at once."""
    pool = int(words.get("within", {}).get("pool", 0))
    used = rests.get("within", {}).get("used", 0)
    wrong = []
    if abs(pool - 0.75 * QUOTA) > 0.01 * QUOTA:
        wrong.append(f"the pool's limit is {pool / QUOTA:.1%} of the quota")
    if used < 0.74 * QUOTA:
        wrong.append(f"{used / QUOTA:.1%} of the quota are charged after the preallocation")
    return wrong


# The longest come first, so that none runs alone at the end.
CASES = [
    torch("torch-compile", ("compile",), timeout=180),
    jax("jax-preallocating", three_quarters),
    jax("jax-growing", XLA_PYTHON_CLIENT_PREALLOCATE="false", XLA_PYTHON_CLIENT_MEM_FRACTION="1.0"),
    jax("jax-platform", XLA_PYTHON_CLIENT_ALLOCATOR="platform"),
    torch("torch-ipc", ("ipc",), timeout=150, more=both_out_of_memory),
    torch("torch-loader", ("loader",)),
    cupy("cupy-pool", "pool"),
    cupy("cupy-async", "async"),
    cupy("cupy-managed", "managed", unlisted=True),
    torch("torch-default", ("default",)),
    torch("torch-async", ("default",), more=async_backend, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    torch("torch-expandable", ("default",), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    torch("torch-graphs", ("graphs",)),
    Case("triton", "triton_cases.py", ("triton",), TORCH_OOM),
    Case("numba", "numba_cases.py", ("numba",), NUMBA_OOM),
    Case("c-linear", "linear.c", timeout=60),
]
