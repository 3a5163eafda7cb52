# SPDX-License-Identifier: Apache-2.0
"""Takes VRAM a GiB at a time until PyTorch says that there is no more, and keeps it."""
import time

import torch

free, total = torch.cuda.mem_get_info()
print(f"{torch.cuda.get_device_name()}: {total / 2**30:.1f} GiB, {free / 2**30:.1f} free", flush=True)
held = []
try:
    while True:
        x = torch.ones(2**28, device="cuda")
        assert x.sum().item() == 2**28  # what is given works
        held.append(x)
except torch.OutOfMemoryError as error:
    print(f"holds {len(held)} GiB, then {type(error).__name__}: {str(error).split('. ')[0]}", flush=True)
if held:
    time.sleep(600)
