#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leases on a real GPU: the lease service with gpusliced and brokers, tenants until the card is full, faults, many small leases, restarts.

Run as root on a machine with an NVIDIA GPU, after `make card-programs`:

    test/gpu/leases.py [--out DIR] [--small 64] [--tenant 7G]
    test/gpu/leases.py --drops      # nothing but where the time of a drop goes, stage by stage

Needs grpcio; no Go, no runc, no network. Under the simulated driver: LD_LIBRARY_PATH=$PWD/bin/fakecuda and FAKECUDA_STATE, a file that
is not there yet, in a directory that is open to all; there are no faults there, and --small 4 is enough.

Prints a line per promise. The exit status is the number of promises not kept.
"""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import BIN, GIB, MIB, Host
from lease import ENDLESS, SIMULATED, check, gpuslice, illegal, recipe, results, used

RIGHT = (10, 12, 210)


def client(lease):
    return gpuslice.open(lease["address"], lease["token_file"])


class Leases:
    """The lease service of a host."""

    def __init__(self, host, out):
        self.host = host
        self.socket, self.out, self.config = os.path.join(host.dir, "leases.sock"), out, os.path.join(host.dir, "leased.toml")
        with open(host.config) as f, open(self.config, "w") as g:
            g.write(f.read() + f'\n[leases]\nsocket = "{self.socket}"\ndir = "{host.dir}/leases"\ncgroup = "{os.path.basename(host.dir)}-leases"\n')
        self.start()

    def start(self):
        log = open(os.path.join(self.out, "gpuslice-leased.log"), "a")
        self.daemon = subprocess.Popen([BIN + "/gpuslice-leased", "--config", self.config], stdout=log, stderr=log)
        for _ in range(200):
            if self.ask("list", "--json")[0] is not None:
                return
            time.sleep(0.05)
        sys.exit("the lease service did not start: " + open(os.path.join(self.out, "gpuslice-leased.log")).read()[-2000:])

    def ask(self, *arguments):
        """The answer, or None and what was said instead."""
        done = subprocess.run([BIN + "/gpuslice", "lease", "--lease-socket", self.socket, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=60)
        if done.returncode != 0:
            return None, done.stderr.strip()
        return (json.loads(done.stdout) if "--json" in arguments else done.stdout), ""

    def acquire(self, vram, *more):
        lease, refusal = self.ask("acquire", "--vram", vram, "--ttl", "10m", "--json", *more)
        if lease is None:
            raise RuntimeError(refusal)
        return lease

    def said(self, lease):
        """What the service logs of a lease's end: by word, as text."""
        with open(os.path.join(self.out, "gpuslice-leased.log")) as f:
            line = next((line for line in f if "lease ended" in line and lease["id"] in line), "")
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def drop(self, lease):
        """How long it takes to the answer, seconds, the program's start included."""
        begin = time.monotonic()
        answer, refusal = self.ask("drop", lease["id"])
        if answer is None:
            raise RuntimeError(refusal)
        return time.monotonic() - begin


def examples(leases):
    done = subprocess.run([BIN + "/lease/examples", "--socket", leases.socket], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={}, timeout=120)
    for line in done.stdout.strip().splitlines():
        check("a program without a driver: " + line.split(":")[0], done.returncode == 0, line.split(":", 1)[-1].strip())
    check("the recipe's results", "recipe: 10 12 210" in done.stdout)


def tenants(leases, vram):
    """As many as the card has room for; each works, and nobody has another's memory."""
    held, refusal = [], ""
    while not refusal and len(held) < 64:
        try:
            held.append(leases.acquire(vram))
        except RuntimeError as e:
            refusal = str(e)
    check(f"leases of {vram} until one is refused", any(lease["id"] in refusal for lease in held), f"{len(held)}; then: {refusal[:300]}")
    sessions = [client(lease) for lease in held]
    works = [recipe(s) for s in sessions]
    check("all of them compute", all(w[0] == RIGHT for w in works))
    named = []
    for s in sessions[1:]:
        works[sessions.index(s)][1].free()
        try:
            s._stream.ask("mem_read", handle=works[0][1]._handle, bytes=1)
            named.append("read")
        except gpuslice.Error as e:
            named.append(e.code)
    check("none can name another's memory", set(named) <= {"INVALID_HANDLE"}, sorted(set(named)))
    full = sessions[0].stats()["vram"]
    big = sessions[0].zeros(full - 12, "B")
    check("a lease's vram can be allocated to the last byte", big.address > 0, f"{full} bytes")
    for s in sessions:
        s.close()
    took = [leases.drop(lease) for lease in held]
    check("they are dropped", True, f"{1000 * max(took):.0f} ms at most")


def faults(leases):
    """One tenant's kernels write where nothing is, in lease after lease; the other one computes."""
    victim = leases.acquire("64M")
    session = client(victim)
    right, wrong, stop = [0], [], threading.Event()

    def compute():
        while not stop.is_set():
            got = recipe(session)[0]
            right[0] += got == RIGHT
            if got != RIGHT:
                wrong.append(got)
            session.sync()

    thread = threading.Thread(target=compute)
    thread.start()
    codes, followed, again = set(), set(), []
    for _ in range(5):
        lease = leases.acquire("64M")
        culprit = client(lease)
        try:
            illegal(culprit)
            codes.add("no failure")
        except gpuslice.Error as e:
            codes.add(e.code)
        shown = {}
        for _ in range(250):
            shown, _ = leases.ask("show", "--json", lease["id"])
            if shown and shown.get("restarts"):
                break
            time.sleep(0.02)
        followed.add(f"{shown['state']}, {shown.get('restarts', 0)} time: {shown.get('restart_reason')}")
        again.append(recipe(client(lease))[0])
        leases.drop(lease)
    stop.set()
    thread.join()
    check("an illegal address in lease after lease", codes == {"SYNC_FAILED"}, f"{sorted(codes)}")
    check("each of these leases has another broker", followed == {"active, 1 time: a device fault destroyed its context"}, sorted(followed))
    check("and works again", again == [RIGHT] * 5, again)
    check("the other lease's results are right all the time", right[0] > 0 and not wrong, f"{right[0]} right, {len(wrong)} wrong")
    session.close()
    leases.drop(victim)


def seconds(duration):
    """A duration as Go writes those below a minute."""
    for unit, factor in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1)):
        if duration.endswith(unit):
            return float(duration.removesuffix(unit)) * factor
    raise ValueError(duration)


def spread(took):
    return f"median {1000 * took[len(took) // 2]:.0f} ms, the slowest {', '.join(f'{1000 * t:.0f}' for t in took[-3:])}"


def many(leases, count):
    """Dropped one after the other, beside one more: the driver takes longer to end the card's last context."""
    last = leases.acquire("64M")
    recipe(client(last))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda _: leases.acquire("64M"), range(count)))
        worked = list(pool.map(lambda lease: recipe(client(lease))[0], held))
        check(f"{count} leases of 64 MiB at a time compute", worked == [RIGHT] * count)
    took = sorted(leases.drop(lease) for lease in held)
    ended = sorted(seconds(leases.said(lease)["took"]) for lease in held)
    late = sum(t > 0.1 for t in ended)
    # The promise is 100 ms; a machine with other work is allowed ten times that, and the simulated one more.
    allowed = 20 if SIMULATED else 1
    check("each has ended soon after its drop, while the card has another context", took[-1] < allowed and ended[-1] < allowed,
          f"{spread(ended)}, {late} beyond the promised 100 ms; `gpuslice lease drop`: {spread(took)}")
    took = leases.drop(last)
    check("the card's last context has ended soon after its drop", took < allowed, f"{leases.said(last)['took']}; `gpuslice lease drop`: {1000 * took:.0f} ms")


def drop_stages(leases, rounds=5):
    """One lease at a time: what the client waits for, what the service waits for, and what the kernel shows of the broker meanwhile."""
    for kind in ("nobody is connected", "a client is idle", "a kernel never ends"):
        if kind == "a kernel never ends" and SIMULATED:
            continue
        for _ in range(rounds):
            lease = leases.acquire("64M")
            session = None
            if kind != "nobody is connected":
                session = client(lease)
                recipe(session)
            if kind == "a kernel never ends":
                session.module(ENDLESS).endless[1, 1]()
            pid = next(p["pid"] for s in leases.host.ps() if s["id"] == lease["id"] for p in leases.host.inspect(s["id"])["processes"])
            seen, begin = {}, time.monotonic()

            def watch(pid=pid, seen=seen, begin=begin):
                while "gone" not in seen:
                    now = f"{1000 * (time.monotonic() - begin):.0f} ms"
                    try:
                        with open(f"/proc/{pid}/stat") as f:
                            fields = f.read().rpartition(")")[2].split()
                        state, threads = fields[0], fields[17]
                        if state in "ZX" or threads == "0":
                            seen.setdefault("ends, with its first thread a zombie", now)
                        elif threads == "1":
                            seen.setdefault("one thread is left", now)
                    except (FileNotFoundError, ProcessLookupError):
                        seen["gone"] = now
                    time.sleep(0.0005)

            thread = threading.Thread(target=watch)
            thread.start()
            took = leases.drop(lease)
            thread.join(10)
            stages = " ".join(f"{name.removeprefix('stages.')}={value}" for name, value in leases.said(lease).items() if name.startswith(("took", "stages.")))
            print(f"{kind}: `gpuslice lease drop` {1000 * took:.0f} ms; the service: {stages}; the broker: {seen}", flush=True)
            if session:
                session.close()
    took = []
    for _ in range(rounds):
        begin = time.monotonic()
        leases.ask("list", "--json")
        took.append(time.monotonic() - begin)
    print("a `gpuslice lease list` beside it, which waits for nothing:", ", ".join(f"{1000 * t:.0f}" for t in took), "ms", flush=True)


def killed(leases):
    """What the driver itself needs to end such a process, the card's last context, for comparison."""
    took = []
    for _ in range(5):
        lease = leases.acquire("64M")
        recipe(client(lease))
        pid = next(p["pid"] for s in leases.host.ps() if s["id"] == lease["id"] for p in leases.host.inspect(s["id"])["processes"])
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.001)
        took.append(time.monotonic() - begin)
        leases.drop(lease)
    check("a broker that is killed, the card's last context, is gone", True, ", ".join(f"{1000 * t:.0f}" for t in took) + " ms")


def reserve(leases, vram, size):
    before = used()
    lease = leases.acquire(vram, "--reserve")
    held = used() - before
    check("a reserved lease holds its memory on the card", SIMULATED or held * MIB >= size, f"{held} MiB more are used")
    leases.drop(lease)


def restarts(leases, host):
    lease = leases.acquire("64M")
    session = client(lease)
    leases.daemon.kill()
    leases.daemon.wait()
    host.daemon.kill()
    host.daemon.wait()
    check("a broker works while both daemons are dead", recipe(session)[0] == RIGHT)
    host.start()
    leases.start()
    shown, _ = leases.ask("show", "--json", lease["id"])
    check("both find it again", shown and shown["state"] == "active", shown and shown["state"])
    check("and it works", recipe(session)[0] == RIGHT)
    session.close()
    leases.drop(lease)


def unattached(leases, host):
    """A broker that cannot reach the enforcer's socket."""
    os.chmod(host.run_dir, 0o700)
    try:
        lease, refusal = leases.ask("acquire", "--vram", "64M", "--json")
    finally:
        os.chmod(host.run_dir, 0o711)
    check("a broker that cannot attach names the cause", lease is None and "attach.sock" in refusal and "permission denied" in refusal, refusal)
    with open(os.path.join(leases.out, "gpuslice-leased.log")) as f:
        said = [line.strip() for line in f if "a broker wrote" in line and "gpuslice: " in line and host.run_dir in line and "Permission denied" in line]
    check("and so does the interceptor, once", len(said) == 1, said)


def everything(leases, host, options):
    examples(leases)
    tenants(leases, options.tenant)
    if not SIMULATED:
        faults(leases)
    many(leases, options.small)
    killed(leases)
    reserve(leases, "20G", 20 * GIB)
    restarts(leases, host)
    unattached(leases, host)
    done = subprocess.run([BIN + "/session", "acquire", leases.socket], check=False)
    check("an acquisition beside a plain program", done.returncode == 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-leases-"))
    parser.add_argument("--small", type=int, default=64)
    parser.add_argument("--tenant", default="7G")
    parser.add_argument("--drops", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    before = used()
    host = Host(options.out)
    leases = Leases(host, options.out)
    try:
        if options.drops:
            drop_stages(leases)
        else:
            everything(leases, host, options)
        left, _ = leases.ask("list", "--json")
        check("no lease is left", left == [], left or "")
        check("no slice is left", host.ps() == [])
    finally:
        leases.daemon.send_signal(signal.SIGTERM)
        leases.daemon.wait()
        host.stop()
    for _ in range(100):
        if used() <= before:
            break
        time.sleep(0.1)
    check("the card holds nothing", used() <= before, f"{used() - before} MiB more than before")
    print(f"{sum(results)} of {len(results)} promises kept; logs in {options.out}")
    return len(results) - sum(results)


if __name__ == "__main__":
    sys.exit(main())
