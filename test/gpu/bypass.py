#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU what becomes of memory that is held past the ledger, and of slices whose time or quota changes.

Run as root on a machine with an NVIDIA GPU and runc, after `make card-programs`, with cc; PyTorch is used if it is there:

    RUNC=/path/to/runc test/gpu/bypass.py [--out DIR] [--only named,killed,slice,frozen,ttl,resize,exec,outlived,together,streams,managed,busy,
                                                              share-fd,share-external,share-open,share-ipc,share-pool,share-orphan]

Needs no Go and no network. Under the simulated driver: LD_LIBRARY_PATH=$PWD/bin/fakecuda, FAKECUDA_STATE below a directory of its
own, not in /tmp. Each case starts an enforcer of its own and stops it. The program that hides is bin/demo/cuda_hog under a
copy of the dynamic loader that looks for another file than /etc/ld.so.preload: what any image can bring along, without
a privilege. Prints a line per promise, then a table, and exits with the number of those not kept.

`bypass.py inside WHAT DIR` is what runs in the containers.
"""
import argparse
import contextlib
import ctypes
import glob
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.dont_write_bytecode = True  # would write to the source tree
from host import BIN, GIB, HERE, MIB, ROOT, RUNC, Host, Truth, check, eventually, output, pids_of, results

INTERVAL = 1.0  # seconds between samples of driver truth
GRACE = 0.5  # bypass_grace: seconds before a finding
# A killed process has to exit, and a sample has to see that: seconds beyond the promised intervals. The simulated driver shares its
# processors with other tests.
END = 20 if "FAKECUDA_STATE" in os.environ else 0.3
HOG = BIN + "/demo/cuda_hog"
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Case:
    """A container that sleeps, under an enforcer with a policy of its own, in which programs are started."""

    def __init__(self, out, name, vram, policy="", expiry="", interval=INTERVAL):
        self.name, self.programs = name, []
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.metrics = f"127.0.0.1:{s.getsockname()[1]}"
        self.host = Host(out, f'metrics_address = "{self.metrics}"\ntruth_interval = "{int(interval * 1000)}ms"\n'
                              f"[policy]\n{policy}\n[expiry]\n{expiry}\n")
        self.log = open(os.path.join(out, f"bypass-{name}.log"), "w+")
        self.truth = Truth()
        path, self.out = self.host.bundle(name, ["/bin/sleep", "600"], {"gpuslice.vram": vram})
        self.loader()
        self.container = self.host.launch(path, name, self.log)
        if not eventually(self.slice) or not eventually(lambda: pids_of(self.host, name)):
            self.log.seek(0)
            sys.exit("the container did not start: " + self.log.read()[-2000:])

    def loader(self):
        """Copies the loader into the container, with another file in place of /etc/ld.so.preload."""
        found = [p for p in glob.glob("/lib*/ld-linux-*.so.*") if os.path.exists(p)][0]
        with open(found, "rb") as f:
            text = f.read()
        assert b"/etc/ld.so.preload" in text, found
        copy = os.path.join(self.out, "loader")
        with open(copy, "wb") as f:
            f.write(text.replace(b"/etc/ld.so.preload", b"/etc/ld.so.nowhere"))
        os.chmod(copy, 0o755)

    def slice(self):
        """The slice as `gpuslice inspect` shows it; None if there is none."""
        try:
            return json.loads(output(BIN + "/gpuslice", "--socket", self.host.socket, "inspect", "--json", self.name, timeout=20))
        except ValueError:
            return None

    def device(self):
        s = self.slice()
        return s["devices"][0] if s and s["devices"] else {"used": 0, "overhead": 0, "limit": 0, "bypass": 0}

    def gpuslice(self, *words):
        return output(BIN + "/gpuslice", "--socket", self.host.socket, *words, timeout=20).strip()

    def events(self, kind):
        lines = self.gpuslice("events", "--json", self.name).splitlines()
        return [e for e in map(json.loads, lines) if e["kind"] == kind]

    def start(self, *args):
        """Starts a program in the container; it is known by the pids that are new on the card."""
        program = subprocess.Popen([RUNC, "--root", self.host.dir + "/runc", "exec", self.name, *args], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        self.programs.append(program)
        return program

    def hog(self, size):
        """A program that goes through the interceptor; its line."""
        return self.start(HOG, str(size)).stdout.readline().strip()

    def hide(self, size):
        """A program that does not. Returns its line, its pid, and when NVML showed all that it takes."""
        before = set(self.truth.processes())
        program = self.start("/out/loader", HOG, str(size))
        seen, over = {}, threading.Event()

        def sample():
            while not over.is_set() and not seen:
                new = {p: b for p, b in self.truth.processes().items() if p not in before and b >= size}
                if new:
                    seen.update(pid=max(new, key=new.get), at=time.monotonic())
                time.sleep(0.005)

        sampler = threading.Thread(target=sample)
        sampler.start()
        said = program.stdout.readline().strip()
        eventually(lambda: seen or program.poll() is not None, 5)
        over.set()
        sampler.join()
        return said, seen.get("pid", 0), seen.get("at", time.monotonic())

    def gone(self, pid):
        """When NVML shows a process no more; None if it does for long."""
        return time.monotonic() if eventually(lambda: pid not in self.truth.processes()) else None

    def close(self):
        self.host.remove(self.name)
        for program in [*self.programs, self.container]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(20)
        self.host.stop()
        self.log.close()


def named(case):
    """2 GiB in a slice of 1 GiB, and the policy is to name it."""
    said, pid, at = case.hide(2 * GIB)
    check("a loader of its own gets past the interceptor", said.startswith("holds ") and pid, said)
    event = eventually(lambda: (case.events("bypass") or [None])[0])
    after = time.monotonic() - at
    check("it is found within an interval and bypass_grace", event and event["pid"] == pid and event["bytes"] >= 2 * GIB and
          event["cause"] == "unattached" and event["action"] == "log" and after < INTERVAL + GRACE + END,
          f"{after:.2f} s after NVML showed it: {event}")

    def counted():
        text = urllib.request.urlopen(f"http://{case.metrics}/metrics", timeout=60).read().decode()
        held = re.findall(r"^gpuslice_slice_bypass_bytes\{.* (\S+)$", text, re.M)
        return 'gpuslice_bypass_total{action="log"} 1\n' in text and held and float(held[0]) >= 2 * GIB

    # An event comes before the figures.
    check("metrics count it", eventually(counted), "")

    def process():
        return next((p for p in case.slice()["processes"] if p["pid"] == pid and p.get("bypass") == "unattached" and not p.get("attached")), None)

    named_ = eventually(process)
    check("gpuslice inspect names it", named_, named_)
    line = case.hog(MIB)
    check("a sibling is refused: it counts against the quota", "OUT_OF_MEMORY" in line, line)
    check("nobody is killed", pid in case.truth.processes() and not case.events("killed"), "")


def killed(case):
    honest = case.hog(256 * MIB)
    mine = set(case.truth.processes()) & pids_of(case.host, case.name)
    time.sleep(5 * INTERVAL)  # until nothing changes, so the enforcer does not list processes in each interval
    said, pid, at = case.hide(4 * GIB)
    check("4 GiB past a quota of 2 GiB", said.startswith("holds ") and pid, said)
    end = case.gone(pid)
    check("killed, and its memory free, within an interval and bypass_grace", end and end - at < INTERVAL + GRACE + END,
          f"{end - at:.2f} s after NVML showed it" if end else "it is still there")
    event = eventually(lambda: (case.events("killed") or [None])[0])
    check("the event names pid, command and bytes", event and event["pid"] == pid and event.get("command") and
          event["bytes"] >= 4 * GIB, event)
    check("its honest sibling lives", honest.startswith("holds ") and mine and mine <= set(case.truth.processes()), honest)
    free = eventually(lambda: case.device()["overhead"] < GIB)
    line = case.hog(256 * MIB)
    check("what it held is given to others", free and line.startswith("holds "), line)


def slice_(case):
    case.hog(256 * MIB)
    mine = set(case.truth.processes()) & pids_of(case.host, case.name)
    _, pid, at = case.hide(4 * GIB)
    end = case.gone(pid)
    gone = eventually(lambda: not mine & set(case.truth.processes()) and not case.slice())
    check("scope = slice: the whole slice is gone", end and gone and pid, f"{end - at:.2f} s for the one that hid" if end else "still there")


def frozen(case):
    grows = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", "grow", "/out")
    begun = eventually(lambda: os.path.exists(case.out + "/holds"))

    def try_again(name):
        open(f"{case.out}/{name}", "w").close()
        eventually(lambda: os.path.exists(f"{case.out}/{name}.result"))
        with open(f"{case.out}/{name}.result") as f:
            return int(f.read())

    first = try_again("before")
    check("an honest process allocates", begun and first == 0, f"result {first}")
    said, pid, at = case.hide(GIB)
    check("1 GiB is hidden, within the quota", said.startswith("holds ") and pid, said)
    state = eventually(lambda: (case.slice() or {}).get("state") == "frozen")
    after = time.monotonic() - at
    check("the slice is frozen within an interval and bypass_grace", state and after < INTERVAL + GRACE + END, f"{after:.2f} s after NVML showed it; {case.slice().get('reason')}")
    second = try_again("during")
    check("an honest sibling's next allocation is refused", second == OUT_OF_MEMORY, f"result {second}; {case.device()}")
    os.kill(pid, 9)
    active = eventually(lambda: (case.slice() or {}).get("state") == "active")
    third = try_again("after")
    check("and granted when the hidden memory is gone", active and third == 0, f"result {third}")
    check("nobody was killed by the enforcer", not case.events("killed") and grows.poll() is None, "")


def ttl(case):
    torch = importlib.util.find_spec("torch")
    if torch:
        holder = case.start(sys.executable, "-B", HERE + "/in_container.py", "hold", "2048")
    else:
        holder = case.start(HOG, str(2 * GIB))
    said = holder.stdout.readline().strip()
    mine = set(case.truth.processes()) & pids_of(case.host, case.name)
    check("a process holds 2 GiB" + (" by PyTorch" if torch else ""), said.startswith("h") and mine, said)
    at = time.monotonic()
    renewed = case.gpuslice("renew", case.name, "3s")
    gone = eventually(lambda: not mine & set(case.truth.processes()))
    after = time.monotonic() - at
    # 3 s, the grace of 2 s in which Python does not exit, and a moment to be killed.
    check("it lives until its time is over, and then the card is free", gone and 3 < after < 3 + 2 + INTERVAL + GRACE + END, f"{after:.2f} s; {renewed}")
    check("and the slice is gone", eventually(lambda: not case.slice()), case.events("expired"))


def resize(case):
    load = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", "load", "/out")
    check("three processes are at work", eventually(lambda: os.path.exists(case.out + "/holds"), 60), load.poll())

    def held():
        d = case.device()
        return d["used"] + d["overhead"]

    def total():
        with contextlib.suppress(OSError, ValueError), open(case.out + "/total") as f:
            return int(f.read())
        return 0

    eventually(lambda: held() > 5 * GIB)
    before = held()
    said = case.gpuslice("set", case.name, "--vram", "4G")
    worst, below, last, samples = 0, False, held(), 0
    for end in [time.monotonic() + 8]:
        while time.monotonic() < end:
            now = held()
            below = below or now <= 4 * GIB
            worst = max(worst, now - (4 * GIB if below else max(last, 4 * GIB)))
            last = now
            samples += 1
    check("set to 4 GiB under load: nothing more is given above it", before > 4 * GIB and below and worst <= 64 * MIB,
          f"{before // MIB} MiB before, then at most {worst // MIB} MiB above what it was or 4 GiB in {samples} looks; {said}")
    sum_ = sum(b for p, b in case.truth.processes().items() if p in pids_of(case.host, case.name))
    check("driver truth agrees", 0 < sum_ <= 4 * GIB + 64 * MIB, f"{sum_ // MIB} MiB")
    check("programs see it at their next call", eventually(lambda: total() == 4 * GIB), f"total {total()}")
    case.gpuslice("set", case.name, "--vram", "10G")
    check("raised to 10 GiB it grows", eventually(lambda: held() > 6 * GIB) and eventually(lambda: total() == 10 * GIB),
          f"{held() // MIB} MiB, total {total()}")
    # Continues until the container is removed.


def exec_(case):
    """2 GiB, and then another image that never asks for CUDA: nothing is written to the ledger by it."""
    program = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", "become", "/out")
    held = eventually(lambda: os.path.exists(case.out + "/holds")) and case.device()
    check("a process holds 2 GiB", held and held["used"] >= 2 * GIB, held)
    mine = set(case.truth.processes()) & pids_of(case.host, case.name)
    put(case.out + "/go", "")
    free = eventually(lambda: not mine & set(case.truth.processes()))
    at = time.monotonic()
    given = eventually(lambda: case.device()["used"] + case.device()["overhead"] == 0)
    check("after execve the driver holds nothing, and nothing is charged", mine and free and given and program.poll() is None,
          f"{time.monotonic() - at:.2f} s after NVML showed it; {case.device()}")
    line = case.hog(3 * GIB)
    check("others can have it", line.startswith("holds "), line)


def outlived(case):
    """One parent after another takes 1 GiB, forks a child that lives on, and is killed; the quota is 4 GiB."""
    empty, left, worst, counted = case.truth.used(), [], 0, True

    def driver_knows(pid):
        return any(p["pid"] == pid and any(d.get("driver") for d in p["devices"]) for p in case.slice()["processes"])

    def is_counted():
        d = case.device()
        return d["used"] == 0 and len(left) * GIB <= d["overhead"] <= 4 * GIB

    for _ in range(5):
        before = set(case.truth.processes())
        program = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", "leave", "/out")
        line = program.stdout.readline().strip()
        if line == "0":
            new = eventually(lambda: set(case.truth.processes()) - before) or {0}
            pid = new.pop()
            seen = eventually(lambda: driver_knows(pid))
            alive = case.truth.used()
            os.kill(pid, 9)
            program.wait(20)
            left.append(pid)
            print(f"      parent {pid}, seen {bool(seen)}: the card {(alive - empty) // MIB} MiB while it lived, "
                  f"{(case.truth.used() - empty) // MIB} MiB after its death; NVML lists it: {pid in case.truth.processes()}", flush=True)
        elif line != str(OUT_OF_MEMORY):
            check("a parent is given memory or refused it", False, line)
        counted = bool(eventually(is_counted)) and counted
        worst = max(worst, case.truth.used() - empty)
    check("what a dead parent held stays as long as its child lives", left and case.truth.used() - empty >= len(left) * GIB,
          f"{len(left)} parents, {(case.truth.used() - empty) // MIB} MiB")
    check("it counts for the slice", counted, case.device())
    check("five rounds have no more of the card than the quota", 0 < len(left) < 4 and worst <= 4 * GIB + 64 * MIB, f"{worst // MIB} MiB")
    check("nobody is blamed", not case.events("bypass") and not case.events("killed"), case.events("bypass"))
    output(RUNC, "--root", case.host.dir + "/runc", "exec", case.name, "/bin/sh", "-c", "kill -9 -1")  # all but the first
    free = eventually(lambda: case.device()["used"] + case.device()["overhead"] == 0)
    check("all is free when the children have ended", free and case.truth.used() - empty < 64 * MIB,
          f"{(case.truth.used() - empty) // MIB} MiB; {case.device()}")
    line = case.hog(3 * GIB)
    check("others can have it again", line.startswith("holds "), line)


def busy(case):
    """A process that never stands still, looked at as often as can be, against what it has taken by its own count."""
    source = f"{ROOT}/test/interceptor/programs/small.c"
    # Linked with the driver that the loader finds.
    built = output("cc", "-O1", f"-I{ROOT}/interceptor", "-o", case.out + "/small", source, "-l:libcuda.so.1",
                   env={**os.environ, "LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")})
    line = built or case.start("/out/small", "20").stdout.readline().strip()
    check("a process that never stands still is charged exactly", line.endswith(" 0 wrong"), line)


def inside(case, what):
    """Runs what this file does in the container under that name; returns its line, and the most that the card had in use by it."""
    empty, worst = case.truth.used(), 0
    program = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", what, "/out")
    done = threading.Thread(target=program.wait)
    done.start()
    while done.is_alive():
        worst = max(worst, case.truth.used() - empty)
        time.sleep(0.002)
    return program.stdout.readline().strip(), worst


def managed(case):
    """A module with a __managed__ variable of 12 GiB, and one with 1 GiB, under 4 GiB."""
    empty, (line, _) = case.truth.used(), inside(case, "variable")
    check("a module with 12 GiB of __managed__ variables is refused, one with 1 GiB is loaded and charged", line == "2 0 charged", line)
    left = case.truth.used() - empty  # the card holds it from its load until its refusal
    check("nothing of them is left on the card", left < 64 * MIB, f"{left // MIB} MiB")


def together(case):
    """12 processes make their first context at the same time, under 4 GiB, before the enforcer has seen one."""
    line, worst = inside(case, "starts")
    made = int(line or 0)
    check("some of 12 processes that start together have a context", 0 < made <= 12, line)
    check("they never held more than the quota and one context", worst <= 4 * GIB + 600 * MIB, f"{worst // MIB} MiB")


def streams(case):
    """12,000 streams and 10,000 events under 4 GiB, and nothing else that is asked for."""
    line, worst = inside(case, "many")
    made, result = map(int, (line or "0 -1").split())
    check("streams beyond the quota are refused", 5000 < made < 8000 and result == OUT_OF_MEMORY, line)
    check("their memory is within the quota", worst <= 4 * GIB + 64 * MIB, f"{worst // MIB} MiB")


def shared(way):
    """A case: a program exports one piece of memory after another, lets go of it, and has it kept in that way."""
    def case_of(case):
        empty = case.truth.used()
        program = case.start(sys.executable, "-B", os.path.abspath(__file__), "inside", "hoard-" + way, "/out")
        pieces, result = (int(word) for word in (program.stdout.readline() or "-1 -1").split())
        held = case.truth.used() - empty
        check(f"what is kept ({way}) is no more than the quota", 0 < pieces < HOARD and result == OUT_OF_MEMORY and held <= 4 * GIB + 64 * MIB,
              f"{pieces} pieces of {PIECE // MIB} MiB, then result {result}; the card holds {held // MIB} MiB for a quota of 4096; {case.device()}")
        charged = case.device()
        check("it is charged", charged["used"] + charged["overhead"] >= pieces * PIECE, charged)
        check("nobody is killed", program.poll() is None and not case.events("killed"), case.events("bypass"))
        output(RUNC, "--root", case.host.dir + "/runc", "exec", case.name, "/bin/sh", "-c", "kill -9 -1")  # all but the first
        free = eventually(lambda: case.device()["used"] + case.device()["overhead"] == 0)
        check("all is free when its holders have ended", free and case.truth.used() - empty < 64 * MIB,
              f"{(case.truth.used() - empty) // MIB} MiB; {case.device()}")
    return case_of


class Cuda:
    """This process's context, and memory in it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.result = (self.lib.cuInit(0) or self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or
                       self.lib.cuCtxSetCurrent(context))

    def take(self, size):
        pointer = ctypes.c_uint64()
        return self.lib.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer

    def total(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return total.value

    def left(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value


def starts(_):
    """12 processes with a context each, as far as they get one; says how many did."""
    read, write = os.pipe()
    done, end = os.pipe()
    for _ in range(12):
        if os.fork() == 0:
            os.close(end)
            os.write(write, bytes([Cuda().result == 0]))
            os.read(done, 1)
            os._exit(0)
    answers = b""
    while len(answers) < 12:
        answers += os.read(read, 12)
    print(sum(answers), flush=True)


def many(_):
    """Makes streams until one is refused, with events between them; says how many, and the result."""
    cuda, result, made = Cuda(), 0, 0
    while result == 0 and made < 12000:
        handle = ctypes.c_void_p()
        result = cuda.result or cuda.lib.cuStreamCreate(ctypes.byref(handle), 1)
        made += result == 0
        cuda.lib.cuEventCreate(ctypes.byref(handle), 0)
    print(made, result, flush=True)


def variable(_):
    """Loads modules with a managed variable, and writes all that it gets."""
    cuda, results_, charged = Cuda(), [], 0
    for size in (12 * GIB, GIB):
        before = cuda.left()
        text = f""".version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 16 .b8 big[{size}];
.visible .entry empty() {{ ret; }}
"""
        module, pointer, bytes_ = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
        result = cuda.result or cuda.lib.cuModuleLoadData(ctypes.byref(module), text.encode())
        results_.append(result)
        if result == 0:
            charged = before - cuda.left()
            cuda.lib.cuModuleGetGlobal_v2(ctypes.byref(pointer), ctypes.byref(bytes_), module, b"big")
            cuda.lib.cuMemsetD8_v2(pointer, 1, bytes_)
            cuda.lib.cuCtxSynchronize()
    print(*results_, "charged" if charged >= GIB else f"{charged} bytes charged", flush=True)


HOARD = 32  # pieces of the request, each of
PIECE = 512 * MIB
AS_FILE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
STEP = 3  # seconds from a lender's exit until its borrower is charged


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("rest", ctypes.c_uint64 * 2)]


class PoolProperties(ctypes.Structure):  # CUmemPoolProps
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("rest", ctypes.c_uint64 * 9)]


class External(ctypes.Structure):  # CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_uint64), ("rest", ctypes.c_uint64), ("size", ctypes.c_uint64),
                ("flags", ctypes.c_uint), ("reserved", ctypes.c_uint * 16)]


class Handle(ctypes.Structure):  # CUipcMemHandle, CUmemPoolPtrExportData: passed by value, or by address
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def must(result):
    if result:
        raise RuntimeError(f"the driver's result is {result}")


def make(cuda, way):
    """Makes a piece and exports it. Returns the driver's result; how to let go of it; a descriptor, or -1; and 64 bytes."""
    lib, fd, name, pointer = cuda.lib, ctypes.c_int(-1), Handle(), ctypes.c_uint64()
    if way == "ipc":
        result, pointer = cuda.take(PIECE)
        if result == 0:
            must(lib.cuIpcGetMemHandle(ctypes.byref(name), pointer))
        return result, lambda: must(lib.cuMemFree_v2(pointer)), -1, bytes(name.bytes)
    if way == "pool":
        pool = ctypes.c_void_p()
        must(lib.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, AS_FILE, Location(1, 0)))))
        result = lib.cuMemAllocFromPoolAsync(ctypes.byref(pointer), ctypes.c_size_t(PIECE), pool, None)
        if result == 0:
            must(lib.cuCtxSynchronize())
            must(lib.cuMemPoolExportToShareableHandle(ctypes.byref(fd), pool, AS_FILE, ctypes.c_uint64(0)))
            must(lib.cuMemPoolExportPointer(ctypes.byref(name), pointer))

        def let_go():
            must(lib.cuMemFreeAsync(pointer, None))
            must(lib.cuCtxSynchronize())
            must(lib.cuMemPoolDestroy(pool))

        return result, let_go, fd.value, bytes(name.bytes)
    handle = ctypes.c_uint64()
    result = lib.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(PIECE), ctypes.byref(Properties(1, AS_FILE, Location(1, 0))),
                             ctypes.c_uint64(0))
    if result == 0:
        must(lib.cuMemExportToShareableHandle(ctypes.byref(fd), handle, AS_FILE, ctypes.c_uint64(0)))
    return result, lambda: must(lib.cuMemRelease(handle)), fd.value, b""


def keep(cuda, way, fd, name):
    """Keeps a piece in that way, for good."""
    lib, made = cuda.lib, ctypes.c_uint64()
    if way == "ipc":
        must(lib.cuIpcOpenMemHandle_v2(ctypes.byref(made), Handle.from_buffer_copy(name), 1))
    elif way == "pool":
        pool = ctypes.c_void_p()
        must(lib.cuMemPoolImportFromShareableHandle(ctypes.byref(pool), ctypes.c_void_p(fd), AS_FILE, ctypes.c_uint64(0)))
        must(lib.cuMemPoolImportPointer(ctypes.byref(made), pool, ctypes.byref(Handle.from_buffer_copy(name))))
        os.close(fd)
    elif way == "external":
        must(lib.cuImportExternalMemory(ctypes.byref(made), ctypes.byref(External(type=1, fd=fd, size=PIECE))))
    elif way != "open":
        address = ctypes.c_uint64()
        must(lib.cuMemImportFromShareableHandle(ctypes.byref(made), ctypes.c_void_p(fd), AS_FILE))
        os.close(fd)
        must(lib.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(PIECE), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)))
        must(lib.cuMemMap(address, ctypes.c_size_t(PIECE), ctypes.c_size_t(0), made, ctypes.c_uint64(0)))
        must(lib.cuMemRelease(made))


def keeper(way, connection):
    """Keeps what comes, and says so."""
    cuda = Cuda()
    must(cuda.result)
    connection.send(b"ready")
    while True:
        name, fds, _, _ = socket.recv_fds(connection, 256, 1)
        if not name:
            return
        keep(cuda, way, fds[0] if fds else -1, name[1:])
        connection.send(b"kept")


def hoard(way):
    """Makes pieces, has each kept in that way, and lets go of it; says how many, and the driver's result for the next."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    alone = way in ("external", "open")
    if not alone and os.fork() == 0:
        mine.close()
        keeper(way, other)
        os._exit(0)
    cuda = Cuda()
    must(cuda.result or (0 if alone or mine.recv(16) else 1))
    pieces, result = 0, 0
    while pieces < HOARD:
        result, let_go, fd, name = make(cuda, way)
        if result:
            break
        if alone:
            keep(cuda, way, fd, name)
        else:
            socket.send_fds(mine, [b"!" + name], [fd] if fd >= 0 else [])
            must(0 if mine.recv(16) else 1)
            if fd >= 0:
                os.close(fd)
        let_go()
        pieces += 1
    print(pieces, result, flush=True)
    time.sleep(600)


def hoard_orphans():
    """Keeps pieces of one lender after another, each of which ends."""
    pieces, result = 0, 0
    cuda = Cuda()
    must(cuda.result)
    while pieces < HOARD:
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lender = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "inside", "lend", str(other.fileno())],
                                  pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        other.close()
        said, fds, _, _ = socket.recv_fds(mine, 16, 1)
        result = int(said or b"1")
        if result == 0:
            keep(cuda, "fd", fds[0], b"")
        lender.kill()
        lender.wait()
        mine.close()
        if result:
            break
        pieces += 1
        time.sleep(STEP)
    print(pieces, result, flush=True)
    time.sleep(600)


def lend(number):
    """Makes a piece, sends its descriptor, and waits to be killed."""
    connection = socket.socket(fileno=int(number))
    cuda = Cuda()
    result, _, fd, _ = make(cuda, "fd") if not cuda.result else (cuda.result, None, -1, b"")
    socket.send_fds(connection, [str(result).encode()], [fd] if fd >= 0 else [])
    time.sleep(600)


def put(path, text):
    with open(path + ".new", "w") as f:
        f.write(str(text))
    os.rename(path + ".new", path)


def grow(directory):
    """Takes 64 MiB each time that it is told to, and says the driver's result."""
    cuda = Cuda()
    put(directory + "/holds", cuda.result or cuda.take(64 * MIB)[0])
    for name in ("before", "during", "after"):
        eventually(lambda: os.path.exists(f"{directory}/{name}"), 600)
        put(f"{directory}/{name}.result", cuda.take(64 * MIB)[0])
    time.sleep(600)


def become(directory):
    """Takes 2 GiB, and becomes a program that does nothing."""
    cuda = Cuda()
    put(directory + "/holds", cuda.result or cuda.take(2 * GIB)[0])
    eventually(lambda: os.path.exists(directory + "/go"), 600)
    os.execv("/bin/sleep", ["sleep", "600"])


def leave(_):
    """Takes 1 GiB, leaves a child, says the driver's result, and waits to be killed."""
    cuda = Cuda()
    result = cuda.result or cuda.take(GIB)[0]
    if result == 0 and os.fork() == 0:
        for fd in range(3):  # runc waits for all processes with its pipes
            os.close(fd)
        time.sleep(600)
    print(result, flush=True)
    if result == 0:
        time.sleep(600)


def load(directory):
    """Three processes that take and give back at random, as much as they get."""
    for number in range(3):
        if os.fork() == 0:
            break
    else:
        time.sleep(600)
    cuda, kept, random_ = Cuda(), [], random.Random(number)
    while True:
        # Sometimes frees all, so that a lower quota can be reached.
        if kept and random_.random() < 0.02:
            for pointer in kept:
                cuda.lib.cuMemFree_v2(pointer)
            kept.clear()
        result, pointer = cuda.take(random_.randrange(32, 128) * MIB)
        if result == 0:
            kept.append(pointer)
        elif kept:
            cuda.lib.cuMemFree_v2(kept.pop(random_.randrange(len(kept))))
        if number == 0:
            put(directory + "/total", cuda.total())
            put(directory + "/holds", "")
        time.sleep(0.005)


CASES = {
    "named": (named, {"vram": "1G"}),
    "killed": (killed, {"vram": "2G", "policy": 'bypass = "kill"'}),
    "slice": (slice_, {"vram": "2G", "policy": 'bypass = "kill"\nscope = "slice"'}),
    "frozen": (frozen, {"vram": "4G", "policy": 'bypass = "refuse"'}),
    "ttl": (ttl, {"vram": "4G", "expiry": 'grace = "2s"'}),
    "resize": (resize, {"vram": "8G"}),
    "exec": (exec_, {"vram": "4G"}),
    "outlived": (outlived, {"vram": "4G", "policy": 'bypass = "kill"'}),
    "together": (together, {"vram": "4G"}),
    "streams": (streams, {"vram": "4G"}),
    "managed": (managed, {"vram": "4G"}),
    "busy": (busy, {"vram": "2G", "interval": 0.02}),
    **{"share-" + way: (shared(way), {"vram": "4G"}) for way in ("fd", "external", "open", "ipc", "pool", "orphan")},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=tempfile.gettempdir(), help="where logs are kept")
    parser.add_argument("--only", default=",".join(CASES), help="which of " + ", ".join(CASES))
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for name in arguments.only.split(","):
        run, more = CASES[name]
        case = Case(arguments.out, name, **more)
        try:
            run(case)
        except Exception as error:
            check(f"{name} runs to its end", False, repr(error))
        finally:
            case.close()
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return results.count(False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        ways = {f"hoard-{way}": (lambda _, way=way: hoard(way)) for way in ("fd", "external", "open", "ipc", "pool")}
        {"become": become, "grow": grow, "leave": leave, "load": load, "lend": lend, "many": many, "starts": starts, "variable": variable, "hoard-orphan": lambda _: hoard_orphans(),
         **ways}[sys.argv[2]](sys.argv[3])
    else:
        sys.exit(main())
