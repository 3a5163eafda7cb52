#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program draws on a terminal: taken as text with colours (capture), and drawn as an SVG for docs/pictures.

    test/gpu/screen.py CAPTURE [COMMENT] >docs/pictures/top.svg
"""
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

TOKEN = re.compile(r"\x1b\[([?>=]?)([0-9;]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()].|\x1b[^\[\]]|([^\x1b])", re.S)
PLAIN = ""


class Screen:
    """As much of a terminal as line-oriented programs and `gpuslice top` need."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [[(" ", PLAIN)] * columns for _ in range(rows)]
        self.x = self.y = 0
        self.style = PLAIN

    def feed(self, text):
        for private, numbers, final, char in TOKEN.findall(text):
            if char:
                self.put(char)
            elif final and not private:
                self.control([int(n or 0) for n in numbers.split(";")], final)

    def put(self, char):
        if char == "\r":
            self.x = 0
        elif char == "\n":
            if self.y == self.rows - 1:
                self.cells = self.cells[1:] + [[(" ", PLAIN)] * self.columns]
            else:
                self.y += 1
        elif char >= " ":
            if self.x == self.columns:
                self.put("\r")
                self.put("\n")
            self.cells[self.y][self.x] = (char, self.style)
            self.x += 1

    def control(self, numbers, final):
        n = max(1, numbers[0])
        if final == "m":
            for number in numbers:
                self.style = PLAIN if number == 0 else f"{self.style};{number}".lstrip(";")
        elif final in "Hf":
            self.y, self.x = min(n, self.rows) - 1, min(max(1, (numbers + [1])[1]), self.columns) - 1
        elif final in "AB":
            self.y = max(0, min(self.rows - 1, self.y + (n if final == "B" else -n)))
        elif final in "CD":
            self.x = max(0, min(self.columns - 1, self.x + (n if final == "C" else -n)))
        elif final in "JK":
            blank = (" ", PLAIN)
            first, last = {0: (self.x, self.columns), 1: (0, self.x + 1)}.get(numbers[0], (0, self.columns))
            self.cells[self.y][first:last] = [blank] * (last - min(first, last))
            if final == "J":
                for y in {0: range(self.y + 1, self.rows), 1: range(self.y)}.get(numbers[0], range(self.rows)):
                    self.cells[y] = [blank] * self.columns

    def runs(self):
        """The lines, each as (column, text, style), without empty ones at the end."""
        lines = []
        for row in self.cells:
            line, start = [], 0
            for x in range(1, self.columns + 1):
                if x == self.columns or row[x][1] != row[start][1]:
                    line.append((start, "".join(c for c, _ in row[start:x]), row[start][1]))
                    start = x
            lines.append(line)
        while lines and not "".join(text for _, text, _ in lines[-1]).strip():
            lines.pop()
        return lines

    def text(self):
        """The screen as text with colours."""
        return "".join("".join(f"\x1b[{s}m{t}\x1b[0m" if s else t for _, t, s in line).rstrip() + "\n" for line in self.runs())


def capture(command, columns, rows, keys, shows):
    """Runs a command on a terminal of this size; once it shows that text, or after a minute, types each of the keys after a wait, and takes the
    screen after the last wait, or when the command has ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.environ.pop("NO_COLOR", None)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvp(command[0], command)
    screen, ended, until = Screen(columns, rows), False, time.monotonic() + 60
    for key in list(keys) + [None]:
        while not ended and (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                try:
                    data = os.read(terminal, 1 << 16)
                except OSError:  # the other side is closed
                    data = b""
                ended = not data
                screen.feed(data.decode(errors="replace"))
            if shows and shows in screen.text():
                until, shows = time.monotonic() + 2, ""
        until, shows = time.monotonic() + 2, ""
        if key and not ended:
            os.write(terminal, key.encode())
    if not ended:
        os.kill(pid, signal.SIGTERM)
    kill = time.monotonic() + 5
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        # Its last output must be read, or it waits.
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                os.read(terminal, 1 << 16)
            except OSError:
                time.sleep(0.1)
        if time.monotonic() > kill:
            os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return screen.text()


COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#f2cc60", 34: "#79c0ff", 36: "#76e3ea"}
WIDTH, HEIGHT = 8, 19


def svg(text, comment):
    """A capture as a picture."""
    lines = text.rstrip("\n").split("\n")
    columns = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines)
    screen = Screen(columns + 1, len(lines))
    screen.feed("\r\n".join(lines))
    w, h = columns * WIDTH + 32, len(lines) * HEIGHT + 28
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{html.escape(comment)}">'
    yield f"<!-- {comment.replace('--', '- -')}: drawn by test/gpu/screen.py from what the program wrote. -->"
    yield '<style>text { font-family: "DejaVu Sans Mono", ui-monospace, Menlo, Consolas, monospace; font-size: 13px; fill: #d8dee4; white-space: pre }</style>'
    yield f'<rect width="{w}" height="{h}" rx="6" fill="#161b22"/>'
    for y, line in enumerate(screen.runs()):
        for column, words, style in line:
            codes = [int(c) for c in style.split(";") if c]
            shape = "fill:#8b949e;" if 2 in codes else "".join(f"fill:{COLOURS[c]};" for c in codes if c in COLOURS)
            if 7 in codes:
                yield f'<rect x="{16 + column * WIDTH}" y="{14 + y * HEIGHT}" width="{len(words) * WIDTH}" height="{HEIGHT}" fill="#d8dee4"/>'
                shape = "fill:#161b22;"
            if 1 in codes:
                shape += "font-weight:700;"
            for part in re.finditer(r"\S+(?: \S+)*", words):
                shown = part.group(0)
                yield (f'<text x="{16 + (column + part.start()) * WIDTH}" y="{28 + y * HEIGHT}" textLength="{len(shown) * WIDTH}"'
                       + (f' style="{shape}"' if shape else "") + f">{html.escape(shown, quote=False)}</text>")
    yield "</svg>"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        print("\n".join(svg(f.read(), sys.argv[2] if len(sys.argv) > 2 else "a terminal")))
