#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU what the simulation cannot prove: real containers, real frameworks, real driver.

Run as root on a machine with an NVIDIA GPU, PyTorch, nvcc and runc, after `make card-programs`:

    RUNC=/path/to/runc test/gpu/check.py [--out DIR] [--only NAME,...]

Needs no Go and no network. Starts an enforcer of its own, with its directories under a
temporary one, and stops it. Prints a line per promise and exits with the number of those not kept.
"""
import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import GIB, HERE, MIB, ROOT, RUNC, Host, check, output, pids_of, results, smi_sum
from nvml_check import check_nvml



def fields(text):
    """The key=value words of the last line that has `total=`."""
    line = next((l for l in reversed(text.splitlines()) if "total=" in l), "")
    return dict(re.findall(r"(\w+)=(\S+)", line))


def build_programs(directory):
    os.makedirs(directory, exist_ok=True)
    commands = {
        "fill_static": ["nvcc", "-cudart", "static", "-o", directory + "/fill_static", HERE + "/fill_runtime.c"],
        "fill_shared": ["nvcc", "-cudart", "shared", "-o", directory + "/fill_shared", HERE + "/fill_runtime.c"],
        "fill_driver": ["nvcc", "-o", directory + "/fill_driver", HERE + "/fill_driver.c", "-lcuda"],
    }
    for name, command in commands.items():
        text = output(*command)
        if not os.path.exists(f"{directory}/{name}"):
            check("build " + name, False, text[-300:])


def check_torch(host):
    text = host.run("torch-fill", [sys.executable, HERE + "/in_container.py", "fill"], {"gpuslice.vram": "8G"})
    f = fields(text)
    check("torch sees 8 GiB", f.get("total") == f.get("properties") == str(8 * GIB), f or text[-400:])
    check("torch.OutOfMemoryError past it, and usable after", f.get("error") == "torch.OutOfMemoryError" and
          int(f.get("taken", 0)) < 8 * GIB and f.get("usable_after") == "True",
          re.findall(r"message: .*", text)[:1] or text[-300:])


def check_four(host):
    name = "torch-four"
    path, out = host.bundle(name, [sys.executable, HERE + "/in_container.py", "four", "/out"], {"gpuslice.vram": "8G"})
    log = open(os.path.join(host.out, name + ".log"), "w+")
    container = host.launch(path, name, log)
    worst = [0]
    over = threading.Event()

    def sample():
        while not over.is_set():
            worst[0] = max(worst[0], smi_sum(pids_of(host, name))[0])

    sampler = threading.Thread(target=sample)
    sampler.start()
    for state in ("four", "after"):
        deadline = time.time() + 120
        while not os.path.exists(f"{out}/{state}") and container.poll() is None and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(2.5)  # at rest: two driver-truth intervals
        total, count = smi_sum(pids_of(host, name))
        ps = next((s for s in host.ps() if s["id"] == name), None)
        mine = sum(d["used"] + d["overhead"] for d in ps["devices"]) if ps else -1
        check(f"nvidia-smi's sum within 8 GiB ({state})", count >= 4 and total <= 8 * GIB,
              f"{count} processes, nvidia-smi {total // MIB} MiB, gpuslice ps {mine // MIB} MiB")
        check(f"gpuslice ps agrees with nvidia-smi ({state})", abs(mine - total) <= 2 * MIB * max(count, 1),
              f"difference {(mine - total) / MIB:.1f} MiB; {json.dumps(ps['devices'][0]) if ps else None}")
        open(f"{out}/{state}.seen", "w").close()
    container.wait()
    over.set()
    sampler.join()
    log.seek(0)
    text = log.read()
    check("nvidia-smi's sum never above 8 GiB, sampled throughout", 0 < worst[0] <= 8 * GIB, f"highest {worst[0] // MIB} MiB")
    check("a fifth process is refused while four hold", "fifth: oom exit 3" in text, re.findall(r"fifth:.*", text))
    check("a killed one's memory goes to the next", "after the kill: held" in text, re.findall(r"after the kill:.*", text))
    time.sleep(1)
    check("released at the end", not host.ps(), host.ps())


def check_programs(host, programs):
    cases = [("static cudart", ["fill_static"]), ("shared cudart", ["fill_shared"]), ("linked with libcuda", ["fill_driver"]),
             ("cuMemCreate", ["fill_driver", "vmm"])]
    for title, (program, *rest) in cases:
        inside = fields(host.run("c-" + title.replace(" ", "-"), [f"{programs}/{program}"] + rest, {"gpuslice.vram": "4G"}))
        outside = fields(output(f"{programs}/{program}", *rest))
        check(f"{title} obeys 4G", inside.get("total") == inside.get("properties") == str(4 * GIB) and
              2 * GIB < int(inside.get("taken", 0)) < 4 * GIB and
              inside.get("error", "") in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"), inside)
        check(f"{title} outside is unaffected", int(outside.get("total", 0)) > 40 * GIB and
              int(outside.get("taken", 0)) >= 20 * GIB, outside)


def check_restart(host):
    """The enforcer is killed while a container holds memory; the quota holds, and a restart finds all again."""
    name = "restart"
    path, out = host.bundle(name, [sys.executable, HERE + "/in_container.py", "four", "/out"], {"gpuslice.vram": "8G"})
    log = open(os.path.join(host.out, name + ".log"), "w+")
    container = host.launch(path, name, log)
    while not os.path.exists(f"{out}/four") and container.poll() is None:
        time.sleep(0.05)
    before = next((s for s in host.ps() if s["id"] == name), None)
    host.daemon.send_signal(signal.SIGKILL)
    host.daemon.wait()
    host.start()
    time.sleep(2.5)
    after = next((s for s in host.ps() if s["id"] == name), None)
    use = [sum(d["used"] for d in s["devices"]) if s else -1 for s in (before, after)]
    check("kill -9 of the enforcer: the slice is found again with the same use", use[0] == use[1] > 0, [u // MIB for u in use])
    for state in ("four", "after"):
        while not os.path.exists(f"{out}/{state}") and container.poll() is None:
            time.sleep(0.05)
        open(f"{out}/{state}.seen", "w").close()
    container.wait()
    log.seek(0)
    text = log.read()
    check("and holds its processes to the quota", "fifth: oom exit 3" in text and "after the kill: held" in text,
          re.findall(r"(?:fifth|after the kill):.*", text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=tempfile.gettempdir(), help="where logs are kept")
    parser.add_argument("--only", default="torch,four,programs,restart,nvml",
                        help="which of torch, four, programs, restart, nvml")
    arguments = parser.parse_args()
    if shutil.which("nvidia-smi"):
        print(output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").strip(), flush=True)
    print(output(RUNC, "--version").splitlines()[0], "kernel", os.uname().release, flush=True)
    os.makedirs(arguments.out, exist_ok=True)
    only = arguments.only.split(",")
    host = Host(arguments.out)
    try:
        programs = os.path.join(ROOT, "bin", "gpu-test")
        if "programs" in only:
            build_programs(programs)
            check_programs(host, programs)
        if "torch" in only:
            check_torch(host)
        if "four" in only:
            check_four(host)
        if "restart" in only:
            check_restart(host)
        if "nvml" in only:
            check_nvml(host, check)
    finally:
        host.stop()
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return results.count(False)


if __name__ == "__main__":
    sys.exit(main())
