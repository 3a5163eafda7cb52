# SPDX-License-Identifier: Apache-2.0
"""What NVML and nvidia-smi show inside a container: the quota as the card, and the container's processes only.

check.py calls check_nvml(). `nvml_check.py inside` is what runs in the container: it prints one line of JSON. Where there is
no nvidia-smi, as with the simulated driver, NVML is asked as nvidia-smi asks it.
"""
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from host import BIN, GIB, MIB, output

QUOTA = 4 * GIB


class Memory(ctypes.Structure):  # nvmlMemory_v2_t, nvml.h
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):  # nvmlProcessInfo_t
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]


def ask_smi():
    """Total, used and free of the first device in MiB, and the pids that are listed."""
    if not shutil.which("nvidia-smi"):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, count = ctypes.c_void_p(), ctypes.c_uint(64)
        memory, list_ = Memory(version=ctypes.sizeof(Memory) | 2 << 24), (Process * 64)()
        codes = [nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
                 nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)),
                 nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), list_)]
        if any(codes):
            raise OSError(f"NVML: {codes}")
        return [memory.total // MIB, memory.used // MIB, memory.free // MIB], [p.pid for p in list_[:count.value]]
    memory = output("nvidia-smi", "--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")
    apps = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    return ([int(word) for word in memory.splitlines()[0].split(",")],
            [int(row.split(",")[0]) for row in apps.splitlines() if "," in row])


class Cuda:
    """A context of this process's own, with 256 MiB in it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        codes = [self.lib.cuInit(0), self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                 self.lib.cuCtxSetCurrent(context), self.lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 * MIB))]
        if any(codes):
            raise OSError(f"CUDA: {codes}")

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if self.lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
            raise OSError("cuMemGetInfo failed")
        return [total.value, free.value]


def hog():
    """A process that holds 1 GiB, once it does."""
    process = subprocess.Popen([BIN + "/demo/cuda_hog", str(GIB)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def inside():
    sibling, said = hog()
    cuda = Cuda()
    for _ in range(20):  # until driver truth has nothing more to charge, so that all is of one moment
        before = cuda.info()
        memory, pids = ask_smi()
        if before == cuda.info():
            break
        time.sleep(0.5)
    table = output("nvidia-smi") if shutil.which("nvidia-smi") else ""
    print(json.dumps({"said": said, "cuda": before, "smi": memory, "listed": sorted(pids),
                      "processes": sorted([os.getpid(), sibling.pid]), "table": table}))
    sibling.kill()


def check_nvml(host, check):
    stranger, said = hog()
    try:
        text = host.run("nvml", [sys.executable, os.path.abspath(__file__), "inside"], {"gpuslice.vram": "4G"})
    finally:
        stranger.kill()
        stranger.wait()
    line = next((l for l in text.splitlines() if l.startswith('{"said"')), None)
    if not line or not said.startswith("holds "):
        check("nvidia-smi in a container", False, (said, text[-400:]))
        return
    seen = json.loads(line)
    total, free = (bytes_ // MIB for bytes_ in seen["cuda"])
    smi_total, smi_used, smi_free = seen["smi"]
    check("nvidia-smi in a container shows the quota as the card", smi_total == total == QUOTA // MIB, f"{smi_total} MiB")
    # Each figure is rounded to a mebibyte.
    check("nvidia-smi agrees with cuMemGetInfo", abs(smi_free - free) <= 1 and abs(smi_used - (total - free)) <= 1 and
          smi_used > 1280, f"used {smi_used} MiB, free {smi_free} MiB; CUDA: free {free} of {total} MiB")
    check("nvidia-smi lists the container's processes only", seen["listed"] == seen["processes"],
          f"listed {seen['listed']}, in the container {seen['processes']}, outside {stranger.pid}")


if __name__ == "__main__":
    {"inside": inside}[sys.argv[1]]()
