#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Package vmm on a real GPU: its tests, four caches against the ledger, and what mapping costs.

Run as root on a machine with an NVIDIA GPU, after `make card-programs`:

    test/gpu/vmm.py [--out DIR] [--time 60] [--quick]

Needs no Go, no runc and no network. It starts an enforcer of its own and stops it. Under the simulated driver:
LD_LIBRARY_PATH=$PWD/bin/fakecuda and FAKECUDA_STATE, a file that is not there yet; that has no tests
to run, which `make test` does, and times mean nothing there.

Prints a line per promise, then the tables, of a process without a slice and of one in a slice. The exit status is the number of
promises not kept; no time is one.
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import BIN, GIB, MIB, ROOT, Host, check, results



def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-vmm-"))
    parser.add_argument("--time", type=int, default=60, help="of the caches, seconds")
    parser.add_argument("--quick", action="store_true", help="a tenth of the measurements")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    simulated = "FAKECUDA_STATE" in os.environ
    if simulated:  # what is written there is memory of this machine
        os.environ.setdefault("FAKECUDA_MEMORY", "8G")
    quota = "6G" if simulated else "48G"
    host = Host(options.out)
    session = [BIN + "/gpuslice", "--socket", host.socket, "run", "--quiet", "--vram", quota, "--"]

    def run(name, *command, **more):
        """Its output, and whether it ended well."""
        path = os.path.join(options.out, name + ".txt")
        with open(path, "w") as f:
            try:
                status = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, timeout=400, **more).returncode
            except subprocess.TimeoutExpired:
                status = "none within 400 s"
        with open(path) as f:
            return f.read(), status == 0

    def last(text):
        return (text.strip().splitlines() or ["it said nothing"])[-1]

    try:
        for name in () if simulated else ("vmm", "cuda"):
            program = f"{BIN}/vmm-tests/{name}.test"
            if not os.path.exists(program):
                check(f"tests of {name}", False, "make card-programs")
                continue
            directory = os.path.join(ROOT, "vmm", "cuda" if name == "cuda" else "")
            text, good = run(f"tests-{name}", *session, program, "-test.v", cwd=directory, env={**os.environ, "GPUSLICE_TEST_CARD": "1"})
            failed = [l.strip() for l in text.splitlines() if "--- FAIL" in l]
            check(f"tests of {name}", good, "; ".join(failed) or f"{text.count('--- PASS')} pass" if good else last(text))

        text, good = run("caches", *session, BIN + "/vmm", "caches", "-time", f"{options.time}s", "-socket", host.socket)
        check("four caches grow and shrink, and the ledger has the same bytes", good, last(text))
        text, good = run("caches-plain", BIN + "/vmm", "caches", "-time", f"{options.time // 4}s", "-within", str(64 * MIB))
        check("the same without a slice, by what the driver says is free", good, last(text))

        quick = ["-quick"] if options.quick else []
        memory = ["-memory", str((4 if options.quick else 32) * GIB)]
        for name, *command in (("speed", "speed", *quick), ("models", "models", *memory)):
            for where, before in (("no slice", []), (f"a slice of {quota}", session)):
                text, good = run(f"{name}-{'slice' if before else 'plain'}", *before, BIN + "/vmm", *command)
                if not good:
                    check(f"{name}, in {where}", False, last(text))
                print(f"\n## {name}: {where}\n\n{text.strip()}", flush=True)
    finally:
        host.stop()
    print(f"\n{sum(results)} of {len(results)} promises kept; the rest is in {options.out}")
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
