#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Docker Engine with a real GPU: `docker run --runtime=gpuslice --annotation gpuslice.vram=8G`, end to end.

Run as root on a machine with an NVIDIA GPU and PyTorch, after `make card-programs`:

    test/gpu/docker.py --engines DIR [--out DIR] [--rounds 30] [--starts 50]

DIR has dockerd, containerd, containerd-shim-runc-v2, docker and runc, and nvidia-ctk and nvidia-cdi-hook if the GPU is
to come by CDI (`test/engines/build.sh` makes them all; card.tar.xz there is a set for a machine without network). It needs
no Go, no network and no installed Docker: the daemons are its own, below a temporary directory, and end with it. The image is
made of this machine's own files, which are bound into it. Where there is no PyTorch the demonstration's program takes its place,
so that the script can be tried with the simulated driver.

Shows what its user types and sees; then a line per promise; then what gpuslice adds to `docker run`, in turns with runc. The exit status is the
number of promises not kept.
"""
import argparse
import concurrent.futures
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
import host as hosts
from host import BIN, GIB, HERE, MIB, ROOT, Host, check, output, results, smi_sum

# The runtime as engines before Docker 23 have it.
BY_PATH = "gpuslice-path"


def bound():
    """Host directories that make the image's files. The driver's own are not among them, since NVIDIA's hooks make links there."""
    for top in ("/usr", "/usr/local"):
        for name in sorted(os.listdir(top)):
            path = os.path.join(top, name)
            if path not in ("/usr/local", "/usr/local/nvidia") and os.path.isdir(path) and not os.path.islink(path):
                yield path
    if os.path.isdir("/opt"):
        yield "/opt"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Docker:
    """A Docker Engine below a host's directory."""

    def __init__(self, host, engines, out):
        self.dir, self.out = os.path.join(host.dir, "docker"), out
        os.mkdir(self.dir)
        self.address = self.dir + "/docker.sock"
        self.env = {**os.environ, "PATH": f"{engines}:{BIN}:{os.environ['PATH']}", "DOCKER_HOST": "unix://" + self.address,
                    "DOCKER_CONFIG": self.dir}
        self.daemons = []
        cdi = self.cdi(engines)
        self.gpus = ["--device", "nvidia.com/gpu=all"] if cdi else self.nodes()
        with open(self.dir + "/containerd.toml", "w") as f:
            f.write(f'''version = 2
root = "{self.dir}/containerd/root"
state = "{self.dir}/containerd/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = "{self.dir}/containerd.sock"
''')
        settings = {
            "data-root": self.dir + "/data", "exec-root": self.dir + "/exec", "pidfile": self.dir + "/docker.pid",
            "hosts": ["unix://" + self.address], "containerd": self.dir + "/containerd.sock",
            "bridge": "none", "userland-proxy": False, "iptables": False, "ip6tables": False, "live-restore": True,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "runtimes": {"gpuslice": {"runtimeType": "io.containerd.gpuslice.v1"}, BY_PATH: {"path": BIN + "/gpuslice-runtime"}},
            "storage-driver": "overlay2", "features": {"containerd-snapshotter": False},
        }
        if cdi:
            settings["cdi-spec-dirs"] = [cdi]
        # Where the machine's own files are on an overlay, the kernel makes no second one on top.
        for driver in ("overlay2", "vfs"):
            settings["storage-driver"] = driver
            with open(self.dir + "/daemon.json", "w") as f:
                json.dump(settings, f)
            self.start("containerd", "--config", self.dir + "/containerd.toml")
            self.start("dockerd", "--config-file", self.dir + "/daemon.json")
            if self.up():
                break
            self.stop()
        else:
            sys.exit("dockerd did not start: " + open(out + "/dockerd.log").read()[-3000:])

    def start(self, *command):
        log = open(os.path.join(self.out, command[0] + ".log"), "a")
        program = shutil.which(command[0], path=self.env["PATH"])
        self.daemons.append(subprocess.Popen([program, *command[1:]], env=self.env, stdout=log, stderr=log))

    def up(self):
        for _ in range(300):
            if any(d.poll() is not None for d in self.daemons):
                return False
            if subprocess.run(["docker", "version"], env=self.env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0:
                return True
            time.sleep(0.1)
        return False

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []

    def cdi(self, engines):
        """A directory with NVIDIA's description of this machine's GPUs; None if there is no nvidia-ctk or no GPU."""
        if not os.path.exists(engines + "/nvidia-ctk") or not os.path.exists("/dev/nvidiactl"):
            return None
        directory = self.dir + "/cdi"
        os.mkdir(directory)
        made = subprocess.run([engines + "/nvidia-ctk", "cdi", "generate", "--nvidia-cdi-hook-path", engines + "/nvidia-cdi-hook",
                               "--output", directory + "/nvidia.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with open(self.out + "/nvidia-ctk.log", "w") as f:
            f.write(made.stdout)
        return directory if made.returncode == 0 else None

    @staticmethod
    def nodes():
        words = []
        for name in sorted(os.listdir("/dev")):
            if name.startswith("nvidia") and not os.path.isdir("/dev/" + name):
                words += ["--device", "/dev/" + name]
        if os.path.isdir("/usr/local/nvidia"):  # the driver's libraries, on some machines
            words += ["--volume", "/usr/local/nvidia:/usr/local/nvidia:ro"]
        return words

    def __call__(self, *words, timeout=300, text_input=None):
        done = subprocess.run(["docker", *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              input=text_input, timeout=timeout)
        return done.returncode, done.stdout.decode(errors="replace")

    def image(self, name, make):
        """Imports an image that make(add) writes: add(path) a directory, add(path, file=…), add(path, link=…)."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            def add(path, file=None, link=None):
                if file:
                    tar.add(os.path.realpath(file), path)
                    return
                info = tarfile.TarInfo(path)
                info.type, info.mode = (tarfile.SYMTYPE, 0o777) if link else (tarfile.DIRTYPE, 0o755)
                info.linkname = link or ""
                tar.addfile(info)
            make(add)
        code, text = self("import", "-", name, text_input=data.getvalue())
        if code:
            sys.exit(f"docker import {name}: {text}")


def machine_image(add):
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink("/" + name):
            add(name, link=os.readlink("/" + name))
    for name in ("proc", "sys", "dev", "tmp", "root", "etc", "usr", "opt"):
        add(name)
    for name in ("ld.so.cache", "ld.so.conf", "passwd", "group", "nsswitch.conf"):
        if os.path.exists("/etc/" + name):
            add("etc/" + name, file="/etc/" + name)
    if os.path.isdir("/etc/alternatives"):
        add("etc/alternatives", file="/etc/alternatives")


def small_image(add):
    for name in ("proc", "sys", "dev", "tmp", "etc", "bin"):
        add(name)
    add("bin/busybox", file=shutil.which("busybox", path=BIN + ":" + os.environ["PATH"]) or "/bin/busybox")
    add("bin/true", link="busybox")


def show(*words):
    """What its user types and sees."""
    print("$ " + shlex.join(words).replace(ROOT + "/", ""), flush=True)


def binds():
    words = []
    for path in bound():
        words += ["-v", f"{path}:{path}:ro"]
    words += ["-v", f"{ROOT}:{ROOT}:ro"]
    for name in ("LD_LIBRARY_PATH", "FAKECUDA_STATE", "PATH", "PYTHONPATH"):
        if name in os.environ:
            words += ["-e", f"{name}={os.environ[name]}"]
    if "FAKECUDA_STATE" in os.environ:
        state = os.path.dirname(os.environ["FAKECUDA_STATE"])
        words += ["-v", f"{state}:{state}"]
    return words


def program():
    if importlib.util.find_spec("torch"):
        return [sys.executable, "-B", HERE + "/docker_fill.py"]
    return ["/bin/sh", "-c", f'n=0; while {BIN}/demo/cuda_hog 1073741824 >/tmp/$n & sleep 1; grep -q holds /tmp/$n; do '
            'n=$((n + 1)); done; echo "holds $n GiB, then OUT_OF_MEMORY"; wait']


def pids(docker, name):
    _, text = docker("top", name, "-eo", "pid")
    return {int(p) for p in re.findall(r"^\s*(\d+)", text, re.M)}


def said(docker, name, what, patience=120):
    for _ in range(patience * 4):
        _, text = docker("logs", name)
        if re.search(what, text):
            return text
        time.sleep(0.25)
    return text


def two_containers(docker, host):
    quotas = {"small": 8, "large": 16}
    for name, size in quotas.items():
        shown = ["run", "-d", "--runtime=gpuslice", "--annotation", f"gpuslice.vram={size}G", *docker.gpus, "--name", name]
        show("docker", *shown, "pytorch", *program()[:3])
        code, text = docker(*shown, "--network", "none", *binds(), "pytorch", *program())
        if code:
            check(f"docker run with {size}G", False, text.strip()[-300:])
            return False
        print(text[:12])
    for name in quotas:
        text = said(docker, name, "then .*", 180)
        show("docker", "logs", name)
        print(text, end="")
    time.sleep(2.5)  # two comparisons with the driver
    show("gpuslice", "ps")
    print(output(BIN + "/gpuslice", "--socket", host.socket, "ps"), end="")
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]
        show(*command)
        print(output(*command), end="")
    slices = {s["container"]: s for s in host.ps()}
    for name, size in quotas.items():
        _, id_ = docker("inspect", "-f", "{{.Id}}", name)
        use = slices.get(id_.strip(), {}).get("devices", [{}])[0]
        mine = pids(docker, name)
        held, count = smi_sum(mine)
        charged = use.get("used", 0) + use.get("overhead", 0)
        check(f"{name}: nvidia-smi within {size} GiB, and ps says the same",
              count and 0 < held <= size * GIB and abs(held - charged) <= 2 * MIB * count,
              f"nvidia-smi {held / MIB:.0f} MiB of {count} processes, gpuslice ps {charged / MIB:.1f} MiB, limit {use.get('limit', 0) / MIB:.0f} MiB")
        check(f"{name}: it was filled", held > (size - 2) * GIB, f"{held / GIB:.2f} of {size} GiB")
    return True


def exec_shares(docker):
    command = ["exec", "small", *program()]
    show("docker", *command)
    if len(program()) > 3:
        return
    code, text = docker(*command, timeout=120)
    print(text.strip()[-400:])
    check("docker exec draws on the same quota", re.search(r"^holds 0 GiB, then .*(?i:out.of.memory)", text, re.M), text.strip()[-200:])


def refusal(docker, host):
    before = len(host.ps())
    command = ["run", "--rm", "--runtime=gpuslice", "--annotation", "gpuslice.vram=8X", "small", "true"]
    show("docker", *command)
    code, text = docker(*command[:-2], "--network", "none", *command[-2:])
    print(text, end="")
    check("a bad annotation is refused with our sentence", code != 0 and "gpuslice.vram" in text and "is not accepted" in text, f"exit {code}")
    check("and nothing is left", len(host.ps()) == before, f"{before} slices")


def release(docker, host):
    show("docker", "rm", "-f", "small", "large")
    _, text = docker("rm", "-f", "small", "large")
    print(text, end="")
    for _ in range(100):
        if not host.ps():
            break
        time.sleep(0.1)
    check("both slices are released", not host.ps(), [s["id"][:12] for s in host.ps()])


def once(docker, runtime):
    words = ["run", "--rm", "--network", "none"]
    if runtime:
        words += ["--runtime", runtime, "--annotation", "gpuslice.vram=1G"]
    begin = time.perf_counter()
    code, text = docker(*words, "small", "true")
    took = time.perf_counter() - begin
    if code:
        raise RuntimeError(text)
    return took


def starts(docker, rounds):
    took = {"gpuslice": [], BY_PATH: [], None: []}
    for i in range(-3, rounds):
        order = list(took)
        for runtime in order[i % 3:] + order[:i % 3]:
            seconds = once(docker, runtime)
            if i >= 0:
                took[runtime].append(seconds)
    median = {runtime: statistics.median(times) for runtime, times in took.items()}

    def against(runtime):
        pairs = statistics.median(x / y for x, y in zip(took[runtime], took[None]))
        return (f"medians {median[runtime] * 1000:.1f} and {median[None] * 1000:.1f} ms, ratio {median[runtime] / median[None]:.3f}; "
                f"median of the pairs' ratios {pairs:.3f}")
    print(f"docker run, start to exit, with and without gpuslice, {rounds} rounds in turns: {against('gpuslice')}")
    print(f"the same by gpuslice-runtime's path: {against(BY_PATH)}")


def parallel(docker, host, count, port):
    begin = time.perf_counter()
    failed = []
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for job in [pool.submit(once, docker, "gpuslice") for _ in range(count)]:
            if job.exception():
                failed.append(str(job.exception()))
    took = time.perf_counter() - begin
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    buckets = [(float(le), int(n)) for le, n in re.findall(r'gpuslice_register_duration_seconds_bucket{le="([\d.e-]+)"} (\d+)', text)]
    total = int(re.search(r"gpuslice_register_duration_seconds_count (\d+)", text)[1])
    p = {q: next((f"{le * 1000:g} ms" for le, n in buckets if n >= q * total), "more") for q in (0.5, 0.99)}
    check(f"{count} starts at once: nothing fails", not failed, f"{len(failed)} failed in {took:.1f} s {failed[:1]}")
    print(f"register, all {total} of this run: p50 <= {p[0.5]}, p99 <= {p[0.99]} (the histogram's bounds)")
    check("and nothing is left", not host.ps(), f"{len(host.ps())} slices")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--engines", required=True)
    args.add_argument("--out", default=None)
    args.add_argument("--rounds", type=int, default=30)
    args.add_argument("--starts", type=int, default=50)
    args = args.parse_args()
    out = args.out or tempfile.mkdtemp(prefix="gpuslice-docker-")
    os.makedirs(out, exist_ok=True)
    engines = os.path.abspath(args.engines)
    hosts.RUNC = engines + "/runc"
    os.environ["PATH"] = os.environ["PATH"] + ":/usr/sbin:/sbin"
    port = free_port()
    host = Host(out, f'metrics_address = "127.0.0.1:{port}"')
    docker = None
    try:
        docker = Docker(host, engines, out)
        _, version = docker("version", "--format", "Docker Engine {{.Server.Version}}, API {{.Server.APIVersion}}, CLI {{.Client.Version}}")
        print(version.strip(), "-", output(engines + "/runc", "--version").splitlines()[0],
              "- the GPU by CDI" if "nvidia.com/gpu=all" in docker.gpus else "- the GPU by device nodes")
        if shutil.which("nvidia-smi"):
            print(output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").strip())
        docker.image("pytorch", machine_image)
        docker.image("small", small_image)
        if two_containers(docker, host):
            exec_shares(docker)
        refusal(docker, host)
        release(docker, host)
        starts(docker, args.rounds)
        parallel(docker, host, args.starts, port)
    finally:
        if docker:
            _, ids = docker("ps", "-aq")
            if ids.split():
                docker("rm", "-f", *ids.split())
            docker.stop()
        host.stop()
    print(f"{results.count(True)} passed, {results.count(False)} failed, 0 skipped")
    sys.exit(results.count(False))


if __name__ == "__main__":
    main()
