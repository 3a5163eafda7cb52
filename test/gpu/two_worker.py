# SPDX-License-Identifier: Apache-2.0
"""What runs inside the slices of two.py. Its last line is JSON.

    two_worker.py devices          each device that this process sees: UUID, total, what is granted until it is refused
    two_worker.py wait READY GO    the same, once the file GO is there; its contexts are there when READY is
    two_worker.py peers            copies between devices 0 and 1, and what each grants meanwhile
    two_worker.py collective       NCCL all-reduce of two processes with a device each, by PyTorch
"""
import ctypes
import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
STEP = 64 * MIB


class Driver:
    """The devices by the driver's own functions, so that nothing is needed but Python."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.contexts = []
        for device in range(count.value):
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts.append(context)

    def call(self, name, *arguments):
        error = getattr(self.cuda, name)(*arguments)
        if error:
            sys.exit(f"{name}: error {error}")

    def alloc(self, bytes_):
        pointer = ctypes.c_ulonglong()
        return self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(bytes_)), pointer

    def uuid(self, device):
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2" if hasattr(self.cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", raw, device)
        text = bytes(raw).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def devices(self):
        """All of them are filled before the first is given back: one's use must not count on another."""
        said, kept = [], []
        for device, context in enumerate(self.contexts):
            total = ctypes.c_size_t()
            self.call("cuCtxSetCurrent", context)
            self.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
            taken = error = 0
            while taken < total.value + 16 * STEP:
                error, pointer = self.alloc(STEP)
                if error:
                    break
                taken += STEP
                kept.append((context, pointer))
            said.append({"uuid": self.uuid(device), "total": total.value, "taken": taken, "error": error})
        for context, pointer in kept:
            self.call("cuCtxSetCurrent", context)
            self.call("cuMemFree_v2", pointer)
        return said


def devices():
    print(json.dumps({"devices": Driver().devices()}))


def wait(ready, go):
    driver = Driver()
    open(ready, "w").close()
    while not os.path.exists(go):
        time.sleep(0.05)
    print(json.dumps({"devices": driver.devices()}))


def peers():
    driver = Driver()
    size = 8 * MIB
    there, back = ctypes.create_string_buffer(os.urandom(64 * 1024), size), ctypes.create_string_buffer(size)
    places = []
    for context in driver.contexts[:2]:
        driver.call("cuCtxSetCurrent", context)
        error, pointer = driver.alloc(size)
        if error:
            sys.exit(f"cuMemAlloc: error {error}")
        places.append(pointer)
    count = ctypes.c_size_t(size)
    driver.call("cuCtxSetCurrent", driver.contexts[0])
    driver.call("cuMemcpyHtoD_v2", places[0], there, count)
    if hasattr(driver.cuda, "cuMemcpyPeer"):
        driver.call("cuMemcpyPeer", places[1], driver.contexts[1], places[0], driver.contexts[0], count)
        driver.call("cuCtxSynchronize")
        driver.call("cuCtxSetCurrent", driver.contexts[1])
        driver.call("cuMemcpyDtoH_v2", back, places[1], count)
        right = back.raw == there.raw
    else:
        right = True  # a driver that copies nothing across: the simulated one
    print(json.dumps({"right": right, "devices": driver.devices()}))


def collective():
    port = str(20000 + os.getpid() % 20000)
    ranks = [subprocess.Popen([sys.executable, "-B", __file__, "rank"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
             for r in range(2)]
    said = [json.loads(([line for line in r.communicate()[0].splitlines() if line.startswith("{")] or ["{}"])[-1]) for r in ranks]
    print(json.dumps({"sums": [s.get("sum") for s in said], "totals": [s.get("total") for s in said],
                      "errors": [s.get("error") for s in said]}))


def rank():
    import torch
    import torch.distributed as dist

    number = int(os.environ["RANK"])
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", device_id=torch.device("cuda", number))
    x = torch.full((64 * MIB // 4,), float(number + 1), device="cuda")
    for _ in range(3):
        y = x.clone()
        dist.all_reduce(y)
    torch.cuda.synchronize()
    sum_ = y[0].item() if bool((y == y[0]).all()) else None
    del x, y
    free, total = torch.cuda.mem_get_info()
    kept, error = [], "none"
    try:
        while len(kept) < 20 * 1024 // 256:
            kept.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        error = "torch.OutOfMemoryError"
    del kept
    torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"sum": sum_, "total": total, "error": error}))


if __name__ == "__main__":
    {"devices": devices, "wait": lambda: wait(*sys.argv[2:]), "peers": peers, "collective": collective, "rank": rank}[sys.argv[1]]()
