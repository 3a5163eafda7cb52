# SPDX-License-Identifier: Apache-2.0
"""What the programs that run on a real GPU share: a line per promise, an enforcer of their own, bundles, containers, and what the
driver says that a container's processes hold.
"""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.path.join(ROOT, "bin")
RUNC = os.environ.get("RUNC") or shutil.which("runc") or "runc"
GIB, MIB = 1 << 30, 1 << 20


def output(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more).stdout


# A part that is over its time removes its containers: the next one would find their cgroups.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
results = []


def check(name, ok, seen):
    """Prints whether a promise is kept, and keeps that in results."""
    results.append(bool(ok))
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {seen}", flush=True)


def eventually(is_so, patience=30.0):
    """Waits until is_so() returns something true, and returns it; the last it returned if it never does."""
    deadline = time.monotonic() + patience
    while True:
        value = is_so()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.02)


def deny_write_execute():
    """MemoryDenyWriteExecute of the systemd unit, by Linux 6.3 or newer: gpusliced, NVML and the driver's checkpoint work without such memory."""
    ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN


class Host:
    """An enforcer and bundles, below one temporary directory."""

    def __init__(self, out, enforcer=""):
        """enforcer: more lines of the configuration's [enforcer]."""
        self.dir = tempfile.mkdtemp(prefix="gpuslice-gpu-")
        self.out = out
        # In memory, as /run is. A lease's broker has a uid of its own, and reaches the attach socket through both directories.
        self.run_dir = tempfile.mkdtemp(prefix="gpuslice-run-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        for directory in (self.dir, self.run_dir):
            os.chmod(directory, 0o711)
        self.socket = os.path.join(self.run_dir, "gpuslice.sock")
        self.config = os.path.join(self.dir, "config.toml")
        with open(self.config, "w") as f:
            f.write(f'''[enforcer]
socket = "{self.socket}"
run_dir = "{self.run_dir}"
state_dir = "{self.dir}/state"
library = "{BIN}/libgpuslice.so"
log_level = "debug"
{enforcer}
[runtime]
runtimes = ["{RUNC}"]
''')
        os.environ["GPUSLICE_CONFIG"] = self.config
        self.daemon = None
        self.start()

    def start(self):
        log = open(os.path.join(self.out, "gpusliced.log"), "a")
        self.daemon = subprocess.Popen([BIN + "/gpusliced", "--config", self.config], stdout=log, stderr=log, preexec_fn=deny_write_execute)
        for _ in range(200):
            if os.path.exists(self.socket) and self.daemon.poll() is None:
                return
            time.sleep(0.05)
        sys.exit("the enforcer did not start: " + open(os.path.join(self.out, "gpusliced.log")).read()[-2000:])

    def stop(self):
        self.daemon.terminate()
        try:
            self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            check("gpusliced ends within 30 s", False, "it was killed")
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def ps(self):
        return json.loads(subprocess.run([BIN + "/gpuslice", "--socket", self.socket, "ps", "--json"],
                                         stdout=subprocess.PIPE, text=True, timeout=20).stdout or "[]")

    def inspect(self, name):
        return json.loads(subprocess.run([BIN + "/gpuslice", "--socket", self.socket, "inspect", "--json", name],
                                         stdout=subprocess.PIPE, text=True, check=True, timeout=20).stdout)

    def devices(self):
        return json.loads(subprocess.run([BIN + "/gpuslice", "--socket", self.socket, "devices", "--json"],
                                         stdout=subprocess.PIPE, text=True, check=True, timeout=20).stdout)

    def bundle(self, name, args, annotations, mounts=(), env=None, bound=None):
        """A bundle whose root filesystem is made of the host's own directories, read-only, so that the host's
        Python and driver are in it; /etc is a copy, as an image's would be its own. Returns its path, and the
        directory that is /out in it. Where CDI brings the GPU,
        bound are the directories that the driver's files are not in, and no device is in the bundle."""
        path = os.path.join(self.dir, name)
        root = os.path.join(path, "rootfs")
        os.makedirs(root)
        binds = []
        for d in ("usr", "bin", "lib", "lib64", "sbin", "opt"):
            if os.path.islink("/" + d):
                os.symlink(os.readlink("/" + d), os.path.join(root, d))
            elif os.path.isdir("/" + d) and not (bound and d in ("usr", "opt")):
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
        binds += [(d, d, "ro") for d in bound or ()]
        binds += [(ROOT, ROOT, "ro"), (out, "/out", "rw")] + list(mounts)
        machine = os.environ.get("FAKECUDA_STATE")  # the simulated driver's, where that is what the loader finds
        if machine:
            binds.append((os.path.dirname(machine), os.path.dirname(machine), "rw"))
        for source, target, _ in binds:
            os.makedirs(root + target, exist_ok=True)
        nodes = [f"/dev/{n}" for n in os.listdir("/dev") if n.startswith("nvidia") and not os.path.isdir(f"/dev/{n}")]
        if bound:
            nodes = []
        elif os.path.isdir("/dev/nvidia-caps"):
            nodes += ["/dev/nvidia-caps/" + n for n in os.listdir("/dev/nvidia-caps")]
        names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME")
        kept = {k: v for k, v in os.environ.items() if k in names or k.startswith("FAKECUDA_")}
        kept.update({"HOME": "/root", "GPUSLICE_DEBUG": "1"}, **(env or {}))
        subprocess.run([RUNC, "spec"], cwd=path, check=True)
        with open(os.path.join(path, "config.json")) as f:
            spec = json.load(f)
        spec["process"].update(terminal=False, args=args, env=[f"{k}={v}" for k, v in kept.items()], cwd="/tmp")
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["annotations"] = annotations
        spec["mounts"] += [{"destination": t, "type": "bind", "source": s, "options": ["rbind", m]} for s, t, m in binds]
        spec["mounts"] += [{"destination": n, "type": "bind", "source": n, "options": ["bind"]} for n in nodes]
        spec["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]}]
        spec["linux"]["resources"] = {"devices": [{"allow": not bound, "access": "rwm"}]}
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(spec, f)
        return path, out

    def launch(self, path, name, log):
        """Starts a bundle's container; its output goes to the file `log`."""
        return subprocess.Popen([BIN + "/gpuslice-runtime", "--root", self.dir + "/runc", "run", "--bundle", path, name],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def remove(self, name):
        """Kills every process of a container and deletes it; it may be gone already."""
        subprocess.run([RUNC, "--root", self.dir + "/runc", "delete", "--force", name],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)

    def run(self, name, args, annotations, **more):
        path, _ = self.bundle(name, args, annotations)
        text = output(BIN + "/gpuslice-runtime", "--root", self.dir + "/runc", "run", "--bundle", path, name, **more)
        with open(os.path.join(self.out, name + ".log"), "w") as f:
            f.write(text)
        return text


class Truth:
    """What NVML says that each process holds: the figure that nvidia-smi prints, without the time that its start takes."""

    class Process(ctypes.Structure):  # nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3, nvml.h
        _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            sys.exit("NVML does not start: is there a driver?")
        self.devices = [ctypes.c_void_p() for _ in range(count.value)]
        for i, device in enumerate(self.devices):
            self.nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device))

    def processes(self):
        """Bytes by pid, over all devices."""
        held = {}
        for device in self.devices:
            room = 256
            list_ = (self.Process * room)()
            count = ctypes.c_uint(room)
            code = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), list_)
            if code:
                raise OSError(f"nvmlDeviceGetComputeRunningProcesses: {code}")
            for p in list_[:count.value]:
                if p.bytes != (1 << 64) - 1:  # NVML_VALUE_NOT_AVAILABLE
                    held[p.pid] = held.get(p.pid, 0) + p.bytes
        return held

    class Memory(ctypes.Structure):  # nvmlMemory_t
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def used(self):
        """Bytes in use, by whomever, over all devices."""
        sum_, memory = 0, self.Memory()
        for device in self.devices:
            code = self.nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            if code:
                raise OSError(f"nvmlDeviceGetMemoryInfo: {code}")
            sum_ += memory.used
        return sum_


def smi_sum(pids):
    """What nvidia-smi says that these processes hold, in bytes, and of how many it spoke; NVML, where there is no
    nvidia-smi (the simulated driver has none)."""
    if shutil.which("nvidia-smi"):
        rows = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits",
                      timeout=20).splitlines()
        used = [int(m) * MIB for p, m in (r.split(",") for r in rows if "," in r) if int(p) in pids]
    else:
        used = [b for p, b in Truth().processes().items() if p in pids]
    return sum(used), len(used)


def pids_of(host, name):
    state = output(RUNC, "--root", host.dir + "/runc", "ps", "--format", "json", name, timeout=20)
    try:
        return set(json.loads(state) or [])
    except ValueError:
        return set()  # not there yet, or no more
