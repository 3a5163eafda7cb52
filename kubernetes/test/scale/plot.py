#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs of `make scale` say: plot.py OUT.svg RESULTS.json… writes a picture, and prints their table as Markdown.

The picture has a row for each run: the cards that claims touch against the fewest that could be, and ResourceSlice writes beside pods
that were bound.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "test/bench"))
from plot import Scale, count, line, save, text  # noqa: E402


def name(run):
    order = {"fullest": "fullest first", "plain": "plain order"}[run["order"]]
    return f"{count(run['nodes'])} nodes, {run['strategy']}, {order}"


def diagram(run, box, title, series):
    """Values of the samples against time; a colour for each of (label, key, classes)."""
    left, right, top, bottom = box
    samples = run["samples"]
    x = Scale(0, samples[-1]["seconds"], left, right)
    y = Scale(0, max(max(s[key] for s in samples) for _, key, _ in series) or 1, bottom, top)
    out = [text(left, top - 30, title)]
    for tick in y.ticks():
        out += [line(left, y(tick), right, y(tick), "grid"), text(left - 8, y(tick) + 4, count(round(tick)), "end faint")]
    for tick in x.ticks():
        out += [line(x(tick), bottom, x(tick), bottom + 5, "one"), text(x(tick), bottom + 19, f"{tick:g} s", "mid faint")]
    at = left
    for label, key, classes in series:
        points = " ".join(f"{x(s['seconds'])},{y(s[key])}" for s in samples)
        out += [f'<polyline points="{points}" class="{classes} line"/>', line(at, top - 14, at + 20, top - 14, classes + " line"), text(at + 26, top - 10, label, "faint")]
        at += 46 + 7 * len(label)
    return out


def picture(runs, path):
    body, top = [], 10
    for run in runs:
        body.append(text(20, top + 20, name(run), "title"))
        body += diagram(run, (70, 420, top + 84, top + 230), "cards that claims touch",
                        [("touched", "touched", "c0"), ("the least", "least", "c2 dashed")])
        body += diagram(run, (520, 870, top + 84, top + 230), "since the start",
                        [("pods bound", "bound", "c0"), ("ResourceSlice writes", "writes", "c1")])
        top += 280
    save(path, body, top, f"{runs[0]['machine']}; Kubernetes {runs[0]['kubernetes']}; {runs[0]['date']}")


def table(runs):
    rows = [("run", "pods bound", "per second", "median, p99 ms", "load", "cards touched", "on these nodes", "the least", "writes", "per pod that started",
             "of a node in a minute", "fullest card", "over")]
    for run in runs:
        for label, part in (("fill", run["fill"]), ("churn", run["churn"])):
            p = part["packing"]
            rows.append((f"{name(run)}: {label}", count(part["bound"]), f"{part['per_second']:.1f}", f"{part['median_ms']:.0f}, {part['p99_ms']:.0f}", f"{p['load']:.0%}",
                         count(p["touched"]), count(p["on_nodes"]), count(p["least"]), count(part["writes"]), f"{part['writes'] / max(1, part['bound']):.2f}",
                         str(run["writes_of_a_node"]), f"{run['most']:.1%}", str(run["over"])))
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    everything = [json.loads(Path(file).read_text()) for file in sys.argv[2:]]
    picture(everything, sys.argv[1])
    print(table(everything))
