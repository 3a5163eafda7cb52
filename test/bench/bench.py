#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a slice adds to calls of the CUDA driver, on the driver that is here: tables, JSON and plots.

    test/bench/bench.py [--quick] [--processes N] [--rounds N] [--only NAME,...] [--out DIR]

Needs what `make test-programs` puts into bin/, and no compiler, no network. Each call is made both ways in one
process, by the driver's own function and by what a program gets, in alternating batches (cost.c); the control,
outside a slice, shows how far a ratio of 1.00 is to be trusted there. What cannot be made both ways in one process
(the start; the runtime library) is measured by processes in turns. Absolute times drift between runs and
machines; the ratios are what counts, and nothing here is asserted.

DIR (bin/bench) gets results.json and a picture for each table; BENCH_JSON=FILE names another place for the
former. A full run takes less than six minutes on a card, --quick less than one.
"""
import argparse
import datetime
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tree stays as it is
import plot
import tables

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COST = "bin/bench/cost"

# rounds: processes per way; ms: of one batch; colds: the same, of fresh processes; starts: pairs of processes, for
# what has one way per process; lives: containers; live: allocations at most.
FULL = {"rounds": 5, "ms": 4, "colds": 24, "series_ms": 2, "starts": 12, "lives": 40, "live": 1000000}
QUICK = {"rounds": 1, "ms": 0.5, "colds": 3, "series_ms": 0.5, "starts": 3, "lives": 5, "live": 100000}


def slice_of(vram):
    return ["bin/gpuslice", "run", "--embedded", "--quiet", "--vram", vram, "--"]


class Bench:
    def __init__(self, options):
        self.options = options
        self.failures = []

    def cost(self, where, *arguments):
        """The results that one process prints: in a slice if `where` says which, else by the driver alone."""
        command = where + [COST, *map(str, arguments)]
        if sys.stderr.isatty():
            print("\r\033[K" + shlex.join(command), end="", file=sys.stderr, flush=True)
        done = subprocess.run(["timeout", "--kill-after=5", "200", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit status {done.returncode}"
            self.failures.append(f"{shlex.join(command)}: {said}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]

    def texts(self, programs):
        """What programs print, by heading."""
        texts = {}
        for heading, *command in programs:
            done = subprocess.run(["timeout", "--kill-after=5", "300", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                self.failures.append(f"{shlex.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
            texts[heading] = done.stdout.strip()
        return texts

    def pools(self, quick, rows):
        """What package vmm's Map costs beside the driver's own calls, and models that share one limit. The points of the curve go to the
        file `rows`."""
        return self.texts([("Memory pools: mapping", "bin/vmm", "speed", "-rows", rows, *(["-quick"] if quick else [])),
                           ("Memory pools: four models", "bin/vmm", "models", "-memory", str((4 if quick else 32) << 30))])

    def sessions(self, quick, rows):
        """What a GPU session costs beside the driver and a bare stream. The points of the curve go to the file `rows`."""
        return self.texts([("GPU sessions", "bin/session", "speed", "-rows", rows, *(["-quick"] if quick else []))])

    def calls(self):
        """A row per call, from processes in a slice and, for the control, outside."""
        rows, skipped = self.both_ways(self.options["rounds"], "calls", self.options["ms"])
        cold, _ = self.both_ways(self.options["colds"], "cold")
        return rows + cold, skipped

    def only(self, names):
        """The rows of the calls that have one of these in their names."""
        return self.both_ways(self.options["rounds"], "calls", self.options["ms"], *names)

    def both_ways(self, rounds, *arguments):
        sliced, control, skipped = {}, {}, []
        for _ in range(rounds):
            for into, where in ((control, []), (sliced, slice_of("16G"))):
                for result in self.cost(where, *arguments):
                    if result.get("skipped"):
                        skipped.append(result["call"])
                    else:
                        into.setdefault(result["call"], []).append(result)
        rows = []
        for name, results in sliced.items():
            row = {"call": name, **middle(results, "native_ns", "slice_ns", "native_p99_ns", "slice_p99_ns")}
            row.update(spread([r["ratio"] for r in results]))
            if name in control:
                of_control = spread([r["ratio"] for r in control[name]])
                row.update({"control": of_control["ratio"], "control_lowest": of_control["lowest"],
                            "control_highest": of_control["highest"]})
            row["p99_ratio"] = median([r["slice_p99_ns"] / r["native_p99_ns"] for r in results
                                       if r.get("native_p99_ns") and r.get("slice_p99_ns")])
            rows.append(row)
        return rows, sorted(set(skipped))

    def pairs(self):
        """The same for what a process can do in one way only: pairs of processes, in turns."""
        rows = []
        for arguments in (("start",), ("runtime", self.options["ms"])):
            native, sliced = [], []
            for i in range(self.options["starts"]):
                turns = [(native, []), (sliced, slice_of("16G"))]
                # Which comes first changes, so that neither always finds the machine warm.
                for into, where in turns if i % 2 else reversed(turns):
                    into.extend(self.cost(where, *arguments))
            if not native or len(native) != len(sliced):
                continue
            row = {"call": native[0]["call"],
                   "native_ns": median([r["slice_ns"] for r in native]),
                   "slice_ns": median([r["slice_ns"] for r in sliced]),
                   "pairs": len(native)}
            row.update(spread([s["slice_ns"] / n["slice_ns"] for s, n in zip(sliced, native)]))
            rows.append(row)
        return rows


def median(values):
    values = [v for v in values if v is not None]
    return round(statistics.median(values), 4) if values else None


def middle(results, *keys):
    return {key: median([r.get(key) for r in results]) for key in keys}


def spread(ratios):
    return {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def card():
    """What the card is called, after the environment is set for the driver that is used."""
    if driver() == "simulated":
        return "simulated driver: its calls take next to no time, so the ratios mean little; the differences are ours"
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.splitlines()[0]


def driver():
    said = subprocess.run(["bash", "-c", ". test/driver.sh && echo $driver"], stdout=subprocess.PIPE, text=True, check=True)
    return said.stdout.strip()


def container_life(rounds):
    needed = os.environ.get("RUNC", "runc"), os.environ.get("BUSYBOX", "/bin/busybox")
    if os.geteuid() != 0 or not all(map(shutil.which, needed)):
        return "container start: not measured, it needs root, runc and a static busybox\n"
    done = subprocess.run(["test/bench/start.sh", str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--processes", type=int, help="at most (256; 64 simulated; 16 with --quick)")
    parser.add_argument("--rounds", type=int, help="processes per way that the first table is the median of (5; 1 with --quick)")
    parser.add_argument("--only", help="nothing but the calls that have one of these in their names, separated by commas")
    parser.add_argument("--out", default="bin/bench", help="where results.json and the pictures go")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    simulated = driver() == "simulated"
    processes = arguments.processes or (16 if arguments.quick else 64 if simulated else 256)
    options = dict(QUICK if arguments.quick else FULL)
    options["rounds"] = arguments.rounds or options["rounds"]
    bench = Bench(options)

    with tempfile.TemporaryDirectory() as scratch:
        if simulated:
            os.environ["LD_LIBRARY_PATH"] = os.path.join(ROOT, "bin/fakecuda")
            os.environ["FAKECUDA_STATE"] = os.path.join(scratch, "state")
        results = {
            "card": card(),
            "driver": "simulated" if simulated else "real",
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "command": shlex.join(["test/bench/bench.py", *sys.argv[1:]]),
            "cpus": len(os.sched_getaffinity(0)),
            "options": {**options, "processes": processes},
        }
        results["pairs"], results["processes"], results["live"] = [], [], []
        if arguments.only:
            results["calls"], results["skipped"] = bench.only(arguments.only.split(","))
        else:
            results["calls"], results["skipped"] = bench.calls()
            results["pairs"] = bench.pairs()
            # The whole card: a quota has to hold all the contexts.
            results["processes"] = bench.cost(slice_of("100%"), "siblings", processes, options["series_ms"])
            results["live"] = sorted(bench.cost(slice_of("16G"), "live", options["live"], options["series_ms"]),
                                     key=lambda row: row["call"])
            for text, curve, measure in (("pools", "mapping", bench.pools), ("sessions", "launches", bench.sessions)):
                rows = os.path.join(scratch, curve + ".json")
                results[text], results[curve] = measure(arguments.quick, rows), []
                if os.path.exists(rows):
                    with open(rows) as f:
                        results[curve] = json.load(f)
    results["failures"] = bench.failures
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    os.makedirs(arguments.out, exist_ok=True)
    path = os.environ.get("BENCH_JSON") or os.path.join(arguments.out, "results.json")
    with open(path, "w") as f:
        f.write(tables.dump(results))
    sys.stdout.write(tables.text(results))
    panels = [] if arguments.only else plot.PANELS
    for panel in panels:
        plot.write(results, os.path.join(arguments.out, panel + ".svg"), [panel])
    print(f"\nwritten: {', '.join([path, *(arguments.out + '/' + p + '.svg' for p in panels)])}\n", flush=True)
    if not arguments.only:
        print(container_life(options["lives"]), end="")
    for failure in bench.failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
