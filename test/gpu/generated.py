#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random programs on a real GPU, against what the driver says that they hold.

    test/gpu/generated.py [--seconds 600 | --programs 12] [--seed 1] [--threads 16] [--processes 4] [--record] [--elastic] [--out DIR]
    test/gpu/generated.py --only SEED,STEPS,THREADS,PROCESSES,DEEDS

Run as root on a machine with an NVIDIA GPU and cc, after `make card-programs`. test/interceptor/programs/generated.c runs in a
slice of 4 GiB, each time with other numbers. While it runs, the driver's list for the slice's processes stays within the quota
and one context. At each pause the list is within what is charged and 2 MiB for each process, a second later at most. When all
is released, nothing is charged but overhead, and the list is within that. A program that fails is run again with fewer threads,
processes, steps and deeds as long as it fails, and printed. A program that does not end is killed, and what its threads wait for is in
DIR. Prints a line for each program, with the seconds since the beginning. The exit status is the number of promises that are not kept.
"""
import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from host import BIN, GIB, MIB, ROOT, Host, Truth, check, eventually, output, results

QUOTA = 4 * GIB
TRANSIENT = 640 * MIB  # of a context, on the cards that were tried
BLOCK = 2 * MIB
# Seconds until driver truth is charged: two samples; and for a program, which takes 1 to 10 on a card. The simulated driver shares its
# processors with other tests.
SETTLED, BOUND = (60.0, 300.0) if "FAKECUDA_STATE" in os.environ else (3.0, 60.0)
DEEDS = 21  # of generated.c
PROGRAM = BIN + "/gpu-test/generated"


def compile_program():
    os.makedirs(os.path.dirname(PROGRAM), exist_ok=True)
    own = f"{PROGRAM}-{os.getpid()}"
    done = output("cc", "-std=gnu11", "-O1", "-g", f"-I{ROOT}/interceptor", "-o", own, ROOT + "/test/interceptor/programs/generated.c",
                  "-lcuda", "-lpthread")
    if not os.path.exists(own):
        sys.exit(done)
    os.replace(own, PROGRAM)  # another part of all.sh may run it


def stacks(session):
    """What each thread of a session waits for; where gdb is, the functions that it is in."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if os.getsid(int(pid)) != session:
                continue
            lines.append(f"process {pid}: " + open(f"/proc/{pid}/cmdline").read().replace("\0", " "))
            for task in os.listdir(f"/proc/{pid}/task"):
                lines.append(" ".join([task] + [open(f"/proc/{pid}/task/{task}/{name}").read().strip() for name in ("comm", "wchan", "syscall")]))
            if shutil.which("gdb"):
                lines.append(output("gdb", "-p", pid, "-batch", "-ex", "thread apply all backtrace", timeout=30))
    return "\n".join(lines) + "\n"


class Program:
    """One run. Its fault is None if there is none."""

    def __init__(self, host, options, numbers):
        self.host, self.record, self.numbers = host, options.record, ",".join(map(str, numbers))
        self.stacks = os.path.join(options.out, f"stacks-{self.numbers}.txt")
        self.fault, self.hung, self.peak, self.pauses, self.summary = None, False, 0, 0, ""
        words = ["--mode", "record"] if options.record else ["--vram", str(QUOTA)]
        words += ["--elastic"] if options.elastic else []
        self.over = threading.Event()
        self.truth = Truth()
        if not eventually(lambda: not host.ps()):  # the former program's
            self.hung = True
            return self.fails("the former program's slice has not ended")
        self.others = set(self.truth.processes())  # a card may be in use
        self.process = subprocess.Popen([BIN + "/gpuslice", "--socket", host.socket, "run", "--quiet", *words, "--", PROGRAM,
                                         *map(str, numbers)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        self.watch()

    def fails(self, why):
        self.fault = self.fault or why

    def kill(self):
        """Kills its processes, too, which would keep the pipe open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def hangs(self):
        self.hung = True
        self.fails(f"it has not ended after {BOUND:.0f} s: {self.stacks}")
        try:
            with open(self.stacks, "w") as f:
                f.write(stacks(self.process.pid))
        finally:
            self.kill()

    def slice(self):
        """The only one there is; None if it has ended."""
        return next((self.host.inspect(s["id"]) for s in self.host.ps()), None)

    def listed(self):
        s = self.slice()
        pids = {p["pid"] for p in s["processes"]} if s else set()
        return sum(b for p, b in self.truth.processes().items() if p in pids), len(pids)

    def device(self):
        s = self.slice()
        return s["devices"][0] if s and s.get("devices") else {"used": 0, "overhead": 0}

    def sample(self):
        while not self.over.is_set():
            self.peak = max(self.peak, sum(b for p, b in self.truth.processes().items() if p not in self.others))
            time.sleep(0.002)

    def within(self, allowed, what):
        """Waits until what the driver lists is within what is allowed, for as long as a sample may take."""
        seen = ""

        def is_within():
            nonlocal seen
            (listed, processes), device = self.listed(), self.device()
            seen = f"the driver lists {listed / MIB:.1f} MiB, charged are {device['used'] / MIB:.1f} and {device['overhead'] / MIB:.1f}"
            return listed <= allowed(device) + BLOCK * processes

        if not eventually(is_within, SETTLED):
            self.fails(f"{what}: {seen}")

    def answer(self, line):
        word, _, number = line.partition(" ")
        if word == "pause":
            self.pauses += 1
            self.within(lambda d: d["used"] + d["overhead"], f"pause {number}")
        elif word == "end":
            if not eventually(lambda: not self.device()["used"], SETTLED):
                self.fails(f"all is released, and {self.device()['used']} bytes are charged")
            self.within(lambda d: d["overhead"], "all is released")
        elif word != "released":
            self.summary = line
            return
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def watch(self):
        sampler = threading.Thread(target=self.sample, daemon=True)
        sampler.start()
        timer = threading.Timer(BOUND, self.hangs)
        timer.start()
        try:
            for line in self.process.stdout:
                line = line.strip()
                if "error" in line or "could not" in line:
                    self.fails(line)
                if self.fault:
                    break
                self.answer(line)
        except BrokenPipeError:
            self.fails("it ended at a pause")
        except subprocess.SubprocessError as e:
            self.fails(f"gpusliced does not answer: {e}")
        finally:
            if self.fault:
                self.kill()
            code = self.process.wait()
            timer.cancel()
            self.over.set()
            sampler.join(BOUND)
        if code:
            self.fails(f"exit status {code}: {self.summary}")
        if not self.record and self.peak > QUOTA + TRANSIENT:
            self.fails(f"the driver listed {self.peak / MIB:.0f} MiB under a quota of {QUOTA / MIB:.0f}")


def smaller(numbers):
    """Programs that are a little smaller, those first that are smaller by most."""
    seed, steps, threads, processes, deeds = numbers
    if processes > 1:
        yield seed, steps, threads, processes // 2, deeds
    if threads > 1:
        yield seed, steps, threads // 2, processes, deeds
    if steps > 32:
        yield seed, steps // 2, threads, processes, deeds
    for deed in range(DEEDS):
        if deeds >> deed & 1 and deeds != 1 << deed:
            yield seed, steps, threads, processes, deeds & ~(1 << deed)


def shrink(host, options, numbers, fault, patience):
    deadline, found = time.monotonic() + patience, True
    while found and time.monotonic() < deadline:
        found = False
        for less in smaller(numbers):
            program = Program(host, options, less)
            if program.fault:
                numbers, fault, found = less, program.fault, True
                break
            if time.monotonic() > deadline:
                break
    return numbers, fault


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--programs", type=int, help="in place of a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=16, help="at most, in a process")
    parser.add_argument("--processes", type=int, default=4, help="at most")
    parser.add_argument("--steps", type=int, default=256, help="at most, of a thread")
    parser.add_argument("--record", action="store_true", help="refuse nothing")
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--only", help="SEED,STEPS,THREADS,PROCESSES,DEEDS")
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-generated-"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    compile_program()
    host = Host(options.out)
    programs = pauses = peak = 0
    begun = time.monotonic()
    try:
        seed = options.seed
        while programs < options.programs if options.programs else time.monotonic() - begun < options.seconds:
            choose = random.Random(seed)
            numbers = (seed, choose.choice([n for n in (32, 64, 128, 256) if n <= options.steps]), choose.randint(1, options.threads),
                       choose.randint(1, options.processes), choose.choice([(1 << DEEDS) - 1, choose.getrandbits(DEEDS) | 1]))
            if options.only:
                numbers = tuple(map(int, options.only.split(",")))
            program = Program(host, options, numbers)
            programs, pauses, peak = programs + 1, pauses + program.pauses, max(peak, program.peak)
            print(f"{time.monotonic() - begun:6.1f} s  {program.numbers}: {program.pauses} pauses, at most {program.peak / MIB:.0f} MiB"
                  f"{': ' if program.fault else ''}{program.fault or ''}", flush=True)
            if program.fault:
                if not options.only and not program.hung:
                    numbers, program.fault = shrink(host, options, numbers, program.fault, 60)
                check("a generated program is within what is charged, and its quota", False, f"--only {','.join(map(str, numbers))}: {program.fault}")
            seed += 1
            if options.only:
                break
        check("generated programs stay within what is charged, and their quota", not results,
              f"{programs} programs, {pauses} pauses, at most {peak / MIB:.0f} MiB listed")
    finally:
        host.stop()
    sys.exit(len(results) - sum(results))


if __name__ == "__main__":
    main()
