#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows on a real GPU what the simulation cannot prove: real containers, real frameworks, real driver.

Run as root on a machine with an NVIDIA GPU, PyTorch, nvcc and runc, after `make build`:

    RUNC=/path/to/runc test/gpu/check.py [--out DIR] [--only NAME,...]

Needs no Go and no network. Starts an enforcer of its own, with its directories under a
temporary one, and stops it. Prints a line per promise and exits with the number of those not kept.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.path.join(ROOT, "bin")
RUNC = os.environ.get("RUNC") or shutil.which("runc") or "runc"
GIB, MIB = 1 << 30, 1 << 20

results = []


def check(name, ok, seen):
    results.append((name, bool(ok), seen))
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {seen}", flush=True)


def output(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more).stdout


def fields(text):
    """The key=value words of the last line that has `total=`."""
    line = next((l for l in reversed(text.splitlines()) if "total=" in l), "")
    return dict(re.findall(r"(\w+)=(\S+)", line))


class Host:
    """An enforcer and bundles, below one temporary directory."""

    def __init__(self, out):
        self.dir = tempfile.mkdtemp(prefix="gpuslice-gpu-")
        self.out = out
        self.socket = os.path.join(self.dir, "run", "gpuslice.sock")
        self.config = os.path.join(self.dir, "config.toml")
        with open(self.config, "w") as f:
            f.write(f'''[enforcer]
socket = "{self.socket}"
run_dir = "{self.dir}/run"
state_dir = "{self.dir}/state"
library = "{BIN}/libgpuslice.so"
log_level = "debug"
[runtime]
runtimes = ["{RUNC}"]
''')
        os.environ["GPUSLICE_CONFIG"] = self.config
        self.daemon = None
        self.start()

    def start(self):
        log = open(os.path.join(self.out, "gpusliced.log"), "a")
        self.daemon = subprocess.Popen([BIN + "/gpusliced", "--config", self.config], stdout=log, stderr=log)
        for _ in range(200):
            if os.path.exists(self.socket) and self.daemon.poll() is None:
                return
            time.sleep(0.05)
        sys.exit("the enforcer did not start: " + open(os.path.join(self.out, "gpusliced.log")).read()[-2000:])

    def stop(self):
        self.daemon.terminate()
        self.daemon.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def ps(self):
        return json.loads(subprocess.run([BIN + "/gpuslice", "--socket", self.socket, "ps", "--json"],
                                         stdout=subprocess.PIPE, text=True).stdout or "[]")

    def bundle(self, name, args, annotations, mounts=()):
        """A bundle whose root filesystem is made of the host's own directories, read-only, so that the host's
        Python and driver are in it; /etc is a copy, as an image's would be its own."""
        path = os.path.join(self.dir, name)
        root = os.path.join(path, "rootfs")
        os.makedirs(root)
        binds = []
        for d in ("usr", "bin", "lib", "lib64", "sbin", "opt"):
            if os.path.islink("/" + d):
                os.symlink(os.readlink("/" + d), os.path.join(root, d))
            elif os.path.isdir("/" + d):
                os.mkdir(os.path.join(root, d))
                binds.append(("/" + d, "/" + d, "ro"))
        for d in ("proc", "sys", "dev", "tmp", "etc", "root", "out"):
            os.mkdir(os.path.join(root, d))
        for f in ("ld.so.cache", "ld.so.conf", "passwd", "group", "nsswitch.conf", "hosts"):
            if os.path.exists("/etc/" + f):
                shutil.copy("/etc/" + f, os.path.join(root, "etc", f))
        for d in ("ld.so.conf.d", "alternatives"):
            if os.path.isdir("/etc/" + d):
                shutil.copytree("/etc/" + d, os.path.join(root, "etc", d), symlinks=True)
        out = os.path.join(path, "out")
        os.mkdir(out)
        binds += [(ROOT, ROOT, "ro"), (out, "/out", "rw")] + list(mounts)
        for source, target, _ in binds:
            os.makedirs(root + target, exist_ok=True)
        nodes = [f"/dev/{n}" for n in os.listdir("/dev") if n.startswith("nvidia") and not os.path.isdir(f"/dev/{n}")]
        if os.path.isdir("/dev/nvidia-caps"):
            nodes += ["/dev/nvidia-caps/" + n for n in os.listdir("/dev/nvidia-caps")]
        env = [f"{k}={v}" for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME")]
        subprocess.run([RUNC, "spec"], cwd=path, check=True)
        with open(os.path.join(path, "config.json")) as f:
            spec = json.load(f)
        spec["process"].update(terminal=False, args=args, env=env + ["HOME=/root", "GPUSLICE_DEBUG=1"], cwd="/tmp")
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["annotations"] = annotations
        spec["mounts"] += [{"destination": t, "type": "bind", "source": s, "options": ["rbind", m]} for s, t, m in binds]
        spec["mounts"] += [{"destination": n, "type": "bind", "source": n, "options": ["bind"]} for n in nodes]
        spec["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]}]
        spec["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(spec, f)
        return path, out

    def run(self, name, args, annotations, **more):
        path, _ = self.bundle(name, args, annotations)
        text = output(BIN + "/gpuslice-runtime", "--root", self.dir + "/runc", "run", "--bundle", path, name, **more)
        with open(os.path.join(self.out, name + ".log"), "w") as f:
            f.write(text)
        return text


def smi_sum(pids):
    """What nvidia-smi says that these processes hold, in bytes, and of how many it spoke."""
    rows = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").splitlines()
    used = [int(m) for p, m in (r.split(",") for r in rows if "," in r) if int(p) in pids]
    return sum(used) * MIB, len(used)


def pids_of(host, name):
    state = output(RUNC, "--root", host.dir + "/runc", "ps", "--format", "json", name)
    try:
        return set(json.loads(state) or [])
    except ValueError:
        return set()  # not there yet, or no more


def build_programs(directory):
    os.makedirs(directory, exist_ok=True)
    commands = {
        "fill_static": ["nvcc", "-cudart", "static", "-o", directory + "/fill_static", HERE + "/fill_runtime.c"],
        "fill_shared": ["nvcc", "-cudart", "shared", "-o", directory + "/fill_shared", HERE + "/fill_runtime.c"],
        "fill_driver": ["nvcc", "-o", directory + "/fill_driver", HERE + "/fill_driver.c", "-lcuda"],
    }
    for name, command in commands.items():
        text = output(*command)
        if not os.path.exists(f"{directory}/{name}"):
            check("build " + name, False, text[-300:])


def check_torch(host):
    text = host.run("torch-fill", [sys.executable, HERE + "/in_container.py", "fill"], {"gpuslice.vram": "8G"})
    f = fields(text)
    check("torch sees 8 GiB", f.get("total") == f.get("properties") == str(8 * GIB), f or text[-400:])
    check("torch.OutOfMemoryError past it, and usable after", f.get("error") == "torch.OutOfMemoryError" and
          int(f.get("taken", 0)) < 8 * GIB and f.get("usable_after") == "True",
          re.findall(r"message: .*", text)[:1] or text[-300:])


def check_four(host):
    name = "torch-four"
    path, out = host.bundle(name, [sys.executable, HERE + "/in_container.py", "four", "/out"], {"gpuslice.vram": "8G"})
    log = open(os.path.join(host.out, name + ".log"), "w+")
    container = subprocess.Popen([BIN + "/gpuslice-runtime", "--root", host.dir + "/runc", "run", "--bundle", path, name],
                                 stdout=log, stderr=log)
    worst = [0]
    over = threading.Event()

    def sample():
        while not over.is_set():
            worst[0] = max(worst[0], smi_sum(pids_of(host, name))[0])

    sampler = threading.Thread(target=sample)
    sampler.start()
    for state in ("four", "after"):
        deadline = time.time() + 120
        while not os.path.exists(f"{out}/{state}") and container.poll() is None and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(2.5)  # at rest: two driver-truth intervals
        total, count = smi_sum(pids_of(host, name))
        ps = next((s for s in host.ps() if s["id"] == name), None)
        mine = sum(d["used"] + d["overhead"] for d in ps["devices"]) if ps else -1
        check(f"nvidia-smi's sum within 8 GiB ({state})", count >= 4 and total <= 8 * GIB,
              f"{count} processes, nvidia-smi {total // MIB} MiB, gpuslice ps {mine // MIB} MiB")
        check(f"gpuslice ps agrees with nvidia-smi ({state})", abs(mine - total) <= 2 * MIB * max(count, 1),
              f"difference {(mine - total) / MIB:.1f} MiB; {json.dumps(ps['devices'][0]) if ps else None}")
        open(f"{out}/{state}.seen", "w").close()
    container.wait()
    over.set()
    sampler.join()
    log.seek(0)
    text = log.read()
    check("nvidia-smi's sum never above 8 GiB, sampled throughout", 0 < worst[0] <= 8 * GIB, f"highest {worst[0] // MIB} MiB")
    check("a fifth process is refused while four hold", "fifth: oom exit 3" in text, re.findall(r"fifth:.*", text))
    check("a killed one's memory goes to the next", "after the kill: held" in text, re.findall(r"after the kill:.*", text))
    time.sleep(1)
    check("released at the end", not host.ps(), host.ps())


def check_programs(host, programs):
    cases = [("static cudart", ["fill_static"]), ("shared cudart", ["fill_shared"]), ("linked with libcuda", ["fill_driver"]),
             ("cuMemCreate", ["fill_driver", "vmm"])]
    for title, (program, *rest) in cases:
        inside = fields(host.run("c-" + title.replace(" ", "-"), [f"{programs}/{program}"] + rest, {"gpuslice.vram": "4G"}))
        outside = fields(output(f"{programs}/{program}", *rest))
        check(f"{title} obeys 4G", inside.get("total") == inside.get("properties") == str(4 * GIB) and
              2 * GIB < int(inside.get("taken", 0)) < 4 * GIB and
              inside.get("error", "") in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"), inside)
        check(f"{title} outside is unaffected", int(outside.get("total", 0)) > 40 * GIB and
              int(outside.get("taken", 0)) >= 20 * GIB, outside)


def check_restart(host):
    """The enforcer is killed while a container holds memory; the quota holds, and a restart finds all again."""
    name = "restart"
    path, out = host.bundle(name, [sys.executable, HERE + "/in_container.py", "four", "/out"], {"gpuslice.vram": "8G"})
    log = open(os.path.join(host.out, name + ".log"), "w+")
    container = subprocess.Popen([BIN + "/gpuslice-runtime", "--root", host.dir + "/runc", "run", "--bundle", path, name],
                                 stdout=log, stderr=log)
    while not os.path.exists(f"{out}/four") and container.poll() is None:
        time.sleep(0.05)
    before = next((s for s in host.ps() if s["id"] == name), None)
    host.daemon.send_signal(signal.SIGKILL)
    host.daemon.wait()
    host.start()
    time.sleep(2.5)
    after = next((s for s in host.ps() if s["id"] == name), None)
    use = [sum(d["used"] for d in s["devices"]) if s else -1 for s in (before, after)]
    check("kill -9 of the enforcer: the slice is found again with the same use", use[0] == use[1] > 0, [u // MIB for u in use])
    for state in ("four", "after"):
        while not os.path.exists(f"{out}/{state}") and container.poll() is None:
            time.sleep(0.05)
        open(f"{out}/{state}.seen", "w").close()
    container.wait()
    log.seek(0)
    text = log.read()
    check("and holds its processes to the quota", "fifth: oom exit 3" in text and "after the kill: held" in text,
          re.findall(r"(?:fifth|after the kill):.*", text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=tempfile.gettempdir(), help="where logs are kept")
    parser.add_argument("--only", default="torch,four,programs,restart", help="which of torch, four, programs, restart")
    arguments = parser.parse_args()
    print(output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").strip(), flush=True)
    print(output(RUNC, "--version").splitlines()[0], "kernel", os.uname().release, flush=True)
    only = arguments.only.split(",")
    host = Host(arguments.out)
    try:
        programs = os.path.join(ROOT, "bin", "gpu-test")
        if "programs" in only:
            build_programs(programs)
            check_programs(host, programs)
        if "torch" in only:
            check_torch(host)
        if "four" in only:
            check_four(host)
        if "restart" in only:
            check_restart(host)
    finally:
        host.stop()
    failed = [r for r in results if not r[1]]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
