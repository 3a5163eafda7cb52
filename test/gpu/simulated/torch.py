# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as check.py, docker.py and explain.py run, by the CUDA driver's functions: for the simulated driver."""
import ctypes

uint8 = 1


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class _Driver:
    lib = None

    def __call__(self, name, *arguments):
        if self.lib is None:
            self.lib = ctypes.CDLL("libcuda.so.1")
            context = ctypes.c_void_p()
            self("cuInit", 0)
            self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            self("cuCtxSetCurrent", context)
        code = getattr(self.lib, name)(*arguments)
        if code == 2:
            raise OutOfMemoryError("CUDA out of memory.")
        if code:
            raise RuntimeError(f"{name}: error {code}")


_driver = _Driver()


class Tensor:
    def __init__(self, size):
        self.size, self.pointer = ctypes.c_size_t(size), ctypes.c_uint64()
        _driver("cuMemAlloc_v2", ctypes.byref(self.pointer), self.size)

    def __del__(self):
        if self.pointer.value:
            _driver("cuMemFree_v2", self.pointer)

    def __matmul__(self, _):
        """The product with torch.eye, which is the only one asked for."""
        product = Tensor(self.size.value)
        _driver("cuMemcpyDtoD_v2", product.pointer, self.pointer, self.size)
        return product

    def sum(self):
        """Of ones."""
        return self

    def item(self):
        return self.size.value // 4

    def numel(self):
        return self.size.value

    def bytes(self):
        data = ctypes.create_string_buffer(self.size.value)
        _driver("cuMemcpyDtoH_v2", data, self.pointer, self.size)
        return data.raw


def empty(count, dtype=None, device="cuda"):
    return Tensor(count * (1 if dtype == uint8 else 4))


def ones(count, device="cuda"):
    return empty(count)


def randn(rows, columns, device="cuda"):
    x = empty(rows * columns)
    _driver("cuMemsetD8_v2", x.pointer, ctypes.c_ubyte(0x3F), x.size)
    return x


def eye(rows, device="cuda"):
    """Tensor.__matmul__ knows that it is one."""


def allclose(a, b, atol=0):
    return a.bytes() == b.bytes() and a.bytes()[:1] == b"\x3f"


class cuda:
    class get_device_properties:
        def __init__(self, _):
            self.total_memory = cuda.mem_get_info()[1]

    @staticmethod
    def mem_get_info():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    @staticmethod
    def get_device_name():
        return "the simulated card"

    @staticmethod
    def synchronize():
        _driver("cuCtxSynchronize")

    @staticmethod
    def empty_cache():
        """There is none here."""
