#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory as programs of the CUDA runtime take it (runtime.cu), with cudart linked statically and shared: each kind in a
slice of its own, within the quota and beyond it.

Run on a machine with an NVIDIA GPU and nvcc, after `make card-programs`; needs no root:

    test/gpu/runtime.py [--only KIND,...]

Prints a line per kind and exits with the number of those that failed.
"""
import argparse
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import BIN, HERE, output

TIMEOUT = 60  # seconds one of them may take, one way


def build(cudart):
    program = os.path.join(BIN, "gpu-test", "runtime_" + cudart)
    os.makedirs(os.path.dirname(program), exist_ok=True)
    subprocess.run(["nvcc", "-arch=native", "-cudart", cudart, "-o", program, HERE + "/runtime.cu", HERE + "/runtime_array.cu"],
                   check=True)
    return program


def one(program, vram, kind, way, **env):
    """What is wrong; empty if nothing is."""
    try:
        said = output(BIN + "/gpuslice", "run", "--embedded", "--quiet", "--vram", vram, "--", program, kind, way,
                      timeout=TIMEOUT, env=os.environ | env)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT} s"
    last = said.strip().splitlines()[-1:] or ["nothing was said"]
    return "" if last[0].startswith("PASS ") else said.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="kinds, separated by commas")
    options = parser.parse_args()
    rows = failed = 0
    for cudart in ("static", "shared"):
        program = build(cudart)
        kinds = output(program, "list").split() + ["eager"]
        for kind in kinds:
            if options.only and kind not in options.only.split(","):
                continue
            wrong = {}
            for way in ("within", "beyond"):
                if kind == "eager":  # with the context and 256 MiB of code, 700 MiB are too few
                    wrong[way] = one(program, "4G" if way == "within" else "700M", kind, way, CUDA_MODULE_LOADING="EAGER")
                else:
                    wrong[way] = one(program, "4G", kind, way)
            bad = [way for way in wrong if wrong[way]]
            rows += 1
            failed += bool(bad)
            print(f"{'FAIL' if bad else 'PASS'}  {kind}, {cudart} cudart", *(f"\n      {way}: {wrong[way]}" for way in bad), flush=True)
    print(f"{rows - failed} passed, {failed} failed; each in a slice of 4 GiB, within it and beyond it")
    return failed


if __name__ == "__main__":
    sys.exit(main())
