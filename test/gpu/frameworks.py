#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that frameworks end under a quota as their authors expect: right results, then their own out-of-memory error.

Run as root on a machine with an NVIDIA GPU, runc and the frameworks (PyTorch, JAX, CuPy, Triton, Numba; gcc), after
`make card-programs`; it needs no Go and no network, and starts and stops an enforcer of its own:

    RUNC=/path/to/runc test/gpu/frameworks.py [--jobs 4] [--only NAME,...] [--out DIR] [--json FILE] [--limit SECONDS]
    test/gpu/frameworks.py --list

Each case is one container with a quota by annotation. Its program (frameworks/) computes within the quota, runs into
it, gives all back and computes again; after each of the three it rests, and then nvidia-smi's sum for the container's
processes is compared with `gpuslice ps`. All through, both are sampled ten times a second. What differs from the
promise is said per case; then comes a table; the exit status is the number of cases that failed. DIR gets a log per
case. A case whose time is up is killed and counts as failed; the next ones go on.

If a program does not even compute within its quota, it is run once more outside a slice, so that a framework which does
not work on this machine at all is told from one that gpuslice breaks.

Under the simulated driver (LD_LIBRARY_PATH=$PWD/bin/fakecuda, FAKECUDA_STATE below a directory of its own, not in /tmp) the
cases in C run, too.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # would write to the source tree
from framework_cases import CASES, QUOTA
from host import GIB, HERE, MIB, ROOT, RUNC, Host, Truth, output, pids_of, smi_sum

PROGRAMS = os.path.join(HERE, "frameworks")
BUILT = os.path.join(ROOT, "bin", "gpu-test")
PHASES = ("within", "beyond", "after")
# The program's own keys. Other lines with a `=` are its framework's.
KEYS = {"phase", "total", "free", "result", "oom", "after", "version", "allocator", "pool", "reader_oom", "reader_saw",
        "writer_saw"}
# Allowed difference in bytes per process between nvidia-smi, which prints whole MiB, and gpuslice ps at rest.
TOLERANCE = 2 * MIB
# Seconds for both to agree on a program at rest: driver truth runs every second.
PATIENCE = 6
SAMPLE_INTERVAL = 0.1
# Seconds between the driver's allocation and its charge: one driver-truth interval, and a sample on each side.
TRUTH_INTERVAL = 1 + 3 * SAMPLE_INTERVAL

# Compilers' caches are in the container's own tmpfs, so each case starts without any.
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TRITON_CACHE_DIR": "/tmp/triton", "CUPY_CACHE_DIR": "/tmp/cupy",
          "NUMBA_CACHE_DIR": "/tmp/numba", "CUDA_CACHE_PATH": "/tmp/nv", "XDG_CACHE_HOME": "/tmp/cache",
          # One thread compiles in the process itself; a pool would need time to start.
          "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def build(program):
    """Compiles a program in C, against the project's own declarations or the toolkit's. Returns what was wrong, or ""."""
    path = os.path.join(BUILT, os.path.splitext(program)[0])
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    text = output("gcc", "-std=gnu11", "-O1", "-g", "-I" + PROGRAMS, "-I" + ROOT + "/interceptor", "-I" + cuda + "/include",
                  "-o", path, os.path.join(PROGRAMS, program), "-L" + cuda + "/lib64/stubs", "-lcuda", "-ldl", "-lpthread")
    return "" if os.path.exists(path) else f"{program} does not compile: {text.strip()[-1000:]}"


def command(case, until):
    """until: "all", or "within" to end after the first phase."""
    if case.kind == "python":
        return [sys.executable, "-B", os.path.join(PROGRAMS, case.program), *case.args, until]
    path = os.path.join(BUILT, os.path.splitext(case.program)[0])
    if until == "within":
        return [path, *case.args, "within"]
    return ["/bin/sh", "-c", '"$0" "$@" within && "$0" "$@" beyond', path, *case.args]


def words_of(text):
    """What a program said, by phase; "" is before the first."""
    words, phase = {"": {}}, ""
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        if key == "phase":
            phase = value
            words[phase] = {}
        elif key in KEYS:
            words[phase][key] = value
    return words


class Sampler(threading.Thread):
    """Samples driver truth and the ledgers of all slices until stopped. `series` holds, by slice, (time, bytes by
    driver truth, bytes charged by the programs)."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.host, self.truth = host, Truth()
        self.over = threading.Event()
        self.series, self.longest, self.errors = {}, 0, []

    def run(self):
        spaces = {}  # slice -> its pid namespace
        last = time.monotonic()
        while not self.over.wait(SAMPLE_INTERVAL):
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now
            try:
                held = {}
                for pid, size in self.truth.processes().items():
                    space = self.namespace(pid)
                    held[space] = held.get(space, 0) + size
                for s in self.host.ps():
                    space = spaces.setdefault(s["id"], self.namespace(s["pid"]))
                    used = sum(d["used"] for d in s["devices"])
                    self.series.setdefault(s["id"], []).append((now, held.get(space, 0) if space else 0, used))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self.errors.append(str(error))

    @staticmethod
    def namespace(pid):
        try:
            return os.stat(f"/proc/{pid}/ns/pid").st_ino
        except OSError:
            return None  # it has exited

    def above(self, name):
        """By how many bytes the slice was above its quota at most; and how much the driver took beyond what was
        charged in one driver-truth interval at most. The ledger is read after the driver, and a program may free in
        between: the larger of two neighbouring charges counts."""
        series = list(self.series.get(name, []))
        hidden = [(t, max(0, held - max(used, series[max(i - 1, 0)][2]))) for i, (t, held, used) in enumerate(series)]
        growth, first = 0, 0
        for i, (t, size) in enumerate(hidden):
            while t - hidden[first][0] > TRUTH_INTERVAL:
                first += 1
            growth = max(growth, size - min(h for _, h in hidden[first:i + 1]))
        return max((held - QUOTA for _, held, _ in series), default=None), growth


def at_rest(host, case, name):
    """nvidia-smi and gpuslice ps, when they agree or patience ends."""
    deadline = time.monotonic() + PATIENCE
    while True:
        held, count = smi_sum(pids_of(host, name))
        ps = next((s for s in host.ps() if s["id"] == name), None)
        used, overhead = (sum(d[key] for d in ps["devices"]) if ps else 0 for key in ("used", "overhead"))
        difference = held - used - overhead
        allowed = TOLERANCE * max(count, 1)
        agree = ps and count and difference <= allowed and (case.unlisted or difference >= -allowed)
        if agree or time.monotonic() > deadline:
            return {"agree": bool(agree), "processes": count, "smi": held, "used": used, "overhead": overhead,
                    "difference": difference}
        time.sleep(0.2)


def watch(host, case, name, container, out, rests, deadline):
    """Looks at a container each time that it rests, until it ends; what it sees goes into `rests`, by phase. Returns why
    the container was killed, or None."""
    while container.poll() is None:
        if over.is_set() or time.monotonic() > deadline:
            host.remove(name)
            container.wait(30)
            return "interrupted" if over.is_set() else "it hung, and was killed"
        for phase in PHASES:
            if phase not in rests and os.path.exists(f"{out}/{phase}"):
                try:
                    rests[phase] = at_rest(host, case, name)
                finally:
                    open(f"{out}/{phase}.seen", "w").close()
        time.sleep(0.02)
    return None


def outside(case, log, limit):
    """What the program says of its first phase without a slice. It may not take the card for itself there."""
    env = {**os.environ, **CACHES, **case.env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    log.write("\n--- outside a slice\n")
    log.flush()
    begin = log.tell()
    try:
        program = subprocess.Popen(command(case, "within"), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
    except OSError as error:
        return f"does not start, either: {error}"
    try:
        program.wait(min(60, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "hangs, too"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # itself, if it hangs, and its children
        program.wait()
    log.seek(begin)
    text = log.read()
    result = words_of(text).get("within", {}).get("result")
    if result:
        return f"says result={result}"
    return "fails, too: " + (text.strip().splitlines() or ["without a word"])[-1][:150]


def judge(case, words, rests, above, growth, status):
    """What differs from the promise, in words."""
    wrong = []
    within, beyond, after = (words.get(p, {}) for p in PHASES)
    if status:
        wrong.append(f"exit status {status}")
    unsaid = [p for p, key in zip(PHASES, ("result", "oom", "after")) if key not in words.get(p, {})]
    if unsaid:
        wrong.append(f"it never told how it went {unsaid[0]}")
    if within.get("result", "ok") != "ok":
        wrong.append(f"within the quota: {within['result']}")
    if within.get("total", str(QUOTA)) != str(QUOTA):
        wrong.append(f"is shown a total of {within['total']}, not {QUOTA}")
    if "oom" in beyond and not re.match(case.oom, beyond["oom"]):
        wrong.append(f"beyond the quota: {beyond['oom']}")
    if after.get("after", "ok") != "ok":
        wrong.append(f"after it: {after['after']}")
    if not unsaid and case.more:
        wrong += case.more(words, rests)
    for phase in PHASES:
        r = rests.get(phase)
        if not r and phase not in unsaid:
            wrong.append(f"it never rested {phase}")
        elif r and not r["agree"]:
            wrong.append(f"{phase}: nvidia-smi {r['smi'] / MIB:.0f} MiB for {r['processes']} processes, "
                         f"gpuslice ps {r['used'] / MIB:.1f} + {r['overhead'] / MIB:.1f} MiB")
    if above is None:
        wrong.append("never sampled")
    elif above > max(growth, TOLERANCE):
        wrong.append(f"{above / MIB:.0f} MiB above the quota, where the driver took {growth / MIB:.0f} MiB in an interval")
    return wrong


def run(host, sampler, case, limit, broken):
    """One case from its bundle to its verdict. Raises nothing: the next case shall run, whatever befell this one."""
    begin = time.monotonic()
    name = "fw-" + case.name
    row = {"case": case.name, "wrong": [], "words": {}, "rests": {}, "above": None, "growth": 0, "seconds": 0, "tail": []}
    if broken or over.is_set() or begin > limit:
        row["wrong"].append(broken or "not run: the time was up")
        return row
    log = open(os.path.join(host.out, name + ".log"), "w+", errors="replace")
    container, killed = None, None
    try:
        path, out = host.bundle(name, command(case, "all"), {"gpuslice.vram": str(QUOTA)},
                                env={**CACHES, **case.env, "PHASES_DIR": "/out"})
        container = host.launch(path, name, log)
        killed = watch(host, case, name, container, out, row["rests"], min(begin + case.timeout, limit))
        shutil.rmtree(path, ignore_errors=True)
    except Exception as error:
        killed = f"this program failed: {error!r}"
        if container and container.poll() is None:
            container.kill()
        with contextlib.suppress(Exception):
            host.remove(name)
    log.seek(0)
    text = log.read()
    row["tail"] = text.strip().splitlines()[-4:]
    row["words"] = words_of(text)
    row["above"], row["growth"] = sampler.above(name)
    if killed:
        row["wrong"].append(killed)
    row["wrong"] += judge(case, row["words"], row["rests"], row["above"], row["growth"],
                          container.returncode if container and not killed else 0)
    if row["words"].get("within", {}).get("result") != "ok" and not over.is_set() and time.monotonic() < limit:
        row["wrong"].append("outside a slice it " + outside(case, log, limit))
    log.close()
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def report(row):
    print(f"{'FAIL' if row['wrong'] else 'PASS'}  {row['case']} ({row['seconds']} s)", flush=True)
    for w in row["wrong"]:
        print("      " + w)
    if row["wrong"]:
        for line in row["tail"]:
            print("      | " + line[:200])
    sys.stdout.flush()


def table(rows):
    lines = [("case", "within", "beyond", "message", "smi-ps MiB", "above quota MiB", "seconds")]
    for r in rows:
        within, beyond, after = (r["words"].get(p, {}) for p in PHASES)
        worst = max((s["difference"] for s in r["rests"].values()), key=abs, default=None)
        refused = "oom" in beyond and beyond["oom"] != "none"
        lines.append((r["case"], within.get("result", "-"),
                      ("refused" if refused else "-") + (", works on" if after.get("after") == "ok" else ""),
                      beyond.get("oom", "-")[:70], "-" if worst is None else f"{worst / MIB:+.1f}",
                      "-" if r["above"] is None else f"{max(0, r['above']) / MIB:.0f}", str(r["seconds"])))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print(" | ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip())


over = threading.Event()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=tempfile.gettempdir(), help="where logs are kept")
    parser.add_argument("--only", help="names of cases, with commas between them")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--json", help="a file for all that was seen")
    parser.add_argument("--jobs", type=int, default=1,
                        help=f"containers at a time; each has a quota of {QUOTA // GIB} GiB")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which what still runs is killed")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [c.name for c in CASES]
    unknown = set(names) - {c.name for c in CASES}
    if unknown:
        parser.error("no such case: " + ", ".join(sorted(unknown)))
    cases = [c for c in CASES if c.name in names]
    if arguments.list:
        for c in cases:
            settings = [f"{k}={v}" for k, v in c.env.items()]
            print(f"{c.name:20} {c.kind:7}", c.program, *c.args, *settings)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    begin = time.monotonic()
    os.makedirs(arguments.out, exist_ok=True)
    os.makedirs(BUILT, exist_ok=True)
    broken = {program: build(program) for program in {c.program for c in cases if c.kind == "c"}}
    host = Host(arguments.out)
    rows = []
    try:
        sampler = Sampler(host)
        sampler.start()
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            futures = [pool.submit(run, host, sampler, c, begin + arguments.limit, broken.get(c.program)) for c in cases]
            for future in concurrent.futures.as_completed(futures):
                rows.append(future.result())
                report(rows[-1])
        sampler.over.set()
        sampler.join()
    finally:
        host.stop()
    rows.sort(key=lambda r: names.index(r["case"]))
    if arguments.json:
        with open(arguments.json, "w") as f:
            seen = {"longest_gap": sampler.longest, "errors": sampler.errors[:20]}
            json.dump({"quota": QUOTA, "sampler": seen, "rows": rows}, f, indent=1)
    print()
    table(rows)
    excess = max((r["above"] for r in rows if r["above"] is not None), default=0)
    print(f"above quota by at most {max(0, excess) / MIB:.0f} MiB; longest time between samples {sampler.longest:.2f} s"
          + (f"; {len(sampler.errors)} samples failed: {sampler.errors[0]}" if sampler.errors else ""))
    failed = sum(1 for r in rows if r["wrong"])
    print(f"{len(rows) - failed} passed, {failed} failed in {time.monotonic() - begin:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
