#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU that slices are suspended and resumed: `gpuslice suspend ID`, `gpuslice resume ID`.

Run as root on a machine with an NVIDIA GPU, PyTorch and runc, and as much host memory free as two times --size, after `make card-programs`:

    RUNC=/path/to/runc test/gpu/suspend.py [--out DIR] [--size 40] [--small 10] [--rounds 3]

Each program holds so many GiB and works without pause: every step finds in all of it what the step before wrote, and writes
what the next one is to find. Where there is no PyTorch a program for the simulated driver takes its place, so that the script can
be tried there: LD_LIBRARY_PATH=$PWD/bin/fakecuda, FAKECUDA_STATE not below /tmp, and --size that host memory has room for. Prints a line per promise, and times beside bytes; the exit status is the number of promises not kept.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from host import BIN, GIB, MIB, ROOT, Host, Truth, check, results

PATIENCE = 120.0
PROGRAM = """
import sys, time, torch
parts = [torch.zeros(1 << 28, dtype=torch.int32, device="cuda") for _ in range(int(sys.argv[1]))]
if sys.argv[3:] == ["managed"]:
    import ctypes
    pointer = ctypes.c_uint64()
    assert ctypes.CDLL("libcuda.so.1").cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(1 << 20), 1) == 0
step = 0
while True:
    for part in parts:
        least, most = part.aminmax()
        if int(least) != step or int(most) != step:
            sys.exit(f"step {step} finds {int(least)} to {int(most)}")
        part.add_(1)
    again = torch.empty(1 << 22, device="cuda") # from the allocator
    torch.cuda.synchronize()
    step += 1
    with open(sys.argv[2], "w") as f:
        f.write(str(step))
"""


def have_torch():
    return subprocess.run([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


class Case:
    def __init__(self, host, torch, out):
        self.host, self.torch, self.out, self.names = host, torch, out, []
        if not torch:
            self.steady = os.path.join(host.dir, "steady")
            subprocess.run(["cc", "-std=gnu11", "-O1", "-o", self.steady, ROOT + "/test/e2e/programs/steady.c", "-ldl"], check=True)

    def gpuslice(self, *args):
        begun = time.monotonic()
        done = subprocess.run([BIN + "/gpuslice", "--socket", self.host.socket, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0, " ".join(done.stdout.split()), time.monotonic() - begun

    def works(self, name, gib, quota, *more, memory=None):
        """A container that holds and works. memory is its limit of host memory, in bytes."""
        if self.torch:
            args = [sys.executable, "-c", PROGRAM, str(gib), "/out/step", *more]
        else:
            args = ["/out/steady", str(gib * GIB), "/out/step", *more]
        path, out = self.host.bundle(name, args, {"gpuslice.vram": f"{int(quota * 1024)}M"})
        if not self.torch:
            subprocess.run(["cp", self.steady, out], check=True)
        if memory:
            file = os.path.join(path, "config.json")
            with open(file) as f:
                spec = json.load(f)
            spec["linux"]["resources"]["memory"] = {"limit": memory}
            with open(file, "w") as f:
                json.dump(spec, f)
        log = open(os.path.join(self.out, name + ".log"), "w")
        self.host.launch(path, name, log)
        self.names.append(name)
        w = Worker(self, name, os.path.join(out, "step"), log.name)
        w.goes_on()
        return w

    def end(self):
        for name in self.names:
            self.host.remove(name)
        self.names = []
        while self.host.ps():
            time.sleep(0.1)

    def moved(self, verb, name, gib):
        """Suspends or resumes, and says how fast that was."""
        ok, said, took = self.gpuslice(verb, name)
        print(f"      {verb} {name}: {gib} GiB in {took:.2f} s, {gib / took:.1f} GiB/s", flush=True)
        return ok, said

    def restarted(self, at):
        """The daemon is killed after so many seconds of what is under way, and started again."""
        time.sleep(at)
        self.host.daemon.send_signal(signal.SIGKILL)
        self.host.daemon.wait()
        os.unlink(self.host.socket)
        self.host.start()


class Worker:
    def __init__(self, case, name, file, log):
        self.case, self.name, self.file, self.log = case, name, file, log

    def step(self):
        try:
            with open(self.file) as f:
                return int(f.read() or 0)
        except (OSError, ValueError):
            return 0

    def goes_on(self):
        """Two steps more, each of which finds what it wrote before."""
        before, until = self.step(), time.monotonic() + PATIENCE
        while self.step() < before + 2:
            if time.monotonic() > until:
                with open(self.log) as f:
                    print(f"{self.name} does not work: {f.read()[-500:]}", flush=True)
                return False
            time.sleep(0.02)
        return True

    def stands(self):
        time.sleep(0.5)
        before = self.step()
        time.sleep(1)
        return self.step() == before

    def state(self):
        return self.case.host.inspect(self.name)["state"]

    def becomes(self, *states):
        until = time.monotonic() + PATIENCE
        while self.state() not in states and time.monotonic() < until:
            time.sleep(0.1)
        return self.state()


def one(case, gib):
    truth, before = Truth(), Truth().used()
    w = case.works("one", gib, gib + 2)
    held = truth.used() - before
    ok, said = case.moved("suspend", "one", gib)
    left, use = truth.used() - before, case.host.inspect("one")["devices"][0]
    check("a program is suspended", ok and w.state() == "suspended" and w.stands(), said)
    check("its memory is off the card", left < 64 * MIB and use["used"] + use["overhead"] < 64 * MIB,
          f"the card had {held / MIB:.0f} MiB more in use, and has {left / MIB:.1f}; ps says {(use['used'] + use['overhead']) / MIB:.1f}, suspended {use['suspended'] / MIB:.0f} MiB")
    ok, said = case.moved("resume", "one", gib)
    check("it goes on where it was, all of its memory as it was", ok and w.goes_on() and w.state() == "active", said)
    events = case.gpuslice("events", "--json")[1]
    check("no violation was found", '"bypass"' not in events, f"{events.count('kind')} events")

    case.gpuslice("suspend", "one")
    case.restarted(0)
    check("the daemon is killed while it is suspended: it stays so", w.state() == "suspended" and w.stands(), w.state())
    ok, said, _ = case.gpuslice("resume", "one")
    check("the next daemon resumes it", ok and w.goes_on(), said)
    for verb, wants in (("suspend", "active"), ("resume", "active")):
        if verb == "resume":
            case.gpuslice("suspend", "one")
        asked = subprocess.Popen([BIN + "/gpuslice", "--socket", case.host.socket, verb, "one"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        case.restarted(1.5 if case.torch else 0.3)
        asked.wait()
        state = w.becomes("active", "suspended")
        if state == "suspended":  # it was done before the daemon was killed
            case.gpuslice("resume", "one")
        check(f"the daemon is killed in the middle of a {verb}: the program goes on", w.goes_on() and w.state() == wants, f"it was {state} then")
    case.end()


def turns(case, gib, rounds):
    quota = case.host.devices()[0]["total"] / GIB * 11 / 20  # one fits
    a = case.works("a", gib, quota)
    ok, said = case.moved("suspend", "a", gib)
    check("the first is suspended", ok, said)
    b = case.works("b", gib, quota)
    ok, said, _ = case.gpuslice("resume", "a")
    check("it is not resumed beside the other", not ok and "b has" in said and a.state() == "suspended", said)
    for i in range(rounds):
        out, back = (b, a) if i % 2 == 0 else (a, b)
        (ok, said), begun = case.moved("suspend", out.name, gib), time.monotonic()
        (also, more) = case.moved("resume", back.name, gib)
        check(f"turn {i + 1}: {back.name} works, {out.name} stands", ok and also and back.goes_on() and out.stands(),
              f"{time.monotonic() - begun:.1f} s until it works; {said} {more}"[:160])
    case.end()


def refused(case, gib):
    w = case.works("managed", gib, gib + 2, "managed")
    ok, said, _ = case.gpuslice("suspend", "managed")
    check("managed memory is refused, and unlocked", not ok and "managed memory" in said and w.goes_on() and w.state() == "active", said)
    case.end()
    # As much as the program needs without its copy: PyTorch's own some 6 GiB.
    limit = (8 if case.torch else 1) * GIB
    size = max(gib, 10 if case.torch else 2)
    w = case.works("limited", size, size + 2, memory=limit)
    ok, said, _ = case.gpuslice("suspend", "limited")
    if ok:
        print("SKIP  a limit of memory that is too small: no memory controller holds the container here", flush=True)
        case.gpuslice("resume", "limited")
    else:
        check("a limit of memory that is too small is refused before", "limit of memory" in said and w.goes_on(), said)
    case.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", help="where logs go")
    parser.add_argument("--size", type=int, default=40, help="GiB that each of the two programs that take turns holds")
    parser.add_argument("--small", type=int, default=10, help="GiB of the other programs")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    out = args.out or tempfile.mkdtemp(prefix="gpuslice-suspend-")
    os.makedirs(out, exist_ok=True)
    torch = have_torch()
    print(f"with {'PyTorch' if torch else 'the program for the simulated driver'}; logs in {out}", flush=True)
    host = Host(out)
    case = Case(host, torch, out)
    try:
        one(case, args.small)
        turns(case, args.size, args.rounds)
        refused(case, min(args.small, 2))
    finally:
        for name in case.names:
            host.remove(name)
        host.stop()
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
