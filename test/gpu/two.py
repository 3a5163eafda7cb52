#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two GPUs of one host: collective operations and copies between them in one slice, and each program's devices in whatever
order it wants them, with the quota that each device has.

Run as root on a machine with two NVIDIA GPUs and runc, after `make card-programs`; PyTorch with NCCL for the collective ones:

    RUNC=/path/to/runc test/gpu/two.py [--out DIR] [--only NAME,...]

Prints a line per promise and exits with the number of those not kept. On the simulated driver (LD_LIBRARY_PATH=$PWD/bin/fakecuda,
FAKECUDA_DEVICES=2, FAKECUDA_STATE below a directory of its own, not in /tmp) all but the collective ones run, too.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # it would lie in the source tree
from host import BIN, GIB, HERE, MIB, Host, Truth, check, output, results

# Multicast of NVLink is left alone: a machine that several share may lend its fabric to others, too.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
WORKER = [sys.executable, "-B", HERE + "/two_worker.py"]
TIMEOUT = 180



def uuids():
    """The devices, as NVML numbers them."""
    import ctypes

    truth, names = Truth(), []
    for device in truth.devices:
        text = ctypes.create_string_buffer(96)
        if truth.nvml.nvmlDeviceGetUUID(device, text, 96):
            sys.exit("a device has no UUID")
        names.append(text.value.decode())
    return names


def environment(visible=None):
    """Of a session: without what this machine's own environment says of devices."""
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")}
    env.update(NO_MULTICAST, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    return env


def session(arguments, command, env=None):
    """What a command says in a slice of its own."""
    try:
        return output(BIN + "/gpuslice", "run", "--embedded", "--quiet", *arguments, "--", *command, timeout=TIMEOUT,
                      env=env or environment())
    except subprocess.TimeoutExpired as e:
        return f"no end after {TIMEOUT} s: {e.output}"


def answer(text):
    """The last line that is JSON; {} if none is."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {}


def fits(device, quota):
    """A device is shown with its quota, and grants what fits it, beside a context, and no more."""
    return (device["total"] == quota and device["taken"] <= quota and device["taken"] > quota - GIB and
            device["error"] == 2)


def brief(devices):
    return ", ".join(f"…{d['uuid'][-6:]} {d['total'] // MIB} MiB, {d['taken'] // MIB} granted" for d in devices) or "nothing"


def check_collective():
    text = session(["--vram", "8G"], [*WORKER, "collective"])
    said = answer(text)
    check("NCCL all-reduce of two processes in one slice", said.get("sums") == [3.0, 3.0], said or text[-400:])
    check("each is shown 8 GiB of its device", said.get("totals") == [8 * GIB] * 2, said.get("totals"))
    check("each runs into it", said.get("errors") == ["torch.OutOfMemoryError"] * 2, said.get("errors"))


def check_peers(names):
    text = session(["--vram", "4G"], [*WORKER, "peers"])
    said = answer(text)
    check("copies between two devices in one slice", said.get("right"), "right" if said.get("right") else text[-400:])
    check("both hold to their quota meanwhile", len(said.get("devices", [])) == len(names) and
          all(fits(d, 4 * GIB) for d in said["devices"]), brief(said.get("devices", [])))


def check_order(host, names):
    """Annotations give each device another quota; a program sees them in its own order."""
    quotas = {names[0]: 2 * GIB, names[1]: 3 * GIB}
    unique = next(i for i in range(len(names[0])) if names[0][i] != names[1][i]) + 1
    cases = {"unset": None, "in order": "0,1", "the other way round": "1,0", "the second alone": "1",
             "by UUID": names[0] + "," + names[1], "by UUID, the other way round": names[1] + "," + names[0],
             "the second by UUID": names[1], "short UUIDs": names[1][:unique] + "," + names[0][:unique]}
    for number, (title, visible) in enumerate(cases.items()):
        name = f"order-{number}"
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **NO_MULTICAST}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        path, _ = host.bundle(name, [*WORKER, "devices"], {"gpuslice.vram.0": "2G", "gpuslice.vram." + names[1]: "3G"}, env=env)
        with open(os.path.join(host.out, name + ".log"), "w+") as log:
            container = host.launch(path, name, log)
            try:
                container.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                host.remove(name)
            log.seek(0)
            text = log.read()
        devices = answer(text).get("devices", [])
        wanted = names if visible is None else [next(u for i, u in enumerate(names) if v == str(i) or u.startswith(v))
                                                for v in visible.split(",")]
        check(f"CUDA_VISIBLE_DEVICES {title}: each device has its quota", [d["uuid"] for d in devices] == wanted and
              all(fits(d, quotas[d["uuid"]]) for d in devices), brief(devices) if devices else text[-400:])


def check_set(host, names):
    """The quotas of a session are changed apart from one another while it runs."""
    ready, go = os.path.join(host.out, "ready"), os.path.join(host.out, "go")
    for file in (ready, go):
        if os.path.exists(file):
            os.remove(file)
    cli = [BIN + "/gpuslice", "--socket", host.socket]
    with open(os.path.join(host.out, "set.log"), "w+") as log:
        command = subprocess.Popen([*cli, "run", "--quiet", "--name", "two-set", "--vram", "4G", "--", *WORKER, "wait", ready, go],
                                   stdout=log, stderr=log, env=environment("1,0"))
        subprocess.run(["sh", "-c", 'for i in $(seq 600); do [ -e "$0" ] && exit; sleep 0.1; done', ready], check=False)
        said = output(*cli, "set", "two-set", "--vram", "2G", "--device", names[0])
        open(go, "w").close()
        try:
            command.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            command.kill()
        log.seek(0)
        text = log.read()
    devices = answer(text).get("devices", [])
    quotas = {names[0]: 2 * GIB, names[1]: 4 * GIB}
    check("gpuslice set of one device leaves the other's quota", [d["uuid"] for d in devices] == [names[1], names[0]] and
          all(fits(d, quotas[d["uuid"]]) for d in devices), brief(devices) if devices else said + text[-400:])


def check_device(names):
    """`--device` shows the program that device alone, so that it is cuda:0."""
    cases = [("--device 1", ["--device", "1"], None, [names[1]]),
             ("--device 0", ["--device", "0"], None, [names[0]]),
             ("--device UUID", ["--device", names[1]], None, [names[1]]),
             ("--device 1 --device 0", ["--device", "1", "--device", "0"], None, [names[1], names[0]]),
             ("--device 1 under CUDA_VISIBLE_DEVICES=0,1", ["--device", "1"], "0,1", [names[1]]),
             ("--device 0 --device 1 under CUDA_VISIBLE_DEVICES=1,0", ["--device", "0", "--device", "1"], "1,0", [names[1], names[0]])]
    for title, arguments, visible, wanted in cases:
        text = session(["--vram", "2G", *arguments], [*WORKER, "devices"], environment(visible))
        devices = answer(text).get("devices", [])
        check(title, [d["uuid"] for d in devices] == wanted and all(fits(d, 2 * GIB) for d in devices),
              brief(devices) if devices else text[-400:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpuslice-two-"), help="where logs go")
    parser.add_argument("--only", default="collective,peers,order,set,device", help="which of them (default: %(default)s)")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    only = options.only.split(",")
    names = uuids()
    if len(names) < 2:
        sys.exit(f"{len(names)} GPUs here, 2 are needed")
    names = names[:2]
    simulated = "fakecuda" in os.environ.get("LD_LIBRARY_PATH", "")
    if "collective" in only and not simulated:
        check_collective()
    if "peers" in only:
        check_peers(names)
    if "device" in only:
        check_device(names)
    if "order" in only or "set" in only:
        host = Host(options.out)
        try:
            if "order" in only:
                check_order(host, names)
            if "set" in only:
                check_set(host, names)
        finally:
            host.stop()
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed; logs in {options.out}")
    return len(results) - sum(results)


if __name__ == "__main__":
    sys.exit(main())
