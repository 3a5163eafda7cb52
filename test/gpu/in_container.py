# SPDX-License-Identifier: Apache-2.0
"""What runs inside the container of check.py: PyTorch as people use it, and a small conductor.

    in_container.py fill                 total shown, then tensors until torch.OutOfMemoryError
    in_container.py hold MIB             take MIB, say "held", sleep; on OOM say "oom" and exit 3
    in_container.py four DIR             four holders, a fifth that is refused, one killed, the fifth again
"""
import os
import signal
import subprocess
import sys
import time

GIB = 1 << 30
MIB = 1 << 20


def fill():
    import torch

    free, total = torch.cuda.mem_get_info()
    kept, step, taken, error = [], 256 * MIB, 0, "none"
    try:
        while taken < 20 * GIB:
            kept.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
            taken += step
    except torch.OutOfMemoryError as e:
        error = "torch.OutOfMemoryError"
        print("message:", str(e).splitlines()[0][:200])
    del kept
    torch.cuda.empty_cache()
    x = torch.randn(2048, 2048, device="cuda")
    right = torch.allclose(x @ torch.eye(2048, device="cuda"), x, atol=1e-1)
    total_property = torch.cuda.get_device_properties(0).total_memory
    print(f"total={total} properties={total_property} taken={taken} error={error} usable_after={right}")


def hold(mib):
    import torch

    try:
        x = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        print("oom", flush=True)
        sys.exit(3)
    print("held", x.numel(), flush=True)
    time.sleep(600)


def start(mib):
    return subprocess.Popen([sys.executable, __file__, "hold", str(mib)], stdout=subprocess.PIPE, text=True)


def step(directory, name):
    """Tell the host that a state is reached, and wait until it has looked."""
    open(os.path.join(directory, name), "w").close()
    while not os.path.exists(os.path.join(directory, name + ".seen")):
        time.sleep(0.02)


def four(directory):
    holders = [start(1024) for _ in range(4)]
    for h in holders:
        print("holder:", h.stdout.readline().strip(), flush=True)
    step(directory, "four")
    fifth = start(2048)
    print("fifth:", fifth.stdout.readline().strip(), "exit", fifth.wait(), flush=True)
    holders[0].send_signal(signal.SIGKILL)
    holders[0].wait()
    t = time.monotonic()
    again = start(2048)
    print("after the kill:", again.stdout.readline().strip(), f"in {time.monotonic() - t:.1f} s with start", flush=True)
    step(directory, "after")
    for h in holders[1:] + [again]:
        h.kill()


if __name__ == "__main__":
    {"fill": fill, "hold": lambda: hold(int(sys.argv[2])), "four": lambda: four(sys.argv[2])}[sys.argv[1]]()
