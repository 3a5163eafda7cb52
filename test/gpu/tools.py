#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's tools inside a slice and around one: inside, compute-sanitizer, ncu and cuda-gdb say of a program (tools.cu) what
they say of it without a slice; around one it runs as without them; and the quota holds under them.

Run on a machine with an NVIDIA GPU and the CUDA toolkit, after `make card-programs`; as root, where the driver lets nobody else
read its counters:

    test/gpu/tools.py [--out DIR] [--only TOOL,...]

Prints a table: tool, where it ran, what it found. Exits with the number of rows that are wrong. A tool that is not
installed, or does not work on this machine without a slice either, is skipped, and said so.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # would write to the source tree
from host import BIN, GIB, HERE

QUOTA = 4 * GIB
TIMEOUT = int(os.environ.get("TOOLS_TIMEOUT", "180"))  # seconds for one run; ncu and cuda-gdb start slowly
SLICE = [BIN + "/gpuslice", "run", "--embedded", "--quiet", "--vram", f"{QUOTA}b", "--"]
PROGRAM = os.path.join(BIN, "gpu-test", "tools")


def build():
    os.makedirs(os.path.dirname(PROGRAM), exist_ok=True)
    subprocess.run(["nvcc", "-arch=native", "-g", "-G", "-o", PROGRAM, HERE + "/tools.cu"], check=True)


# Each verdict is a person's conclusion from the tool's output; the last word is whether it is the expected one.

def sanitizer_planted(text, code):
    found = re.search(r"Invalid __global__ write of size \d+", text)
    return f"{found[0] if found else 'nothing found'}, exit {code}", bool(found) and code == 7


def sanitizer_good(text, code):
    summary = re.search(r"ERROR SUMMARY: \d+ errors?", text)
    return f"{summary[0] if summary else 'no summary'}, exit {code}", bool(summary) and summary[0].endswith(" 0 errors") and code == 0


def leaks(text, code):
    """What the program did not free: the same with a slice, and nothing of the interceptor's."""
    summary = re.search(r"LEAK SUMMARY: .*", text)
    return summary[0] if summary else "no summary", bool(summary)


def ncu(text, code):
    # The cycles differ between runs; there must be a figure.
    found = re.search(r"sm__cycles_elapsed\.max\s+\S+\s+([\d,.]+)", text)
    right = "the sum is right" in text
    return ("a figure" if found else "no figure") + (", the sum is right" if right else ", no sum"), bool(found) and right


def gdb(text, code):
    hit = re.search(r"CUDA thread hit|Switching focus to CUDA kernel", text)
    count = re.search(r"^\$1 = (\d+)", text, re.M)
    right = "the sum is right" in text
    return (f"{'stops' if hit else 'does not stop'} in the kernel, count = {count[1] if count else '?'}"
            f"{', the sum is right' if right else ', no sum'}"), bool(hit) and bool(count) and count[1] == "1000" and right


def filled(text, code):
    """The quota holds, and most of it is there for the program beside its context and the tool's own memory."""
    found = re.search(r"taken=(\d+) error=(\w+)", text)
    if not found:
        return "nothing taken", False
    taken, error = int(found[1]), found[2]
    return f"{taken >> 20} MiB, then {error}", GIB <= taken <= QUOTA and error == "cudaErrorMemoryAllocation"


SANITIZER = ["compute-sanitizer", "--error-exitcode", "7"]
LEAKS = ["compute-sanitizer", "--leak-check", "full"]
NCU = ["ncu", "--metrics", "sm__cycles_elapsed.max"]

# A line of the kernel: its name is the host's stub's, too.
with open(HERE + "/tools.cu") as source:
    LINE = next(n for n, line in enumerate(source, 1) if "a[i] + b[i]" in line)
GDB = ["cuda-gdb", "-nx", "-batch", "-ex", "set breakpoint pending on", "-ex", f"break tools.cu:{LINE}", "-ex", "run", "-ex", "print count",
       "-ex", "delete", "-ex", "continue", "--args"]

# The command, its argument, its judge, and whether it can follow child processes. A debugger follows one process, so around a slice it
# would debug gpuslice.
CASES = [
    ("compute-sanitizer, planted write", SANITIZER, "planted", sanitizer_planted, True),
    ("compute-sanitizer, no error", SANITIZER, "good", sanitizer_good, True),
    ("compute-sanitizer, leaks", LEAKS, "good", leaks, True),
    ("ncu, a metric", NCU, "good", ncu, True),
    ("cuda-gdb, a breakpoint", GDB, "good", gdb, False),
]


def run(command, out, name):
    """What it said, and its exit status; 124 if its time was up."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=TIMEOUT)
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as e:
        text, code = (e.stdout or b"").decode(errors="replace"), 124
    with open(os.path.join(out, re.sub(r"\W+", "-", name) + ".log"), "w") as f:
        f.write(" ".join(command) + "\n" + text)
    return text, code


def around(tool):
    return [*tool, "--target-processes", "all"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-tools-"), help="where logs go")
    parser.add_argument("--only", help="tools, separated by commas")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    build()
    rows = failed = 0

    def row(ok, what, seen):
        nonlocal rows, failed
        rows += 1
        failed += not ok
        print(f"{'PASS' if ok else 'FAIL'}  {what}: {seen}", flush=True)

    for name, tool, argument, verdict, follows in CASES:
        if options.only and tool[0] not in options.only.split(","):
            continue
        if not shutil.which(tool[0]):
            print(f"SKIP  {name}: no {tool[0]}", flush=True)
            continue
        wanted, right = verdict(*run([*tool, PROGRAM, argument], options.out, name + " without"))
        if not right:
            print(f"SKIP  {name}: without a slice: {wanted}", flush=True)
            continue
        seen, _ = verdict(*run([*SLICE, *tool, PROGRAM, argument], options.out, name + " inside"))
        row(seen == wanted, f"{name}, inside a slice", seen if seen == wanted else f"{seen}; without a slice: {wanted}")
        if follows:
            seen, _ = verdict(*run([*around(tool), *SLICE, PROGRAM, argument], options.out, name + " around"))
            row(seen == wanted, f"{name}, around a slice", seen if seen == wanted else f"{seen}; without a slice: {wanted}")
    quotas = [("no tool", [], False), ("compute-sanitizer", SANITIZER, True), ("ncu", NCU, True),
              ("cuda-gdb", ["cuda-gdb", "-nx", "-batch", "-ex", "run", "--args"], False)]
    for name, tool, follows in quotas:
        if tool and (not shutil.which(tool[0]) or options.only and tool[0] not in options.only.split(",")):
            continue
        seen, ok = filled(*run([*SLICE, *tool, PROGRAM, "fill"], options.out, "fill " + name + " inside"))
        row(ok, f"quota of {QUOTA >> 20} MiB with {name} inside", seen)
        if follows:
            seen, ok = filled(*run([*around(tool), *SLICE, PROGRAM, "fill"], options.out, "fill " + name + " around"))
            row(ok, f"quota of {QUOTA >> 20} MiB with {name} around", seen)
    print(f"{rows - failed} passed, {failed} failed; logs in {options.out}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
