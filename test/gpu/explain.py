#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU what gpuslice says of four PyTorch containers, one of which runs into its quota: ps, top, devices,
explain and recommend, beside what nvidia-smi says.

Run as root on a machine with an NVIDIA GPU, PyTorch and runc, after `make build`:

    RUNC=/path/to/runc test/gpu/explain.py [--out DIR]

Prints a line per promise and what the commands print, and exits with the number of promises not kept.
"""
import argparse
import json
import os
import sys
import tempfile
import time

from host import BIN, GIB, MIB, Host, output, pids_of, smi_sum

PATIENCE = 120.0  # seconds until PyTorch holds what it was asked to
QUOTAS = {"chat": 12, "embed": 6, "train": 24, "small": 4}  # GiB
HOLDS = {"chat": 8, "embed": 2, "train": 16, "small": 2}
results = []

# Takes so many GiB, and then, if it is the one that is to be refused, as much again.
PROGRAM = """
import sys, time, torch
held = [torch.ones(1 << 28, device="cuda") for _ in range(int(sys.argv[1]))]
torch.cuda.synchronize()
if sys.argv[2] == "again":
    try:
        torch.ones(int(sys.argv[1]) << 28, device="cuda")
        print("was not refused")
    except torch.OutOfMemoryError as e:
        print("refused:", str(e).splitlines()[0])
open("/out/ready", "w").close()
time.sleep(600)
"""


def check(name, ok, seen):
    results.append(bool(ok))
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {seen}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-explain-"))
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    host = Host(out)

    def gpuslice(*words):
        return output(BIN + "/gpuslice", "--socket", host.socket, *words, timeout=20)

    logs, outs = {}, {}
    for name, quota in QUOTAS.items():
        args = [sys.executable, "-u", "-c", PROGRAM, str(HOLDS[name]), "again" if name == "small" else ""]
        path, outs[name] = host.bundle(name, args, {"gpuslice.vram": f"{quota}G"})
        logs[name] = open(os.path.join(out, name + ".log"), "w+")
        host.launch(path, name, logs[name])
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not all(os.path.exists(o + "/ready") for o in outs.values()):
            time.sleep(0.1)
        time.sleep(3)  # samples
        shown = {s["id"]: s["devices"][0] for s in host.ps() if s["devices"]}
        for name in QUOTAS:
            smi, processes = smi_sum(pids_of(host, name))
            ours = shown[name]["used"] + shown[name]["overhead"] if name in shown else 0
            check(f"{name}: what ps shows is what nvidia-smi does", processes and abs(ours - smi) <= 16 * MIB, f"{ours / MIB:.0f} and {smi / MIB:.0f} MiB")
        device = json.loads(gpuslice("devices", "--json"))[0]
        whole = output("nvidia-smi", "--query-gpu=memory.used,memory.reserved", "--format=csv,noheader,nounits", timeout=20).strip()
        used, reserved = (int(w) * MIB for w in whole.split(","))
        check("devices shows what nvidia-smi does", any(abs(device["used"] - u) <= 32 * MIB for u in (used, used + reserved)),
              f"{device['used'] / MIB:.0f} MiB; {whole} MiB (used, reserved)")
        logs["small"].seek(0)
        said = [line for line in logs["small"].read().splitlines() if line.startswith("refused:")]
        check("PyTorch in `small` was refused", said, said)
        explained = gpuslice("explain", "small")
        check("explain says why", "4GiB" in explained and "gpuslice set small --vram" in explained, "")
        row = next((r for r in json.loads(gpuslice("recommend", "--json")) if r["of"] == "small"), {})
        check("recommend names a quota that would have done", 4 * GIB < row.get("quota", 0) <= 6 * GIB, row)
        if row.get("quota"):
            gpuslice("set", "small", "--vram", str(row["quota"]))
            host.remove("small")
            host.remove("train")
            text = host.run("again", [sys.executable, "-u", "-c", PROGRAM.replace("time.sleep(600)", ""), str(HOLDS["small"]), "again"],
                            {"gpuslice.vram": str(row["quota"])}, timeout=PATIENCE)
            check("and it does", "was not refused" in text, text.strip()[-200:])
        for words in (["ps"], ["top", "--once"], ["devices"], ["explain", "small"], ["recommend"]):
            print(f"\n$ gpuslice {' '.join(words)}\n{gpuslice(*words)}")
    finally:
        for name in QUOTAS:
            host.remove(name)
        host.stop()
    print(f"{sum(results)} of {len(results)} promises kept; logs in {out}")
    return len(results) - sum(results)


if __name__ == "__main__":
    sys.exit(main())
