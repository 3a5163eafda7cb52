# SPDX-License-Identifier: Apache-2.0
"""Says what the GPU's memory is for a program; when /out/go is there, takes 64 MiB at a time until it is refused, and keeps it. PyTorch,
or the driver alone where there is none.
"""
import ctypes
import os
import time

STEP = 64 << 20

try:
    import torch

    def info():
        return torch.cuda.mem_get_info()

    def take():
        return torch.ones(STEP // 4, device="cuda")

    REFUSED = RuntimeError  # torch.OutOfMemoryError is one
except ImportError:
    cuda = ctypes.CDLL("libcuda.so.1")
    REFUSED = MemoryError

    def call(name, *args):
        code = getattr(cuda, name)(*args)
        if code:
            raise MemoryError(f"{name}: {code}")

    def info():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take():
        at = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(STEP))
        return at

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)

held = [take()]  # the code for it is memory, too, which the driver loads at its first use and does not unload
print(f"sees {info()[1]}", flush=True)
while not os.path.exists("/out/go"):
    time.sleep(0.01)
try:
    while True:
        held.append(take())
except REFUSED as error:
    print(f"holds {len(held) * STEP}, then {type(error).__name__}: {str(error).splitlines()[0].split('. ')[0]}", flush=True)
time.sleep(600)
