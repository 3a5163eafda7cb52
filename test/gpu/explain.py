#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU what gpuslice says of four PyTorch containers, one of which runs into its quota: ps, top, devices,
explain and recommend, beside what nvidia-smi says of the same moment, by process and in all.

Run as root on a machine with an NVIDIA GPU, PyTorch and runc, after `make card-programs`:

    RUNC=/path/to/runc test/gpu/explain.py [--out DIR]

Prints a line per promise, a table of both figures and what the commands print, and exits with the number of promises not
kept. DIR gets the table (table.txt) and what the commands draw on a terminal, top.ansi and others; a picture of one is made
by `test/gpu/screen.py DIR/top.ansi >docs/pictures/top.svg`.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time

import screen
from host import BIN, GIB, MIB, Host, Truth, check, eventually, output, pids_of, results, smi_sum

PATIENCE = 120.0  # seconds until PyTorch holds what it was asked to
QUOTAS = {"chat": 12, "embed": 6, "train": 24, "small": 4}  # GiB
HOLDS = {"chat": 8, "embed": 2, "train": 16, "small": 2}
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


def smi_processes():
    """Bytes by pid as nvidia-smi has them; NVML's own, where there is none."""
    if not shutil.which("nvidia-smi"):
        return Truth().processes()
    rows = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", timeout=20).splitlines()
    return {int(p): int(m) * MIB for p, m in (row.split(",") for row in rows if "," in row)}


def smi_card():
    """The bytes that nvidia-smi says are used of the card, without and with those that the driver reserves for itself, and of how many
    rounded figures each is the sum."""
    if not shutil.which("nvidia-smi"):
        return [(Truth().used(), 1)] * 2
    row = output("nvidia-smi", "--query-gpu=memory.used,memory.reserved", "--format=csv,noheader,nounits", timeout=20)
    used, reserved = (int(w) * MIB for w in row.splitlines()[0].split(","))
    return [(used, 1), (used + reserved, 2)]


def table(host, device, path):
    """Ours beside nvidia-smi's, in MiB, which is what nvidia-smi rounds to; returns whether they are equal but for that rounding."""
    rows, smi = [], smi_processes()
    for name in QUOTAS:
        for p in host.inspect(name)["processes"]:
            for d in p["devices"]:
                rows.append((f"{name}, process {p['pid']}", d["used"] + d["overhead"], smi.get(p["pid"], 0), 1))
    rows.append(("the four containers", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
    rows.append(("the card", device["used"], *min(smi_card(), key=lambda card: abs(card[0] - device["used"]))))
    lines, equal = [f"{'MiB':<32} {'gpuslice':>9} {'nvidia-smi':>11}  equal"], True
    for what, ours, theirs, figures in rows:
        same = abs(ours - theirs) <= MIB * figures
        equal = equal and same
        lines.append(f"{what:<32} {ours / MIB:>9.1f} {theirs / MIB:>11.1f}  {'yes' if same else 'NO'}")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return equal


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
        eventually(lambda: all(os.path.exists(o + "/ready") for o in outs.values()), PATIENCE)
        time.sleep(3)  # samples
        shown = {s["id"]: s["devices"][0] for s in host.ps() if s["devices"]}
        for name in QUOTAS:
            smi, processes = smi_sum(pids_of(host, name))
            ours = shown[name]["used"] + shown[name]["overhead"] if name in shown else 0
            check(f"{name}: what ps shows is what nvidia-smi does", processes and abs(ours - smi) <= 16 * MIB, f"{ours / MIB:.0f} and {smi / MIB:.0f} MiB")
        device = json.loads(gpuslice("devices", "--json"))[0]
        check("gpuslice's figures are nvidia-smi's, of each process and of the card", table(host, device, os.path.join(out, "table.txt")), "")
        logs["small"].seek(0)
        said = [line for line in logs["small"].read().splitlines() if line.startswith("refused:")]
        check("PyTorch in `small` was refused", said, said)
        explained = gpuslice("explain", "small")
        check("explain says why", "4GiB" in explained and "gpuslice set small --vram" in explained, "")
        program = [BIN + "/gpuslice", "--socket", host.socket]
        for name, words, rows, keys in (
                ("explain", ["explain", "small"], 12, []), ("recommend", ["recommend"], 20, []), ("devices", ["devices"], 20, []),
                ("inspect", ["inspect", "small"], 60, []), ("top", ["top"], 14, ["\r"])):
            shows = "GPU-" if name == "devices" else "small"
            drawn = screen.capture(program + words, 132 if name == "top" else 150, rows, keys, shows)
            with open(os.path.join(out, name + ".ansi"), "w", encoding="utf-8") as f:
                f.write(drawn)
            check(f"a terminal shows {name}", shows in drawn, "")
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
