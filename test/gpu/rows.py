#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/evidence/coverage.md on a real GPU: test/interceptor/programs/rows*.c, each row in a container of its own,
within its quota and running into it.

Run as root on a machine with an NVIDIA GPU, gcc and runc, after `make card-programs`:

    RUNC=/path/to/runc test/gpu/rows.py [--out DIR] [--only NAME,...] [--jobs N]

Prints a line per row and exits with the number of those that failed.
"""
import argparse
import concurrent.futures
import glob
import os
import subprocess
import sys
import tempfile

from host import BIN, GIB, ROOT, Host, output

QUOTA = 4 * GIB
ALONE = ("code-", "arrays-small")
TIMEOUT = 90  # seconds for a row, one way


def build():
    """The rows' program, linked with the driver that is here."""
    program = os.path.join(BIN, "gpu-test", "rows")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    programs = os.path.join(ROOT, "test", "interceptor", "programs")
    sources = [programs + "/rows.c"] + sorted(glob.glob(programs + "/rows_*.c"))
    subprocess.run(["gcc", "-std=gnu11", "-O1", "-g", "-I" + os.path.join(ROOT, "interceptor"), "-o", program, *sources,
                    "-lcuda", "-ldl", "-lpthread"], check=True)
    return program


def one(host, program, row, way):
    """What the program says that is wrong; empty if nothing is."""
    name = f"{row}-{way}"
    try:
        said = host.run(name, [program, row, way], {"gpuslice.vram": str(QUOTA)}, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        host.remove(name)
        return f"no end after {TIMEOUT} s"
    # The interceptor's message about a refusal comes by another pipe, before or after this line.
    passed = any(line.startswith(f"PASS {row} {way}") for line in said.splitlines())
    return "" if passed else said.strip() or "nothing was said"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-rows-"), help="where logs go")
    parser.add_argument("--only", help="names of rows, separated by commas")
    parser.add_argument("--jobs", type=int, default=6, help="containers at one time (default: %(default)s)")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    program = build()
    rows = [line.split("\t")[0] for line in output(program, "list").splitlines()]
    if options.only:
        rows = [r for r in rows if r in options.only.split(",")]
    host = Host(options.out)
    failed = 0
    try:
        # Changes of the card's free memory show loaded code and blocks of small arrays. A concurrent free of the same size hides them.
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as many, concurrent.futures.ThreadPoolExecutor(1) as alone:
            tries = {}
            for row in sorted(rows, key=lambda row: row.startswith(ALONE)):
                pool = alone if row.startswith(ALONE) else many
                if pool is alone:
                    concurrent.futures.wait([t for (other, _), t in tries.items() if not other.startswith(ALONE)])
                for way in ("within", "beyond"):
                    tries[row, way] = pool.submit(one, host, program, row, way)
            for row in rows:
                wrong = {way: tries[row, way].result() for way in ("within", "beyond")}
                bad = [way for way in wrong if wrong[way]]
                failed += bool(bad)
                print(f"{'FAIL' if bad else 'PASS'}  {row}", *(f"\n      {way}: {wrong[way]}" for way in bad), flush=True)
    finally:
        host.stop()
    print(f"{len(rows) - failed} rows passed, {failed} failed; each in a container of {QUOTA // GIB} GiB, within it and beyond it")
    return failed


if __name__ == "__main__":
    sys.exit(main())
