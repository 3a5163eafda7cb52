#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Claims of Kubernetes on a real GPU, without a cluster: gpuslice-dra prepares two claims of 8 GiB, a kubelet is played, NVIDIA's tool
describes the GPU for CDI, and plain runc runs two PyTorch containers of each claim at once.

    test/gpu/kubernetes.py [--engines DIR] [--out DIR]

As root, with bin/gpuslice-dra and bin/kubelet (`make kubernetes kubernetes-card`) beside what `make card-programs` makes. DIR has nvidia-ctk
and nvidia-cdi-hook; without them the driver's own description of the device is used, and this machine's libraries. Needs no Go and no network.
The exit status is the number of promises not kept.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import host as hosts
from docker import bound
from host import BIN, GIB, HERE, MIB, Host, Truth, check, pids_of, results

QUOTA = 8 * GIB
CONTEXT = GIB  # more than a context takes, with the last piece that did not fit
CLAIMS = ("train", "serve")


class Kubelet:
    def __init__(self, host, engines):
        self.dir, self.cdi = os.path.join(host.dir, "kubelet"), os.path.join(host.dir, "kubelet", "cdi")
        os.makedirs(self.cdi)
        self.by = self.describe(host, engines)
        self.process = subprocess.Popen([BIN + "/kubelet", self.dir, BIN + "/gpuslice-dra", "--socket=" + host.socket, f"--hook={BIN}/gpuslice-hook",
                                         "--hook-config=" + host.config], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=open(host.out + "/gpuslice-dra.log", "w"), text=True)

    def describe(self, host, engines):
        """Who describes the GPU for CDI."""
        file = os.path.join(self.cdi, "nvidia.yaml")
        if not os.path.exists("/dev/nvidiactl"):
            with open(file, "w") as f:
                json.dump({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["SIMULATED=1"]}}]}, f)
            return "by hand, for a simulated card"
        if engines:
            made = subprocess.run([engines + "/nvidia-ctk", "cdi", "generate", "--nvidia-cdi-hook-path", engines + "/nvidia-cdi-hook", "--output", file],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            with open(host.out + "/nvidia-ctk.log", "w") as f:
                f.write(made.stdout)
            if made.returncode == 0:
                return "by nvidia-ctk"
            os.path.exists(file) and os.remove(file)
        return "by gpuslice-dra"

    def __call__(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '{"error": "it has ended"}')
        if answer.get("error"):
            raise RuntimeError(f"{order}: {answer['error']}")
        return answer.get("ids", [])

    def stop(self):
        self.process.stdin.close()
        self.process.wait(30)


def said(log, what, patience):
    """What a container printed, as soon as that is in it or the time is over."""
    for _ in range(patience * 10):
        with open(log) as f:
            text = f.read()
        if found := re.search(what, text):
            return found
        time.sleep(0.1)
    return None


def held(truth, host, names):
    """What NVML says that these containers' processes hold, and of how many it spoke."""
    pids = set().union(*(pids_of(host, n) for n in names))
    of = [b for pid, b in truth.processes().items() if pid in pids]
    return sum(of), len(of)


def fill(host, kubelet, truth, running):
    containers = {claim: [f"{claim}-{i}" for i in range(2)] for claim in CLAIMS}
    out, logs, holds = {}, {}, {}
    ids = {claim: kubelet(prepare=claim, bytes=QUOTA) for claim in CLAIMS}
    print(f"the GPU for CDI described {kubelet.by}; the containers' devices: {' '.join(ids[CLAIMS[0]])}")
    libraries = kubelet.by == "by gpuslice-dra"
    for claim, names in containers.items():
        for name in names:
            path, out[name] = host.bundle(name, [sys.executable, "-B", HERE + "/kubernetes_fill.py"], {},
                                          bound=["/usr", "/opt"] if libraries else list(bound()))
            kubelet(inject=path + "/config.json", ids=ids[claim])
            logs[name] = os.path.join(host.out, name + ".log")
            running[name] = subprocess.Popen([hosts.RUNC, "--root", host.dir + "/runc", "run", "--bundle", path, name],
                                             stdin=subprocess.DEVNULL, stdout=open(logs[name], "w"), stderr=subprocess.STDOUT)
    sees = {name: int((said(log, r"sees (\d+)", 120) or [0, 0])[1]) for name, log in logs.items()}
    for directory in out.values():
        open(directory + "/go", "w").close()
    most = dict.fromkeys(CLAIMS, 0)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for claim, names in containers.items():
            most[claim] = max(most[claim], held(truth, host, names)[0])
        if all(said(log, "then |Error", 1) for log in logs.values()):
            break
    for name, log in logs.items():
        found = said(log, r"holds (\d+), then (.*)", 1)
        holds[name] = (int(found[1]), found[2]) if found else (0, "nothing")
    time.sleep(2.5)  # two comparisons with the driver
    print(f"{'container':<10} {'sees MiB':>9} {'holds MiB':>10} {'NVML MiB':>9}  refused with")
    for name in logs:
        print(f"{name:<10} {sees[name] / MIB:9.0f} {holds[name][0] / MIB:10.0f} {held(truth, host, [name])[0] / MIB:9.0f}  {holds[name][1][:80]}")
    for claim, names in containers.items():
        now, count = held(truth, host, names)
        most[claim] = max(most[claim], now)
        check(f"{claim}: each container is shown the claim's quota", all(sees[n] == QUOTA for n in names), [sees[n] for n in names])
        check(f"{claim}: the two together never over it, NVML says", count == 2 and most[claim] <= QUOTA,
              f"at most {most[claim] / MIB:.0f} of {QUOTA / MIB:.0f} MiB, {count} processes")
        check(f"{claim}: and it was filled", now > QUOTA - CONTEXT, f"{now / MIB:.0f} MiB")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--engines")
    args.add_argument("--out")
    args = args.parse_args()
    out = os.path.abspath(args.out or tempfile.mkdtemp(prefix="gpuslice-kubernetes-"))
    os.makedirs(out, exist_ok=True)
    host, truth, running, kubelet = Host(out), Truth(), {}, None
    before = truth.used()
    try:
        kubelet = Kubelet(host, args.engines and os.path.abspath(args.engines))
        fill(host, kubelet, truth, running)
        for name, process in running.items():
            host.remove(name)
            process.wait(30)
        for claim in CLAIMS:
            kubelet(unprepare=claim)
        pools = json.loads(subprocess.run([BIN + "/gpuslice", "--socket", host.socket, "pool", "list", "--json"], stdout=subprocess.PIPE, text=True).stdout)
        files = [f for f in os.listdir(kubelet.cdi) if f != "nvidia.yaml"]
        for _ in range(100):  # the driver takes a while to end a context
            if truth.used() <= before:
                break
            time.sleep(0.1)
        check("given back: no slice, no pool, no CDI file, no memory", not (host.ps() or pools or files or truth.used() > before),
              f"{len(host.ps())}, {len(pools)}, {len(files)}, {(truth.used() - before) / MIB:.0f} MiB")
    finally:
        for name in running:
            host.remove(name)
        if kubelet:
            kubelet.stop()
        host.stop()
    print(f"{results.count(False)} promises not kept")
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
