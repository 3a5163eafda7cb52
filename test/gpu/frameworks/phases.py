# SPDX-License-Identifier: Apache-2.0
"""The course that every framework's program takes inside its container; phases.h is the same for C.

    within   compute something that fits the quota, keep it, rest
    beyond   take memory until the framework says that there is none; rest, full as it is
    after    give all back, compute again, rest

What was seen goes to standard output, one `key=value` a line. To rest is to make a file named after the phase in
$PHASES_DIR and to wait until the host has looked and has made PHASE.seen; without $PHASES_DIR nobody looks.
"""
import gc
import os
import sys
import time

MIB = 1 << 20
CHUNK = 256 * MIB
# Seconds, of which the host needs a few. Without a host the program continues, and its container exits.
LONGEST_REST = 60


def say(**words):
    for key, value in words.items():
        print(f"{key}={value}", flush=True)


def rest(phase):
    directory = os.environ.get("PHASES_DIR")
    if not directory:
        return
    open(os.path.join(directory, phase), "w").close()
    deadline = time.monotonic() + LONGEST_REST
    while not os.path.exists(os.path.join(directory, phase + ".seen")) and time.monotonic() < deadline:
        time.sleep(0.02)


def first_line(error):
    """The class and the first line of the message, as a person reads it at the end of a traceback."""
    kind, lines = type(error), str(error).strip().splitlines()
    module = "" if kind.__module__ == "builtins" else kind.__module__ + "."
    return f"{module}{kind.__qualname__}: {lines[0][:300] if lines else ''}"


class Case:
    """One way to use a framework. `held` is what keeps its memory taken."""

    def __init__(self):
        self.held = []

    def start(self):
        """Import and set up."""

    def shown(self):
        """(free, total) bytes, as the framework is told."""
        raise NotImplementedError

    def compute(self):
        """Whether a computation came out right; some of its memory stays in `held`."""
        raise NotImplementedError

    def take(self):
        """Takes about CHUNK more, and returns what keeps it."""
        raise NotImplementedError

    def fill(self):
        """Takes memory until that raises. Without a quota that would never end: four times the total is too much."""
        _, total = self.shown()
        for _ in range(4 * total // CHUNK):
            self.held.append(self.take())

    def release(self):
        """Gives back what `held` no longer holds."""

    def stop(self):
        """Ends what start() began."""


def run(cases):
    """Runs the case that the arguments name: CASE (all | within)."""
    case, until = cases[sys.argv[1]](), sys.argv[2]
    case.start()
    say(phase="within")
    right = case.compute()
    free, total = case.shown()
    say(total=total, free=free, result="ok" if right else "wrong")
    rest("within")
    if until == "all":
        say(phase="beyond")
        try:
            case.fill()
            oom = "none"
        except Exception as error:  # any: the host knows the framework's own
            oom = first_line(error)
        say(oom=oom)
        rest("beyond")
        say(phase="after")
        case.held.clear()
        gc.collect()
        case.release()
        say(after="ok" if case.compute() else "wrong", free=case.shown()[0])
        rest("after")
    case.stop()
