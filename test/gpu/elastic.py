#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU that elastic slices whose quotas add up to more than the card work in turns, and what that costs.

Run as root on a machine with an NVIDIA GPU, PyTorch and runc, and as much host memory free as three times --size, after `make card-programs`:

    RUNC=/path/to/runc test/gpu/elastic.py [--out DIR] [--size 20] [--quota 42] [--seconds 100] [--small 10] [--checkpoint] [--only PART…]
    RUNC=/path/to/runc test/gpu/elastic.py --only hundred [--small 4] [--times 100]
    RUNC=/path/to/runc test/gpu/elastic.py --only swap [--weights] [--size 45] [--quota 47] [--rounds 4]
    RUNC=/path/to/runc test/gpu/elastic.py --only models [--models 10] [--model 12] [--seconds 100]
    RUNC=/path/to/runc test/gpu/elastic.py --only woken [--size 20] [--small 4] [--seconds 100] [--host-cgroup /NAME]

Each program looks at each step whether all of its memory is as it left it. CuPy and JAX run where they are. Where there is no PyTorch a
program for the simulated driver takes its place, so that the script can be tried there: LD_LIBRARY_PATH=$PWD/bin/fakecuda, FAKECUDA_STATE not
below /tmp, FAKECUDA_MEMORY and sizes that host memory has room for. Prints a line per promise, and times beside bytes; the exit status is the number of
promises not kept.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # would write to the source tree
from host import BIN, GIB, MIB, ROOT, Host, Truth, check, output, results

PATIENCE = 180.0
# Each has a `begin`, and a `step` that raises if it does not find the previous step's values.
COMMON = """
import os, sys, time
gib = float(sys.argv[1])
{begin}
n = 0
while True:
    if os.path.exists("/out/step.idle"):
        while os.path.exists("/out/step.idle"):
            time.sleep(0.01)
        woken = time.monotonic()
        {wake}
        with open("/out/waited", "w") as f:
            f.write(str(time.monotonic() - woken))
    {step}
    n += 1
    with open("/out/new", "w") as f:
        f.write(str(n))
    os.rename("/out/new", "/out/step")
"""
TORCH = COMMON.format(begin="""
import torch
parts = [torch.zeros(1 << 26, dtype=torch.int32, device="cuda") for _ in range(int(gib * 4))]
def step():
    for part in parts:
        least, most = part.aminmax()
        assert int(least) == n and int(most) == n, (n, int(least), int(most))
        part.add_(1)
    again = torch.empty(1 << 22, device="cuda")
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
# A model that answers requests: its weights do not change.
WEIGHTS = COMMON.format(begin="""
import torch
parts = [torch.full((1 << 26,), i, dtype=torch.int32, device="cuda") for i in range(int(gib * 4))]
def step():
    for i, part in enumerate(parts):
        least, most = part.aminmax()
        assert int(least) == i and int(most) == i, (i, int(least), int(most))
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
GRAPH = COMMON.format(begin="""
import torch
x = torch.zeros(int(gib * (1 << 28)), dtype=torch.int32, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x.add_(0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
def step():
    assert int(x.max()) == n and int(x.min()) == n
    graph.replay()
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
CUPY = COMMON.format(begin="""
import cupy
x = cupy.zeros(int(gib * (1 << 28)), dtype=cupy.int32)
add = cupy.RawKernel('extern "C" __global__ void add(int *x, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x[i]++; }', 'add')
def step():
    assert int(x.max()) == n and int(x.min()) == n
    add((256,), (256,), (x, x.size))
    cupy.cuda.Device().synchronize()
""", wake="cupy.cuda.Device().synchronize()", step="step()")
JAX = COMMON.format(begin="""
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, jax.numpy as jnp
x = jnp.zeros(int(gib * (1 << 28)), dtype=jnp.int32)
more = jax.jit(lambda x: x + 1, donate_argnums=0)
def step():
    global x
    assert int(x.max()) == n and int(x.min()) == n
    x = more(x).block_until_ready()
""", wake="pass", step="step()")
# Other state that a move could disturb, besides the checked memory.
WITH = """
import torch
x = torch.zeros(int(gib * (1 << 28)), dtype=torch.int32, device="cuda")
def looks():
    least, most = x.aminmax()
    assert int(least) == n and int(most) == n, (n, int(least), int(most))
"""
COMPILE = COMMON.format(begin=WITH + """
@torch.compile
def more(x):
    return x.mul_(3).add_(3).sub_(x // 3 * 2 + x % 3)
def step():
    looks()
    more(x)
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
CUBLAS = COMMON.format(begin=WITH + """
a, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
was = a @ b
def step():
    looks()
    assert torch.equal(a @ b, was)
    x.add_(1)
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
PINNED = COMMON.format(begin=WITH + """
host = torch.arange(1 << 24, dtype=torch.int32).pin_memory()
back = torch.empty_like(host, pin_memory=True)
stream = torch.cuda.Stream()
def step():
    looks()
    with torch.cuda.stream(stream):
        there = host.to("cuda", non_blocking=True)
        there.add_(n)
        back.copy_(there, non_blocking=True)
    stream.synchronize()
    assert torch.equal(back, host + n)
    x.add_(1)
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
NCCL = COMMON.format(begin=WITH + """
import torch.distributed as dist
dist.init_process_group("nccl", init_method="file:///out/nccl", rank=0, world_size=1)
part = torch.ones(1 << 20, device="cuda")
def step():
    looks()
    dist.all_reduce(part)
    assert float(part.max()) == 1
    x.add_(1)
    torch.cuda.synchronize()
""", wake="torch.cuda.synchronize()", step="step()")
ALLOCATOR = 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "%s"\n' + TORCH.replace("%", "%%")
# Two processes beside the counting one, which waits for both at each step.
MULTI = '''
import os, subprocess, sys
program = """
import sys, torch
x, n = torch.zeros(int(float(sys.argv[1]) * (1 << 28)), dtype=torch.int32, device="cuda"), 0
for line in sys.stdin:
    least, most = x.aminmax()
    assert int(least) == n and int(most) == n
    x.add_(1)
    torch.cuda.synchronize()
    n += 1
    print(n, flush=True)
"""
both = [subprocess.Popen([sys.executable, "-c", program, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)]
n = 0
while True:
    for p in both:
        p.stdin.write("go\\n")
        p.stdin.flush()
    n += 1
    for p in both:
        assert int(p.stdout.readline()) == n
    with open("/out/new", "w") as f:
        f.write(str(n))
    os.rename("/out/new", "/out/step")
'''
PROGRAMS = {"torch": TORCH, "weights": WEIGHTS, "graph": GRAPH, "cupy": CUPY, "jax": JAX, "compile": COMPILE, "cublas": CUBLAS, "pinned": PINNED, "nccl": NCCL,
            "segments": ALLOCATOR % "expandable_segments:True", "async": ALLOCATOR % "backend:cudaMallocAsync", "multi": MULTI}


def have(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Case:
    """An enforcer with these turns, and the containers of one part."""

    remap, more = True, ""

    def __init__(self, out, turns):
        self.out, self.workers, self.other = out, [], None
        self.host = Host(out, f"\n[elastic]\nremap = {'true' if Case.remap else 'false'}\n" + Case.more + turns)
        self.total = self.host.devices()[0]["total"]
        self.simulated = not have("torch")
        if self.simulated:
            self.steady = os.path.join(self.host.dir, "steady")
            subprocess.run(["cc", "-std=gnu11", "-O1", "-o", self.steady, ROOT + "/test/e2e/programs/steady.c", "-ldl"], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for w in self.workers:
            self.host.remove(w.name)
        if self.other:
            self.other.terminate()
            self.other.wait()
        self.host.stop()

    def begin(self, name, program, gib, quota, elastic=True):
        args = [sys.executable, "-c", PROGRAMS[program], str(gib)]
        if self.simulated:
            args = ["/out/steady", str(int(gib * GIB)), "/out/step"]
        path, out = self.host.bundle(name, args, {"gpuslice.vram": f"{int(quota * 1024)}M", "gpuslice.elastic": str(elastic).lower()})
        if self.simulated:
            subprocess.run(["cp", self.steady, out], check=True)
        log = open(os.path.join(self.out, name + ".log"), "w")
        w = Worker(self, name, out, log.name, self.host.launch(path, name, log))
        self.workers.append(w)
        return w

    def sizes(self, gib, quota):
        """What each program holds, and its quota, in GiB. Of the card as much is left as one quota and half of another program's memory
        need, so that what comes has others move."""
        gib = gib or self.total / GIB * 2 / 5
        quota = quota or gib * 11 / 8 + 1
        others = self.total // MIB - int((quota + gib / 2 + 0.75) * 1024)
        if others > 0:
            self.other = subprocess.Popen([BIN + "/gpuslice", "--socket", self.host.socket, "run", "--quiet", "--vram", f"{others}M", "--", "sleep", "1000"])
        return gib, quota

    def end(self, worker):
        self.workers.remove(worker)
        self.host.remove(worker.name)
        worker.process.wait()

    def log(self):
        with open(os.path.join(self.out, "gpusliced.log")) as f:
            return f.read()

    def moves(self):
        """Bytes that were moved out and back, as events tell."""
        text = subprocess.run([BIN + "/gpuslice", "--socket", self.host.socket, "events", "--since", "0", "--json"],
                              stdout=subprocess.PIPE, text=True, timeout=20).stdout
        events = [json.loads(line) for line in text.splitlines()]
        sums = {kind: sum(e.get("bytes", 0) for e in events if e["kind"] == kind) for kind in ("evicted", "returned")}
        return sums, [e for e in events if e["kind"] == "bypass"]


class Worker:
    def __init__(self, case, name, out, log, process):
        self.case, self.name, self.out, self.log, self.process = case, name, out, log, process

    def step(self):
        try:
            with open(os.path.join(self.out, "step")) as f:
                return int(f.read() or 0)
        except (OSError, ValueError):
            return 0

    def reaches(self, step):
        """Seconds until it has done so many steps; None if it has not in time, or has ended."""
        begun = time.monotonic()
        while self.step() < step:
            if time.monotonic() > begun + PATIENCE or self.process.poll() is not None:
                with open(self.log) as f:
                    print(f"{self.name} does not work: {f.read()[-500:]}", flush=True)
                return None
            time.sleep(0.01)
        return time.monotonic() - begun

    def idle(self, yes):
        path = os.path.join(self.out, "step.idle")
        if yes:
            open(path, "w").close()
        else:
            os.unlink(path)

    def wakes(self):
        """Has it do a step that was idle: how long its first call waited, and after how long the step was done, in seconds."""
        begun, step = time.monotonic(), self.step()
        self.idle(False)
        while self.step() < step + 1:
            if time.monotonic() > begun + PATIENCE or self.process.poll() is not None:
                return 0, None
            time.sleep(0.005)
        took = time.monotonic() - begun
        self.idle(True)
        try:
            with open(os.path.join(self.out, "waited")) as f:
                return float(f.read()), took
        except (OSError, ValueError):
            return took, took

    def evicted(self):
        """What is shown of it once it has been evicted, or when patience ends."""
        until = time.monotonic() + PATIENCE
        while not self.shown()["elastic"]["evictions"] and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.05)
        return self.shown()

    def shown(self):
        return self.case.host.inspect(self.name)


def turns(out, gib, quota, seconds):
    """Three programs that work without pause."""
    truth = Truth()
    before, most = truth.used(), 0
    with Case(out, f'min_resident = "2s"\nquantum = "{min(5, max(2, seconds // 20))}s"\n') as case:
        gib, quota = case.sizes(gib, quota)
        all_ = [case.begin(f"busy{i}", "torch", gib, quota) for i in range(3)]
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            most = max(most, truth.used() - before)
            time.sleep(0.05)
        took = time.monotonic() - begun
        late = [w.reaches(w.step() + 2) for w in all_]
        shown = [w.evicted() for w in all_]
        steps = [w.step() for w in all_]
        sums, bypass = case.moves()
    check(f"three programs of {gib:.1f} GiB work in turns", all(x is not None for x in late) and all(s["elastic"]["evictions"] for s in shown),
          ", ".join(f"{n} steps, evicted {s['elastic']['evictions']} times" for n, s in zip(steps, shown)))
    if not Case.remap:  # else a part stays, as far as there is room
        check("the card holds no more than one of them", most < (quota + 1) * GIB, f"{most / MIB:.0f} MiB at the most")
    check("their memory was moved", sums["evicted"] and sums["returned"], f"{sums['evicted'] / GIB:.1f} GiB went and {sums['returned'] / GIB:.1f} GiB came back")
    check("no violation was found", not bypass, len(bypass))
    print(f"      in {took:.0f} s", flush=True)


def woken(out, gib, small, quota, seconds):
    """Some that are idle want the card beside two that work without pause, one at a time: how long the first call waits."""
    chosen, quantum, n = random.Random(7), *((4.0, 6) if have("torch") else (0.5, 2))
    with Case(out, f'min_resident = "{quantum * 250:.0f}ms"\nquantum = "{quantum * 1000:.0f}ms"\n') as case:
        gib, quota = case.sizes(gib, quota)
        idle = []
        for i in range(n):
            idle.append(case.begin(f"idle{i}", "torch", min(small, gib), quota))
            idle[-1].reaches(1)
            idle[-1].idle(True)
        busy = [case.begin(f"busy{i}", "torch", gib, quota) for i in range(2)]
        ready, rested = [w.reaches(3) for w in busy], [time.monotonic()] * n
        for kind, some, rest, lasts in (("more than ten quanta", n, 10.5, 1), ("a quantum or two", 1, 0, 0.5)):  # elastic-reference.md, Return
            begun, seen = time.monotonic(), []
            while not seen or time.monotonic() < begun + seconds * lasts:
                i = len(seen) % some
                time.sleep(max(chosen.uniform(1, 2) * quantum, rested[i] + rest * quantum - time.monotonic()))
                seen.append(idle[i].wakes())
                rested[i] = time.monotonic()
                if None in (*ready, *seen[-1]):
                    check("two work, and a third is woken", False, "not so")
                    return
            waited = sorted(w for w, _ in seen)
            check(f"one that was idle for {kind} is woken beside two that work", True,
                  f"{len(seen)} times, waited {waited[len(waited) // 2]:.2f} s (median), {waited[-1]:.2f} s (most), with a quantum of {quantum} s: "
                  + " ".join(f"{w:.2f}" for w in waited))
        steps = [w.step() for w in busy]
        check("and these work on", all(w.reaches(n + 2) is not None for w, n in zip(busy, steps)), ", ".join(f"{n} steps" for n in steps))


def notebook(out, gib, quota):
    """One is idle when another wants the card, and works again later."""
    with Case(out, 'min_resident = "1s"\n') as case:
        _, quota = case.sizes(gib, quota)
        a = case.begin("first", "torch", gib, quota)
        alone = a.reaches(3)
        a.idle(True)
        time.sleep(2)
        b = case.begin("second", "torch", gib, quota)
        beside = b.reaches(3)
        state = a.shown()["state"]
        check("an idle program makes room for another", beside is not None and state == "evicted", f"it is {state}")
        b.idle(True)
        time.sleep(2)
        begun, step = time.monotonic(), a.step()
        a.idle(False)
        back = a.reaches(step + 1)
        sums, _ = case.moves()
        check("and works on where it was", back is not None and b.shown()["state"] == "evicted", f"the other is {b.shown()['state']}")
        check("its memory was moved", sums["evicted"] and sums["returned"], f"{sums['evicted'] / GIB:.1f} GiB went and {sums['returned'] / GIB:.1f} GiB came back")
        if None not in (alone, beside, back):
            print(f"      begun and three steps alone {alone:.1f} s, with {gib} GiB of another moved aside first {beside:.1f} s; "
                  f"{gib} GiB out and {gib} GiB back until its next step: {back:.1f} s", flush=True)


# Prints bytes per second from pinned memory to the device, and back: the fastest of three copies of 1 GiB.
RATE = """
import time, torch
host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
def rate(to, of):
    best = 1e9
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.monotonic()
        to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()
        best = min(best, time.monotonic() - begun)
    return (1 << 30) / best
print(rate(device, host), rate(host, device))
"""


def unchanged(worker):
    """The part of its memory that had not changed at its last move."""
    with open(worker.log) as f:
        found = re.findall(r"(\d+) MiB can move, of which (\d+) MiB were in host memory as they are", f.read())
    return int(found[-1][1]) / int(found[-1][0]) if found else 0


def swap(out, program, gib, quota, rounds):
    """Three programs, of which one works at a time: how long its first call waits, beside what the bytes that move would take."""
    back, away = 20e9, 20e9
    if have("torch"):
        back, away = (float(x) for x in output(sys.executable, "-c", RATE).split()[-2:])
    print(f"      this machine copies {away / GIB:.1f} GiB a second from the device and {back / GIB:.1f} to it", flush=True)
    with Case(out, 'min_resident = "100ms"\nquantum = "30s"\n') as case:
        gib, quota = case.sizes(gib, quota)
        all_ = []
        for i in range(3):
            all_.append(case.begin(f"swap{i}", program, gib, quota))
            if all_[-1].reaches(1) is None:
                check("three programs begin", False, f"swap{i} does not")
                return
            all_[-1].idle(True)
        seen, was = [], case.moves()[0]
        for n in range(rounds * 3):
            w = all_[n % 3]
            time.sleep(0.3)
            waited, took = w.wakes()
            if took is None:
                check("each works on where it was", False, f"{w.name} does not")
                return
            time.sleep(0.2)  # for the events
            now = case.moves()[0]
            moved = {kind: now[kind] - was[kind] for kind in now}
            was = now
            bus = moved["evicted"] / away + moved["returned"] / back
            seen.append((waited, bus))
            print(f"      {w.name}: its first call waited {waited:.2f} s, its step was done after {took:.2f} s; {moved['evicted'] / GIB:.1f} GiB went and "
                  f"{moved['returned'] / GIB:.1f} GiB came back, which is {bus:.2f} s of copying" + (f" ({waited / bus:.2f})" if bus > 0.05 else ""), flush=True)
        went, bypass = case.moves()
        warm = [(w, b) for w, b in seen[3:] if b > 0.05]
        same = [unchanged(w) for w in all_]
    check(f"three programs of {gib:.1f} GiB are woken in turn", not bypass and went["evicted"] and went["returned"],
          f"{len(seen)} times, {went['evicted'] / GIB:.1f} GiB went, {went['returned'] / GIB:.1f} GiB came back, {len(bypass)} violations")
    if program == "weights" or case.simulated:  # whose programs change one block
        check("what has not changed is not copied again", sorted(same)[1] > 0.9, " ".join(f"{s:.3f}" for s in same))  # the last may have moved once
    if warm:
        print(f"      after the first round: waited {sum(w for w, _ in warm):.2f} s for {sum(b for _, b in warm):.2f} s of copying "
              f"({sum(w for w, _ in warm) / sum(b for _, b in warm):.2f})", flush=True)


def frameworks(out, gib, quota, seconds):
    with Case(out, 'min_resident = "1s"\nquantum = "3s"\n') as case:
        _, quota = case.sizes(gib, quota)
        names = [n for n in ("graph", "cupy", "jax") if case.simulated or n == "graph" or have(n)]
        all_ = [case.begin(n, n, gib, quota) for n in names]
        time.sleep(seconds)
        late = [w.reaches(w.step() + 2) for w in all_]
        for w, ok in zip(all_, late):
            s = w.evicted()
            check(f"{w.name} is evicted and returns with right results", ok is not None and s["elastic"]["evictions"] > 0,
                  f"{w.step()} steps, evicted {s['elastic']['evictions']} times, {s['elastic'].get('obstacle', '')}")


def hundred(out, gib, times):
    """Each kind of program is moved aside and back so many times, while it works."""
    names = [n for n in PROGRAMS if n not in ("cupy", "jax") or have(n)]
    if not have("torch"):
        names = ["torch", "graph", "cupy"]
    # JAX's allocator takes several times the requested bytes; two processes have a context each.
    quota = {n: int(gib) * {"jax": 5, "multi": 2}.get(n, 1) + (4 if have("torch") else 1) for n in names}
    with Case(out, "overcommit = 16.0\n") as case:
        all_ = [case.begin(n, n, gib, quota[n]) for n in names]
        for w in all_:
            if w.reaches(2) is None:
                check(f"{w.name} begins", False, "it does not")
        done = {}
        # The driver's checkpoint moves memory of its own pools, which takes a second or more for each of these.
        often = {w.name: max(1, times // 10) if w.name == "async" else times for w in all_}

        def move(w):
            begun, said, n = time.monotonic(), "", 0
            while n < often[w.name] and time.monotonic() < begun + 2 * PATIENCE:
                for verb in ("suspend", "resume"):
                    answer = subprocess.run([BIN + "/gpuslice", "--socket", case.host.socket, verb, w.name], stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, text=True)
                    if answer.returncode:
                        said = answer.stdout.strip()
                if said and not n:
                    break
                n += 1
            done[w.name] = (n, said, time.monotonic() - begun)

        threads = [threading.Thread(target=move, args=(w,)) for w in all_]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for w in all_:
            late = w.reaches(w.step() + 2)
            n, said, took = done[w.name]
            left = [line.split("why=")[-1] for line in case.log().splitlines() if "left to the driver" in line and f"slice={w.name} " in line]
            check(f"{w.name} is moved {often[w.name]} times with right results", late is not None and n == often[w.name] and (not left or w.name == "async"),
                  f"{n} times in {took:.0f} s, {w.step()} steps" + (f", by the driver {len(left)} times: {left[-1][-110:]}" if left else "") + (f", {said}" if said else ""))


def served(name, seconds, n, ask):
    """Asks models at random, the first most often, one request after the other; prints what a request took."""
    chosen = random.Random(7)
    weights = [1 / (i + 1) for i in range(n)]
    took, begun = [], time.monotonic()
    while time.monotonic() < begun + seconds:
        one = ask(chosen.choices(range(n), weights)[0])
        if one is None:
            break
        took.append(one)
    whole = time.monotonic() - begun
    check(f"models are served: {name}", took and one is not None, f"{len(took)} requests")
    if took:
        took.sort()
        print(f"      {name}: {len(took) / whole:.2f} requests a second; a request took {took[len(took) // 2]:.2f} s (median), "
              f"{took[min(len(took) - 1, len(took) * 99 // 100)]:.2f} s (99 %)", flush=True)


def request(worker):
    """Seconds until a model that was idle has read all of itself once."""
    begun, step = time.monotonic(), worker.step()
    worker.idle(False)
    ok = worker.reaches(step + 1)
    worker.idle(True)
    return None if ok is None else time.monotonic() - begun


def models(out, n, gib, seconds):
    """More models than the card has room for: elastic; begun anew when they are not there; and as many as there is room for, which is the limit."""
    quota = int(gib) + (1 if not have("torch") else 2)
    turns = 'min_resident = "100ms"\novercommit = 16.0\n'
    with Case(out, turns) as case:
        fit = int(case.total // (quota * GIB))
        there = []

        def elastic(i):
            while len(there) <= i:
                w = case.begin(f"model{len(there)}", "weights", gib, quota)
                if w.reaches(1) is None:
                    return None
                w.idle(True)
                there.append(w)
            return request(there[i])

        elastic(n - 1)
        served(f"{n} elastic ones of {gib} GiB, of which {fit} fit", seconds, n, elastic)
    with Case(out, turns) as case:
        loaded = {}  # in the order of their last requests

        def anew(i):
            begun, w = time.monotonic(), loaded.pop(i, None)
            if w is None:
                if len(loaded) >= fit:
                    case.end(loaded.pop(next(iter(loaded))))
                w = case.begin(f"model{i}-{time.monotonic_ns()}", "weights", gib, quota, elastic=False)
                if w.reaches(1) is None:
                    return None
                w.idle(True)
            elif request(w) is None:
                return None
            loaded[i] = w
            return time.monotonic() - begun

        served(f"{n} that are begun anew where they are not there", seconds, n, anew)
        served(f"{min(n, fit)} that are all there", seconds / 4, min(n, fit), anew)


def cost(out):
    """Calls in an elastic slice, against the driver's own in the same process; and in one that is not."""
    names = ["cuMemAlloc 1 KiB, kept", "cuMemAlloc + cuMemFree 2 MiB", "cuMemAllocAsync", "cuLaunchKernel, empty", "cuStreamSynchronize"]
    with Case(out, "") as case:
        for flags in (["--elastic"], [], ["--elastic"], []):
            done = subprocess.run([BIN + "/gpuslice", "--socket", case.host.socket, "run", "--quiet", "--vram", "20G", *flags, "--",
                                   BIN + "/bench/cost", "calls", "4", *names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            print("      " + (" ".join(flags) or "ordinary"), flush=True)
            print(done.stdout, flush=True)
            check("the calls are measured " + (flags[0] if flags else "in an ordinary slice"), done.returncode == 0, done.returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", help="where logs go")
    parser.add_argument("--size", type=float, help="GiB that each of the programs that work in turns holds (2/5 of the card)")
    parser.add_argument("--quota", type=float, help="GiB of quota of each (11/20 of the card)")
    parser.add_argument("--seconds", type=int, default=100, help="how long they work")
    parser.add_argument("--small", type=float, default=10, help="GiB of the programs that are idle at times")
    parser.add_argument("--checkpoint", action="store_true", help="the driver moves all of their memory, and they none themselves")
    parser.add_argument("--host-cgroup", help="host_cgroup: a limit of this program's own cgroup would have each move pin its memory anew")
    parser.add_argument("--weights", action="store_true", help="the programs that are woken in turn change nothing of their memory")
    parser.add_argument("--models", type=int, default=10, help="how many models are asked at random")
    parser.add_argument("--model", type=float, default=12, help="GiB of each of them")
    parser.add_argument("--times", type=int, default=100, help="how often each kind of program is moved")
    parser.add_argument("--rounds", type=int, default=4, help="how often each of three is woken")
    parts = ["cost", "notebook", "frameworks", "turns", "models", "swap", "hundred", "woken"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts[:4], help="which parts")
    args = parser.parse_args()
    Case.remap = not args.checkpoint
    Case.more = f'host_cgroup = "{args.host_cgroup}"\n' if args.host_cgroup else ""
    out = args.out or tempfile.mkdtemp(prefix="gpuslice-elastic-")
    os.makedirs(out, exist_ok=True)
    print(f"logs in {out}", flush=True)
    each = {
        "cost": lambda: cost(out),
        "notebook": lambda: notebook(out, args.small, args.quota),
        "frameworks": lambda: frameworks(out, args.small / 5, args.quota, args.seconds * 2 // 3),
        "turns": lambda: turns(out, args.size, args.quota, args.seconds),
        "woken": lambda: woken(out, args.size, args.small, args.quota, args.seconds),
        "hundred": lambda: hundred(out, args.small, args.times),
        "swap": lambda: swap(out, "weights" if args.weights else "torch", args.size, args.quota, args.rounds),
        "models": lambda: models(out, args.models, args.model, args.seconds),
    }
    for part in args.only:
        each[part]()
    print(f"{sum(results)} kept, {results.count(False)} not", flush=True)
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
