# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel, on tensors of PyTorch. See phases.py for the course."""
import torch
import triton
import triton.language as tl

import phases
from phases import MIB
from torch_cases import Torch


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


class Triton(Torch):
    def start(self):
        phases.say(version=triton.__version__)

    def compute(self):
        n = 16 * MIB + 7  # the last block is not full
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        out = torch.empty_like(x)
        add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        self.held += [x, y, out]
        return torch.equal(out, x + y)


if __name__ == "__main__":
    phases.run({"triton": Triton})
