# SPDX-License-Identifier: Apache-2.0
"""PyTorch as people use it. See phases.py for the course; the allocator's settings come from the environment."""
import queue

import torch

import phases
from phases import CHUNK, MIB


class Torch(phases.Case):
    """Tensors from the allocator that PYTORCH_CUDA_ALLOC_CONF names."""

    def start(self):
        phases.say(version=torch.__version__, allocator=torch.cuda.get_allocator_backend())

    def shown(self):
        return torch.cuda.mem_get_info()

    def compute(self):
        x = torch.randn(2048, 2048, device="cuda")
        product = x @ torch.eye(2048, device="cuda")  # TF32, where it is on, keeps three digits
        big = torch.full((256 * MIB,), 1, dtype=torch.int32, device="cuda")  # 1 GiB
        self.held += [x, big]
        return torch.allclose(product, x, rtol=1e-2, atol=1e-2) and big.sum().item() == 256 * MIB

    def take(self):
        return torch.empty(CHUNK, dtype=torch.uint8, device="cuda")

    def release(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Graphs(Torch):
    """Captured and replayed graphs. What is allocated during a capture comes from the graph's private pool."""

    def compute(self):
        x = torch.ones(MIB, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the warm-up that capturing asks for
            (x * 2).sum() + torch.full((64 * MIB,), 3.0, device="cuda").sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            big = torch.full((64 * MIB,), 3.0, device="cuda")
            total = (x * 2).sum() + big.sum()
        sums = []
        for value in (1, 5):
            x.fill_(value)
            graph.replay()
            sums.append(total.item())
        self.held += [graph, x, big, total]
        return sums == [(2 + 192) * MIB, (10 + 192) * MIB]

    def fill(self):
        _, total = self.shown()
        self.held.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(self.held[-1]):
            for _ in range(4 * total // CHUNK):
                self.held.append(self.take().zero_())


class Compiled(Torch):
    """torch.compile: generated kernels, and buffers that generated code allocates."""

    def start(self):
        super().start()
        self.function = torch.compile(lambda x: torch.relu(x.sin() * 2 + x.cos()) + 1, dynamic=True)

    def compute(self):
        x = torch.linspace(0, 100, 4 * MIB, device="cuda")
        y = self.function(x)
        self.held += [x, y]
        return torch.allclose(y, torch.relu(x.sin() * 2 + x.cos()) + 1, atol=1e-4)

    def fill(self):
        self.held.append(torch.zeros(CHUNK // 4, device="cuda"))
        super().fill()

    def take(self):
        return self.function(self.held[-1])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((16384,), i, dtype=torch.float32)


class Loader(Torch):
    """A DataLoader whose four workers are forked from a process that uses CUDA, and whose batches are pinned."""

    def batches(self):
        return torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=4, pin_memory=True,
                                           multiprocessing_context="fork", timeout=60)

    def compute(self):
        right = super().compute()
        seen = sum(batch.to("cuda", non_blocking=True).double().sum().item() for batch in self.batches())
        return right and seen == sum(range(64)) * 16384

    def fill(self):
        _, total = self.shown()
        for _ in range(total // (8 * CHUNK) + 2):
            for batch in self.batches():
                self.held.append(batch.to("cuda", non_blocking=True).repeat(CHUNK // (8 * 65536), 1))


def reader(requests, answers):
    """The process that opens what the other shares, changes it, and then fills the quota itself."""
    shared, mine = None, Torch()
    while True:
        request, tensor = requests.get()
        if request == "look":
            shared = tensor
            seen = shared.sum().item()
            shared.add_(1)
            own = mine.compute()
            mine.release()  # what is only cached here the other one cannot use
            answers.put((seen, own))
        elif request == "fill":
            try:
                mine.fill()
                answers.put("none")
            except Exception as error:
                answers.put(phases.first_line(error))
        elif request == "drop":
            shared, tensor = None, None
            mine.held.clear()
            mine.release()
            answers.put("dropped")
        else:
            return


class Ipc(Torch):
    """Two processes that share a tensor by CUDA IPC: one's data is seen by the other, and each runs into the quota."""

    def start(self):
        super().start()
        context = torch.multiprocessing.get_context("spawn")
        self.requests, self.answers = context.Queue(), context.Queue()
        self.reader = context.Process(target=reader, args=(self.requests, self.answers), daemon=True)
        self.reader.start()

    def ask(self, request, tensor=None):
        self.requests.put((request, tensor))
        for _ in range(60):
            try:
                return self.answers.get(timeout=1)
            except queue.Empty:
                if not self.reader.is_alive():
                    raise RuntimeError(f"the reader ended with exit code {self.reader.exitcode}") from None
        raise RuntimeError(f"the reader does not answer {request!r}")

    def compute(self):
        shared = torch.full((64 * MIB,), 7, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        seen, own = self.ask("look", shared)
        torch.cuda.synchronize()
        back = shared.sum().item()
        phases.say(reader_saw=seen // (64 * MIB), writer_saw=back // (64 * MIB))
        self.held.append(shared)
        return own and seen == 7 * 64 * MIB and back == 8 * 64 * MIB

    def fill(self):
        phases.say(reader_oom=self.ask("fill"))
        self.ask("drop")
        super().fill()

    def release(self):
        torch.cuda.ipc_collect()
        super().release()

    def stop(self):
        self.ask("drop")
        self.requests.put(("end", None))
        self.reader.join(20)


if __name__ == "__main__":
    phases.run({"default": Torch, "graphs": Graphs, "compile": Compiled, "loader": Loader, "ipc": Ipc})
