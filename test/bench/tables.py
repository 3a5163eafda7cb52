#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of a run of bench.py: tables.py RESULTS.json"""
import json
import sys


def dump(results):
    """JSON with a line per row, so that two runs can be compared by diff."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(row) for row in value)
            parts.append(f' "{key}": [\n  {rows}\n ]')
        else:
            parts.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def ns(value):
    return "-" if value is None else f"{value:.0f}"


def ratio(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def calls(results):
    lines = [f"{'call':<46} {'driver ns':>10} {'in slice ns':>12} {'ratio':>7} {'of rounds':>12} {'control':>8} {'of rounds':>12}"
             f"   {'p99: driver':>12} {'in slice':>10} {'ratio':>7}"]
    for row in results["calls"] + results["pairs"]:
        of_rounds = f"{row['lowest']:.3f}-{row['highest']:.3f}"
        of_control = f"{row['control_lowest']:.3f}-{row['control_highest']:.3f}" if "control_lowest" in row else ""
        lines.append(f"{row['call']:<46} {ns(row['native_ns']):>10} {ns(row['slice_ns']):>12} {ratio(row['ratio']):>7} "
                     f"{of_rounds:>12} {ratio(row.get('control')):>8} {of_control:>12}   {ns(row.get('native_p99_ns')):>12} "
                     f"{ns(row.get('slice_p99_ns')):>10} {ratio(row.get('p99_ratio')):>7}")
    for name in results["skipped"]:
        lines.append(f"{name:<46} not measured: this driver or this place has not what it needs")
    return lines


def names(rows):
    return list(dict.fromkeys(row["call"] for row in rows))


def slope(rows, key):
    """What the call costs at the end, as a multiple of what it costs at the beginning."""
    return rows[-1][key] / rows[0][key]


def series_head(first, width):
    return f"{first:<{width}} {'driver ns':>10} {'in slice ns':>12} {'ratio':>7}   {'p99: driver':>12} {'in slice':>10}"


def series_row(row, first, width):
    return (f"{first:<{width}} {ns(row['native_ns']):>10} {ns(row['slice_ns']):>12} {ratio(row['ratio']):>7}   "
            f"{ns(row['native_p99_ns']):>12} {ns(row['slice_p99_ns']):>10}")


def series_slope(rows, what, width):
    if len(rows) < 2:
        return []
    grown = f"{rows[-1][what]} against {rows[0][what]}"
    return [f"{grown:<{width}} {slope(rows, 'native_ns'):>9.2f}x {slope(rows, 'slice_ns'):>11.2f}x"]


def processes(results):
    lines = []
    for name in names(results["processes"]):
        for state in ("idle", "busy"):
            # Alone, a process has no siblings that could be busy.
            rows = [r for r in results["processes"]
                    if r["call"] == name and (r["siblings"] == state or r["processes"] == 1)]
            if not rows:
                continue
            lines += [f"{name}; the other processes of the slice are {state}",
                      series_head("processes (with a context)", 28) + f" {'their pairs/s':>14}"]
            lines += [series_row(r, f"{r['processes']} ({r['contexts']})", 28) + f" {r['pairs_per_s']:>14}" for r in rows]
            lines += series_slope(rows, "processes", 28) + [""]
    return lines[:-1]


def live(results):
    lines = []
    for name in names(results["live"]):
        rows = [r for r in results["live"] if r["call"] == name]
        lines += [name, series_head("live allocations", 28)]
        lines += [series_row(r, str(r["live"]), 28) for r in rows]
        lines += series_slope(rows, "live", 28) + [""]
    return lines[:-1]


def text(results):
    lines = [f"card: {results['card']}", f"date: {results['date']}, {results['cpus']} CPUs", f"command: {results['command']}"]
    for part in (calls, processes, live):
        lines += [""] + part(results)
    for heading, said in {**results.get("pools", {}), **results.get("sessions", {})}.items():
        lines += ["", "## " + heading, "", said]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        sys.stdout.write(text(json.load(f)))
