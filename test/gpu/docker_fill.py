# SPDX-License-Identifier: Apache-2.0
"""Takes VRAM a GiB at a time until PyTorch says that there is no more, and keeps it."""
import time

import torch

held = []
try:
    free, total = torch.cuda.mem_get_info()
    print(f"{torch.cuda.get_device_name()}: {total / 2**30:.1f} GiB, {free / 2**30:.1f} free", flush=True)
    while True:
        x = torch.ones(2**28, device="cuda")
        assert x.sum().item() == 2**28  # what is given works
        held.append(x)
except RuntimeError as error:  # torch.OutOfMemoryError, and what PyTorch says when there is no room for a context
    print(f"holds {len(held)} GiB, then {type(error).__name__}: {str(error).splitlines()[0].split('. ')[0]}", flush=True)
if held:
    time.sleep(600)
