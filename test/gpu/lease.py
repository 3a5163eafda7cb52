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
import array
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # it would lie in the source tree
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/lease/python")
import gpuslice

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
FACTOR = (HEAD + ".visible .const .align 4 .f32 factor;\n" + kernel("scale", "ld.const.f32 %f1, [factor];\n\tmul.f32 %f3, %f2, %f1;")).encode()
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
    """The call fails with that code, or one of several, a sentence, and that word in what it says."""
    try:
        call(*arguments)
        check(name, False, "it succeeds")
    except gpuslice.Error as e:
        check(name, (e.code in code if isinstance(code, tuple) else e.code == code) and e.message and says in str(e), e)


def floats(*values):
    return array.array("f", values)


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

    def open(self):
        return gpuslice.open(f"unix:{self.directory}/session.sock", f"{self.directory}/token")

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
    """Two kernels, one array: 2x + 10."""
    data, scale = session.array(floats(0, 1, 100)), session.module(SCALE)
    scale.scale[1, 32](data, 2.0, 3)
    session.module(BIAS).bias[1, 32](data, 10.0, 3)
    session.sync()
    return tuple(data.get().tolist()), data, scale


def variable(session):
    """A constant of a module, written before each of two launches."""
    data, module = session.array(floats(1, 2)), session.module(FACTOR)
    for value in (3, 5):
        module.variable("factor").set(floats(value))
        module.scale[1, 32](data, 0.0, 2)
    check("a module's variable", data.get().tolist() == [15, 30], f"compute capability {session.compute_capability}")


def illegal(session):
    """A kernel that writes to an address that is none."""
    session.module(SCALE).scale[1, 32](ctypes.c_uint64(0x10), 1.0, 32)
    session.sync()


def bad_input(session, data, module):
    ask = session._stream.ask
    fails("more than the lease", "ALLOC_FAILED", session.zeros, 64 * MIB, "B", says="buffers")
    fails("nearly 2^64 bytes", "ALLOC_FAILED", session.zeros, 2**64 - 5, "B")
    fails("0 bytes", "INVALID_REQUEST", session.zeros, 0)
    for handle in (0, 99, 2**63):
        fails(f"handle {handle}", "INVALID_HANDLE", lambda handle=handle: ask("mem_read", handle=handle, bytes=1))
    fails("a read past the end", "INVALID_HANDLE", lambda: ask("mem_read", handle=data._handle, offset=8, bytes=5))
    fails("an offset near 2^64", "INVALID_HANDLE", lambda: ask("mem_write", handle=data._handle, offset=2**64 - 4, data=b"12345678"))
    fails("garbage for PTX", "LOAD_FAILED", session.module, b"garbage")
    if not SIMULATED:
        try:
            session.module(SCALE.replace(b"mul.f32", b"mull.f32"))
            check("PTX with a word that there is not", False)
        except gpuslice.LoadFailed as e:
            check("PTX with a word that there is not: the compiler's log", "mull" in e.log, e.log.strip()[:120])
        fails("PTX of a version to come", "LOAD_FAILED", session.module, SCALE.replace(b".version 7.0", b".version 99.0"))
    fails("PTX for another architecture", "LOAD_FAILED", session.module, SCALE.replace(b"7.0", b"8.8").replace(b"sm_50", b"sm_121"), says="compute capability")
    for name, call in {
            "no such kernel": lambda: module.other[1, 1](data, 1.0, 3),
            "too many threads": lambda: module.scale[1, 1025](data, 1.0, 3),
            **({} if SIMULATED else {
                "an argument missing": lambda: module.scale[1, 1](data, 1.0),
                "an argument of 8 bytes for 4": lambda: module.scale[1, 1](data, ctypes.c_double(1), 3),
                "too large a grid in y": lambda: module.scale[(1, 65536), 1](data, 1.0, 0),
            })}.items():
        call()
        fails(name, "LAUNCH_FAILED", session.sync)
    session.sync()


def fresh_memory(session):
    whole = session.zeros(32 * MIB, "B")
    whole.memset(255)
    whole.free()
    again = session.zeros(32 * MIB, "B")
    check("fresh memory shows nothing of what was there", not bytes(memoryview(again.get())).strip(b"\0"))
    again.free()


def faults(victim, culprit):
    """One session's kernel writes to an address that is none, which ends that session; the other computes meanwhile."""
    right, wrong, stop = [0], [], threading.Event()

    def compute():
        data, module = victim.zeros(1024), victim.module(SCALE)
        while not stop.is_set():
            data.set(floats(*range(1024)))
            module.scale[8, 128](data, 3.0, 1024)
            got = data.get().tolist()
            if got == [3.0 * i for i in range(1024)]:
                right[0] += 1
            else:
                wrong.append(got[:4])

    thread = threading.Thread(target=compute)
    thread.start()
    fails("an illegal address", "SYNC_FAILED", illegal, culprit)
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
        one, two = first.open(), second.open()
        got, data, module = recipe(one)
        check("two kernels, one buffer", got == (10, 12, 210), got)
        fails("another session's handle", "INVALID_HANDLE", lambda: two._stream.ask("mem_read", handle=data._handle, bytes=1))
        bad_input(one, data, module)
        variable(one)
        fresh_memory(one)
        if not SIMULATED:
            faults(one, broker("faulty").open())
            one.module(FRAME).frame[1, 1](data)
            fails("a frame of 200 KiB in a slice of 1G", "LAUNCH_FAILED", one.sync)
            check("and its session goes on", recipe(one)[0] == (10, 12, 210))
            two.module(ENDLESS).endless[1, 1]()
        status, took = second.end(signal.SIGKILL if not SIMULATED else signal.SIGTERM)
        check("a broker with a kernel that never ends is killed", True, f"exit {status}, {1000 * took:.0f} ms")
        check("the other one computes", recipe(one)[0] == (10, 12, 210))
        status, took = first.end()
        check("a broker ends by SIGTERM", status == 0, f"exit {status}, {1000 * took:.0f} ms")
        if not SIMULATED:  # whatever the driver makes of it: the broker may end, and takes nobody with it
            elf = broker("elf")
            four = elf.open()
            fails("an ELF file that is cut off", ("LOAD_FAILED", "LEASE_EXPIRED", "SYNC_FAILED", ""), four.module, b"\x7fELF\x02\x01\x01" + bytes(57))
        held = broker("reserved", "256M", "1G", "--reserve")
        three = held.open()
        check("a reserved session computes", recipe(three)[0] == (10, 12, 210), f"{used() - before} MiB of the card are held")
        if not SIMULATED:
            fails("a fault in a reserved session", "SYNC_FAILED", illegal, three)
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
