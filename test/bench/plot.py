#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run of bench.py, as SVG: plot.py RESULTS.json OUT.svg [calls] [processes] [live] [mapping] [launches]

Each named panel stands below the other; without a name, all of them. The picture brings its own background, light or
dark as the reader's system is, so that it can be read on any page.
"""
import json
import math
import sys
from html import escape

WIDTH = 900
# Colours: background, text, faint text, grid, and one for each of three series.
LIGHT = ("#ffffff", "#1f2328", "#59636e", "#d8dee4", "#0069b4", "#c2500a", "#087f5b")
DARK = ("#0d1117", "#e6edf3", "#9da7b1", "#30363d", "#58a6ff", "#f0883e", "#3fb98a")

SHAPES = """
  text { font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 }
  .end { text-anchor: end } .mid { text-anchor: middle }
  .line { fill: none; stroke-width: 2 } .thin { stroke-width: 1.5 } .dashed { stroke-dasharray: 5 4 }
"""


def colours(back, words, faint, grid, *series):
    rules = [f"  .back {{ fill: {back} }} text {{ fill: {words} }} text.faint {{ fill: {faint} }}",
             f"  .grid {{ stroke: {grid} }} .one {{ stroke: {faint} }}"]
    rules += [f"  .c{i} {{ stroke: {c}; fill: {c} }}" for i, c in enumerate(series)]
    # Later, so that it wins over the series' own.
    return "\n".join(rules + [f"  .hollow {{ fill: {back}; stroke-width: 1.5 }} .line {{ fill: none }}"])


STYLE = f"{SHAPES}{colours(*LIGHT)}\n  @media (prefers-color-scheme: dark) {{\n{colours(*DARK)}\n  }}\n"


class Scale:
    """Values to places, linear or logarithmic, with the ticks to show."""

    def __init__(self, low, high, start, end, base=None):
        self.base = base
        if base:
            low, high = math.log(low, base), math.log(high, base)
        self.low, self.high, self.start, self.end = low, high if high > low else low + 1, start, end

    def __call__(self, value):
        if self.base:
            value = math.log(value, self.base)
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self):
        if self.base:
            return [self.base ** e for e in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)]
        rough = (self.high - self.low) / 6
        step = 10 ** math.floor(math.log10(rough))
        step *= next(m for m in (1, 2, 5, 10) if m * step >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 9) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def text(x, y, words, classes=""):
    return f'<text x="{x}" y="{y}" class="{classes}">{escape(str(words))}</text>'


def line(x1, y1, x2, y2, classes):
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{classes}"/>'


def dot(x, y, classes, radius=4):
    return f'<circle cx="{x}" cy="{y}" r="{radius}" class="{classes}"/>'


def diamond(x, y, classes):
    return f'<path d="M{x} {y - 5} l5 5 l-5 5 l-5 -5 z" class="{classes}"/>'


def time(nanoseconds):
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= limit:
            return f"{nanoseconds / limit:g} {unit}"
    return f"{nanoseconds:g} ns"


def count(number):
    return f"{number:,}"


def calls(results, top):
    """Ratios by call: of medians with the range of the rounds, of the 99th percentiles, of the control."""
    rows = results["calls"] + results["pairs"]
    left, right, step = 350, WIDTH - 30, 24
    shown = [v for r in rows for v in (r["ratio"], r["lowest"], r["highest"], r.get("control"), r.get("p99_ratio")) if v]
    low, high = min(shown + [0.98]), max(shown + [1.1])
    bottom = top + 74 + step * len(rows)
    if high > 2:  # no linear scale shows 1.01 and 100 both
        x = Scale(low * 0.9, high * 1.1, left, right, 10)
        marks = [v for v in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if low * 0.9 <= v <= high * 1.1]
    else:
        x = Scale(low - 0.01, high + 0.01, left, right)
        marks = x.ticks()
    out = [text(20, top + 20, "In a slice against the driver alone, by call", "title")]
    at = 350
    for words, mark in (("median", dot(at, top + 40, "c0")), ("99th percentile", diamond(at + 90, top + 40, "c1")),
                        ("control: no slice", dot(at + 225, top + 40, "c2 hollow"))):
        out += [mark, text(at + 10, top + 44, words, "faint")]
        at += 90 if words == "median" else 135
    out += [line(at, top + 40, at + 24, top + 40, "c0 thin"), text(at + 32, top + 44, "range of the rounds", "faint")]
    for mark in marks:
        out.append(line(x(mark), top + 60, x(mark), bottom - 8, "one" if mark == 1 else "grid"))
        out.append(text(x(mark), bottom + 8, f"{mark:g}", "mid faint"))
    for i, row in enumerate(rows):
        y = top + 76 + step * i
        out.append(text(left - 14, y + 4, row["call"], "end"))
        if row.get("control"):
            out.append(dot(x(row["control"]), y, "c2 hollow"))
        if row.get("p99_ratio"):
            out.append(diamond(x(row["p99_ratio"]), y, "c1"))
        out.append(line(x(row["lowest"]), y, x(row["highest"]), y, "c0 thin"))
        out.append(dot(x(row["ratio"]), y, "c0"))
    out.append(text((left + right) / 2, bottom + 28, "ratio of times" + (" (logarithmic)" if x.base else ""), "mid faint"))
    return out, bottom + 44


def plot(rows, key, base, box, lines, labels, title, legend):
    """One diagram of times against rows[key]: a colour for each call; solid in a slice, dashed the driver alone."""
    left, right, top, bottom = box
    values = [r[k] for r in lines for k in ("native_ns", "slice_ns")]
    # Whole decades, so that ticks are where the axis ends.
    y = Scale(10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.01)), bottom, top, 10)
    x = Scale(min(r[key] for r in lines), max(r[key] for r in lines), left, right, base)
    out = [text(left, top - 14, title)]
    for tick in y.ticks():
        out.append(line(left, y(tick), right, y(tick), "grid"))
        if labels:
            out.append(text(left - 8, y(tick) + 4, time(tick), "end faint"))
    for tick in x.ticks():
        out.append(line(x(tick), bottom, x(tick), bottom + 5, "one"))
        out.append(text(x(tick), bottom + 19, count(tick), "mid faint"))
    out.append(line(left, bottom, right, bottom, "one"))
    out.append(text((left + right) / 2, bottom + 38, legend, "mid faint"))
    for i, name in enumerate(dict.fromkeys(r["call"] for r in lines)):
        series = [r for r in rows if r["call"] == name]
        for kind, classes in (("native_ns", "line dashed"), ("slice_ns", "line")):
            points = " ".join(f"{x(r[key])},{y(r[kind])}" for r in series)
            out.append(f'<polyline points="{points}" class="c{i} {classes}"/>')
        out += [dot(x(r[key]), y(r["slice_ns"]), f"c{i}", 3) for r in series]
    return out


def key_of_lines(rows, top, ours="in a slice"):
    out, at = [], 20
    for i, name in enumerate(dict.fromkeys(r["call"] for r in rows)):
        out += [dot(at + 5, top, f"c{i}"), text(at + 15, top + 4, name)]
        at += 40 + 7 * len(name)
    return out + [line(20, top + 20, 50, top + 20, "one thin"), text(58, top + 24, ours, "faint"),
                  line(140, top + 20, 170, top + 20, "one thin dashed"), text(178, top + 24, "the driver alone", "faint")]


def processes(results, top):
    rows = results["processes"]
    if not rows:
        return [text(20, top + 20, "Processes: not measured", "title")], top + 40
    out = [text(20, top + 20, "Time of a call against the number of processes in the slice", "title")]
    out += key_of_lines(rows, top + 42)
    for i, state in enumerate(("idle", "busy")):
        left = 80 + i * 430
        series = [r for r in rows if r["siblings"] == state or r["processes"] == 1]
        out += plot(series, "processes", 2, (left, left + 370, top + 110, top + 340), rows, i == 0,
                    f"the others are {state}", "processes")
    return out, top + 392


def curve(results, top, what, title, key, base, ours, legend):
    """The panel of one diagram across the whole width."""
    rows = results.get(what)
    if not rows:
        return [text(20, top + 20, f"{title}: not measured", "title")], top + 40
    out = [text(20, top + 20, title, "title")]
    out += key_of_lines(rows, top + 42, ours)
    out += plot(rows, key, base, (80, WIDTH - 50, top + 110, top + 340), rows, True, "", legend)
    return out, top + 392


def live(results, top):
    return curve(results, top, "live", "Time of a call against the number of live allocations", "live", 10, "in a slice", "live allocations of 1 KiB")


def mapping(results, top):
    return curve(results, top, "mapping", "Time of a page against the number of pages that one call maps", "pages", 10, "vmm.Map", "pages of one call")


def launches(results, top):
    return curve(results, top, "launches", "Time of a launch against the number of launches before each sync", "launches", 4, "in a session",
                 "launches before each sync")


PANELS = {"calls": calls, "processes": processes, "live": live, "mapping": mapping, "launches": launches}


def write(results, path, panels):
    body, top = [], 10
    for panel in panels:
        elements, top = PANELS[panel](results, top)
        body += elements
    save(path, body, top, f"{results['card'].split(':')[0]}; {results['date']}")


def save(path, body, top, foot):
    """Write a picture of these elements, which end at top, and a line below them."""
    height = top + 28
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
                f"<!-- SPDX-License-Identifier: Apache-2.0 -->\n<style>{STYLE}</style>\n"
                f'<rect width="{WIDTH}" height="{height}" class="back"/>\n' + "\n".join(body + [text(20, top + 12, foot, "faint")]) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(PANELS):
        sys.exit(__doc__)
    with open(sys.argv[1]) as source:
        write(json.load(source), sys.argv[2], sys.argv[3:] or list(PANELS))
