#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU sessions on a real GPU: what a client can do, what it cannot, faults, and what a session costs.

Run as root on a machine with an NVIDIA GPU, after `make card-programs`:

    test/gpu/lease.py [--quick] [--no-speed]

Needs grpcio; no Go, no runc, no network, no gpusliced. Under the simulated driver: LD_LIBRARY_PATH=$PWD/bin/fakecuda and
FAKECUDA_STATE, a file that is not there yet.

Prints a line per promise, then the table of times. The exit status is the number of promises not kept; no time is one.
"""
import argparse
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import grpc

sys.dont_write_bytecode = True  # it would lie in the source tree
import session_client
from session_client import Failed, Protocol, Session

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = ROOT + "/bin"
MIB = 1 << 20
SIMULATED = "FAKECUDA_STATE" in os.environ
results = []


def kernel(name, body):
    """A kernel over n floats, of which each thread has one."""
    return f"""
.visible .entry {name}(.param .u64 data, .param .f32 value, .param .u32 n)
{{
	.reg .pred %p<2>;
	.reg .f32 %f<4>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [data];
	ld.param.f32 %f1, [value];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra DONE;
	cvta.to.global.u64 %rd2, %rd1;
	mul.wide.u32 %rd3, %r5, 4;
	add.s64 %rd4, %rd2, %rd3;
	ld.global.f32 %f2, [%rd4];
	{body}
	st.global.f32 [%rd4], %f3;
DONE:
	ret;
}}
"""


HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
SCALE = (HEAD + kernel("scale", "mul.f32 %f3, %f2, %f1;")).encode()
BIAS = (HEAD + kernel("bias", "add.f32 %f3, %f2, %f1;")).encode()
ENDLESS = (HEAD + ".visible .entry endless()\n{\nAGAIN:\n\tbra AGAIN;\n}\n").encode()
FRAME = (HEAD + """.visible .entry frame(.param .u64 out)
{
	.local .align 4 .b8 stack[204800];
	.reg .b32 %r<3>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	mov.u64 %rd2, stack;
	cvt.u64.u32 %rd3, %r1;
	add.s64 %rd2, %rd2, %rd3;
	st.local.u32 [%rd2], %r1;
	ld.local.u32 %r2, [%rd2];
	st.global.u32 [%rd1], %r2;
	ret;
}
""").encode()


def check(name, ok, seen=""):
    results.append(bool(ok))
    print(f"{'PASS' if ok else 'FAIL'}  {name}{': ' if seen else ''}{seen}", flush=True)


def fails(name, code, call, *arguments, says=""):
    """The call fails with that code, a sentence, and that word in what it says."""
    try:
        call(*arguments)
        check(name, False, "it succeeds")
    except Failed as e:
        check(name, e.code == code and e.failure.message and says in str(e), e)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def used():
    if SIMULATED:
        return 0
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(text.split()[0])


class Broker:
    def __init__(self, directory, vram="64M", quota="1G", *flags):
        self.directory = directory
        begin = time.monotonic()
        self.process = subprocess.Popen([BIN + "/gpuslice", "run", "--embedded", "--quiet", "--vram", quota, "--", BIN + "/gpuslice-broker",
                                         "--directory", directory, "--vram", vram, *flags], stdout=subprocess.PIPE, text=True)
        self.lines = [self.process.stdout.readline() for _ in range(2)]
        self.took = time.monotonic() - begin

    def pid(self):
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/children") as f:
                for child in f.read().split():
                    return int(child)
        raise RuntimeError("it has no broker")

    def end(self, how=signal.SIGTERM):
        begin = time.monotonic()
        os.kill(self.pid(), how)
        status = self.process.wait()
        return status, time.monotonic() - begin


def recipe(session):
    """Two kernels, one buffer: 2x + 10."""
    data = session.alloc(12)
    session.write(data, 0, floats(0, 1, 100))
    scale, bias = session.load(SCALE), session.load(BIAS)
    session.launch(scale, "scale", [data, floats(2), struct.pack("<I", 3)], block=32)
    session.launch(bias, "bias", [data, floats(10), struct.pack("<I", 3)], block=32)
    session.sync()
    return struct.unpack("<3f", session.read(data, 0, 12)), data, scale


def documented(directory, work):
    """Runs session_client's example as it is printed, but for the lease's directory."""
    lines = [line[4:] for line in session_client.__doc__.splitlines() if line.startswith("    ")]
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    program = "\n".join(line for line in lines if not line.startswith("$ ")).replace("/run/gpuslice/leases/ID", directory)
    place = os.path.join(work, "documented")
    os.mkdir(place)
    os.symlink(BIN, place + "/bin")
    done = [subprocess.run(command, shell=True, cwd=place, stderr=subprocess.PIPE, text=True, check=False) for command in commands]
    check("the documented command", done and not any(d.returncode for d in done), f"{commands}{''.join(d.stderr for d in done)}")
    names = {**vars(session_client), "struct": struct, "data": floats(0, 1, 100), "ptx": SCALE}
    exec(program.replace('"session.pb"', repr(place + "/session.pb")), names)
    session = names["session"]
    check("the documented program", session.read(names["handle"], 0, 12) == floats(0, 2, 200))
    session.close()


def bad_input(session, protocol, data, module):
    fails("more than the lease", "ALLOC_FAILED", session.alloc, 64 * MIB, says="buffers")
    fails("nearly 2^64 bytes", "ALLOC_FAILED", session.alloc, 2**64 - 5)
    fails("0 bytes", "INVALID_REQUEST", session.alloc, 0)
    for handle in (0, 99, 2**63):
        fails(f"handle {handle}", "INVALID_HANDLE", session.read, handle, 0, 1)
    fails("a read past the end", "INVALID_HANDLE", session.read, data, 8, 5)
    fails("an offset near 2^64", "INVALID_HANDLE", session.write, data, 2**64 - 4, b"12345678")
    fails("garbage for PTX", "LOAD_FAILED", session.load, b"garbage")
    if not SIMULATED:
        broken = SCALE.replace(b"mul.f32", b"mull.f32")
        try:
            session.load(broken)
            check("PTX with a word that there is not", False)
        except Failed as e:
            check("PTX with a word that there is not: the compiler's log", e.code == "LOAD_FAILED" and "mull" in e.failure.log, e.failure.log.strip()[:120])
        fails("PTX of a version to come", "LOAD_FAILED", session.load, SCALE.replace(b".version 7.0", b".version 99.0"))
        fails("PTX for another architecture", "LOAD_FAILED", session.load, SCALE.replace(b"sm_50", b"sm_121"))
    arguments = [data, floats(1), struct.pack("<I", 3)]
    for name, call in {
            "no such kernel": lambda: session.launch(module, "other", arguments),
            "too many threads": lambda: session.launch(module, "scale", arguments, block=1025),
            **({} if SIMULATED else {
                "an argument missing": lambda: session.launch(module, "scale", arguments[:2]),
                "an argument of 8 bytes for 4": lambda: session.launch(module, "scale", [data, bytes(8), struct.pack("<I", 3)]),
                "too large a grid in y": lambda: session.ask("launch", module=module, kernel="scale", grid=protocol.Dim(x=1, y=65536), arguments=[
                    protocol.Argument(pointer=protocol.Pointer(handle=data)), protocol.Argument(raw=floats(1)), protocol.Argument(raw=bytes(4))]),
            })}.items():
        fails(name, "LAUNCH_FAILED", call)
        fails(f"{name}: the sync after it", "SYNC_FAILED", session.sync)
    session.sync()


def fresh_memory(session):
    whole = session.alloc(32 * MIB)
    session.ask("mem_set", handle=whole, bytes=32 * MIB, value=255)
    session.free(whole)
    again = session.alloc(32 * MIB)
    data = session.read(again, 16 * MIB, 16 * MIB)
    session.free(again)
    check("fresh memory shows nothing of what was there", not data.strip(b"\0"))


def faults(victim, culprit):
    """One session's kernel writes to an address that is none, which ends that session; the other computes meanwhile."""
    right, wrong, stop = [0], [], threading.Event()

    def compute():
        data, module = victim.alloc(4 * MIB), victim.load(SCALE)
        while not stop.is_set():
            victim.write(data, 0, floats(*range(1024)))
            victim.launch(module, "scale", [data, floats(3), struct.pack("<I", 1024)], grid=8, block=128)
            got = struct.unpack("<1024f", victim.read(data, 0, 4096))
            if got == tuple(3.0 * i for i in range(1024)):
                right[0] += 1
            else:
                wrong.append(got[:4])

    thread = threading.Thread(target=compute)
    thread.start()
    module = culprit.load(SCALE)
    culprit.launch(module, "scale", [struct.pack("<Q", 0x10), floats(1), struct.pack("<I", 32)], block=32)
    try:
        culprit.sync()
        seen = "no failure"
    except Failed as e:
        seen = e.code
    check("an illegal address: SYNC_FAILED", seen == "SYNC_FAILED", seen)
    time.sleep(1)
    stop.set()
    thread.join()
    check("the other session's results are right all the time", right[0] > 0 and not wrong, f"{right[0]} right, {len(wrong)} wrong")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the measurements")
    parser.add_argument("--no-speed", action="store_true", help="no measurements")
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="lease-", dir="/tmp")
    protocol = Protocol(subprocess.run([BIN + "/session", "descriptor"], stdout=subprocess.PIPE, check=True).stdout)
    before = used()
    brokers = []

    def broker(name, *arguments):
        brokers.append(Broker(os.path.join(work, name), *arguments))
        return brokers[-1]

    try:
        tests = BIN + "/session-tests/lease.test"
        if not SIMULATED:
            done = subprocess.run([tests], cwd=ROOT + "/lease", env={**os.environ, "GPUSLICE_TEST_CARD": "1"}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=500)
            check("the Go client's tests", done.returncode == 0, done.stdout.strip()[-1500:] if done.returncode else "")
        first, second = broker("one"), broker("two")
        check("a broker serves", first.lines[0].startswith("address"), f"{first.took:.2f} s after gpuslice run began")
        with open(f"/proc/{first.pid()}/status") as f:
            status = dict(line.split(":", 1) for line in f)
        check("it runs under seccomp, without new privileges", status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1")
        one, two = Session(first.directory, protocol), Session(second.directory, protocol)
        got, data, module = recipe(one)
        check("two kernels, one buffer", got == (10, 12, 210), got)
        fails("another session's handle", "INVALID_HANDLE", two.read, data, 0, 1)
        documented(first.directory, work)
        bad_input(one, protocol, data, module)
        fresh_memory(one)
        if not SIMULATED:
            faults(one, Session(broker("faulty").directory, protocol))
            frame = one.load(FRAME)
            try:
                one.launch(frame, "frame", [data])
                one.sync()
                check("a frame of 200 KiB", False, "it ran in a slice of 1G")
            except Failed as e:
                check("a frame of 200 KiB", e.code in ("LAUNCH_FAILED", "LOAD_FAILED"), e)
            fails("the sync after it", "SYNC_FAILED", one.sync)
            check("and its session goes on", recipe(one)[0] == (10, 12, 210))
            endless = two.load(ENDLESS)
            two.launch(endless, "endless")
        status, took = second.end(signal.SIGKILL if not SIMULATED else signal.SIGTERM)
        check("a broker with a kernel that never ends is killed", True, f"exit {status}, {1000 * took:.0f} ms")
        check("the other one computes", recipe(one)[0] == (10, 12, 210))
        status, took = first.end()
        check("a broker ends by SIGTERM", status == 0, f"exit {status}, {1000 * took:.0f} ms")
        if not SIMULATED:  # whatever the driver makes of it: the broker may end, and takes nobody with it
            elf = broker("elf")
            four = Session(elf.directory, protocol)
            try:
                four.load(b"\x7fELF\x02\x01\x01" + bytes(57))
                check("an ELF file that is cut off", False, "it is loaded")
            except (Failed, StopIteration, grpc.RpcError) as e:
                check("an ELF file that is cut off", True, e)
        held = broker("reserved", "256M", "1G", "--reserve")
        three = Session(held.directory, protocol)
        check("a reserved session computes", recipe(three)[0] == (10, 12, 210), f"{used() - before} MiB of the card are held")
        if not SIMULATED:
            try:
                m = three.load(SCALE)
                three.launch(m, "scale", [struct.pack("<Q", 0x10), floats(1), struct.pack("<I", 32)], block=32)
                three.sync()
            except Failed as e:
                check("a fault in a reserved session", e.code == "SYNC_FAILED", e)
        held.end()
    finally:
        for b in brokers:
            if b.process.poll() is None:
                b.end()
        shutil.rmtree(work, ignore_errors=True)
    for _ in range(100):
        if used() <= before:
            break
        time.sleep(0.1)
    check("the card holds nothing", used() <= before, f"{used() - before} MiB more than before")
    if not options.no_speed:
        print("\n## what a session costs\n", flush=True)
        done = subprocess.run([BIN + "/session", "speed", "-bin", BIN, *(["-quick"] if options.quick else [])], check=False)
        check("the measurements", done.returncode == 0)
    print(f"\n{sum(results)} of {len(results)} promises kept")
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
