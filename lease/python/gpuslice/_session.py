# SPDX-License-Identifier: Apache-2.0
"""A GPU session: arrays, modules and kernels."""

from __future__ import annotations

import array
import atexit
import ctypes
import math
import operator
import os
import struct
import threading
import time
from types import TracebackType
from typing import Any, Dict, List, Optional, SupportsIndex, Tuple, Type, Union

from ._service import TLS, Duration, Lease, Service, seconds
from ._stream import Stream
from .errors import Error, LeaseExpired, NotFound, Unreachable

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

Shape = Union[SupportsIndex, Tuple[SupportsIndex, ...], List[SupportsIndex]]


class Session:
    """A client of a lease's GPU session, from `gpuslice.lease` or `gpuslice.open`. Threads may share it.

    After a device fault, or another end of the broker, calls raise SyncFailed and the session is connected to the next
    broker: arrays and modules of before are gone, and their use raises InvalidHandle.
    """

    def __init__(self, address: str, token: str, tls: TLS, *, lease: Optional[Lease] = None, service: Optional[Service] = None,
                 ttl: Optional[Duration] = None) -> None:
        self.lease = lease  # as the service last described it; None if another program acquired it
        self._service, self._pid, self._closed = service, os.getpid(), False
        self._over = threading.Event()  # ends the renewal
        self._stream = Stream(address, token, tls, self._why)
        if lease is not None:
            atexit.register(self.close)
            if ttl is not None:
                threading.Thread(target=self._renew, args=(seconds(ttl),), name="gpuslice-renewal", daemon=True).start()

    def array(self, data: Any, dtype: Any = None) -> Array:
        """Copies data to the device: a NumPy array, anything that NumPy makes one of, or anything with a buffer."""
        view, shape, kind = _host(data, dtype)
        made = self._alloc(shape, kind, view.nbytes)
        made._transfer(view, True)
        return made

    def zeros(self, shape: Shape, dtype: Any = "f") -> Array:
        """Allocates zeroed memory. `dtype` is NumPy's; without NumPy, a letter of `struct`."""
        dims, (kind, itemsize) = _ints(shape), _dtype(dtype)
        return self._alloc(dims, kind, math.prod(dims) * itemsize)

    def _alloc(self, shape: Tuple[int, ...], dtype: Any, nbytes: int) -> Array:
        reply = self._stream.ask("mem_alloc", bytes=nbytes).mem_alloc
        return Array(self, shape, dtype, nbytes, self._stream.hold(reply.handle, "mem_free"), reply.address)

    def module(self, image: Union[str, bytes]) -> Module:
        """Loads PTX, a cubin or a fatbin."""
        return Module(self, image.encode() if isinstance(image, str) else bytes(image))

    def sync(self) -> None:
        """Waits for all launches. Raises the first failure of a launch since the last `sync`."""
        self._stream.sync()

    @property
    def compute_capability(self) -> Tuple[int, int]:
        """The compute capability of the device, such as (9, 0), for compilers. (0, 0) if the broker is of an older version."""
        major, _, minor = self._stream.capability.partition(".")
        return int(major or 0), int(minor or 0)

    def stats(self) -> Dict[str, int]:
        """What the session has, and its counters. Does not wait for the session's work."""
        reply = self._stream.stats()
        return {field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields}

    def close(self) -> None:
        """Ends the session: drops the lease if `gpuslice.lease` acquired it, else frees this client's arrays and modules."""
        if self._closed or self._pid != os.getpid():  # a forked child does not end its parent's lease
            return
        self._closed = True
        self._over.set()
        atexit.unregister(self.close)
        self._stream.close(free=self.lease is None)
        if self.lease is not None and self._service is not None:
            try:
                self.lease = self._service.drop(self.lease)
            except (LeaseExpired, NotFound):
                pass  # it has ended by itself

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # else that is what the caller has to know
                raise

    def _renew(self, ttl: float) -> None:
        """Renews the lease until it ends. While the service is away it tries again soon."""
        pause = ttl / 3
        while not self._over.wait(pause):
            try:
                assert self._service is not None and self.lease is not None
                self.lease = self._service.renew(self.lease, ttl)
                pause = ttl / 3
            except (LeaseExpired, NotFound) as error:
                return self._stream.end(error)
            except Error:
                pause = min(ttl / 20, 5.0)

    def _why(self, error: Error) -> Error:
        """Has the service say why a lease of this program has ended."""
        if self.lease is None or self._service is None or not isinstance(error, (LeaseExpired, Unreachable)):
            return error
        for _ in range(50):  # the broker ends before its lease does
            try:
                shown = self._service.show(self.lease)
            except Error:
                break
            if shown.state != "active":
                self._over.set()
                return LeaseExpired(f"lease {shown.id} has ended: {shown.reason}", advice="acquire another one")
            time.sleep(0.1)
        return error


class Array:
    """An array in the device's memory. The memory is freed with the object, or by `free`; that of a module's variable with the module."""

    def __init__(self, session: Session, shape: Tuple[int, ...], dtype: Any, nbytes: int, handle: int, address: int,
                 module: Optional[Module] = None) -> None:
        self.session, self.shape, self.dtype, self.nbytes = session, shape, dtype, nbytes
        self.address = address  # on the device, for structs of pointers
        self._handle, self._module = handle, module  # of which it is a variable

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def get(self, out: Any = None) -> Any:
        """Copies the array to the host, after all launches: to `out`, or a new NumPy array; without NumPy, a memoryview."""
        target = out if out is not None else numpy.empty(self.shape, self.dtype) if numpy else bytearray(self.nbytes)
        if numpy and isinstance(target, numpy.ndarray) and target.flags.c_contiguous:
            view = target.reshape(-1).view(numpy.uint8).data
        else:
            view = memoryview(target)
        if view.readonly or not view.c_contiguous or view.nbytes != self.nbytes:
            raise ValueError(f"an array of {self.nbytes} bytes is copied to a contiguous, writable one of as many")
        try:
            self._transfer(view.cast("B"), False)
        finally:
            self.session._stream.check()
        return target if out is not None or numpy else memoryview(target).cast(self.dtype, self.shape)

    def set(self, data: Any) -> None:
        """Copies data of the same number of bytes to the array: from the host, or from another array."""
        if isinstance(data, Array):
            self._same(data.nbytes)
            self.session._stream.ask("mem_copy", to=self._handle, bytes=self.nbytes, **{"from": data._handle})
            return
        view = _host(data, self.dtype)[0]
        self._same(view.nbytes)
        self._transfer(view, True)

    def memset(self, value: int) -> None:
        """Sets each byte."""
        self.session._stream.ask("mem_set", handle=self._handle, bytes=self.nbytes, value=value)

    def at(self, index: int) -> Pointer:
        """The address of an element, counted from 0, as an argument of a kernel."""
        return Pointer(self, index * (self.nbytes // self.size))

    def free(self) -> None:
        """Frees the memory with the session's next request."""
        handle, self._handle = self._handle, 0
        if handle:
            self.session._stream.release(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.free()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<gpuslice.Array {self.shape} {self.dtype}>"

    def _same(self, nbytes: int) -> None:
        if nbytes != self.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit an array of {self.nbytes}")

    def _transfer(self, view: memoryview, write: bool) -> None:
        self.session._stream.transfer(self._handle, 0, view, write)


class Pointer:
    """An address within an array, in bytes from its beginning."""

    def __init__(self, array: Array, offset: int) -> None:
        self.array, self.offset = array, offset


def _host(data: Any, dtype: Any) -> Tuple[memoryview, Tuple[int, ...], Any]:
    """The bytes of host data, its shape and its dtype."""
    if numpy:
        if isinstance(data, (bytes, bytearray)):
            data = memoryview(data)
        values = numpy.asarray(data, dtype, order="C")
        return memoryview(values.reshape(-1).view(numpy.uint8).data), values.shape, values.dtype
    try:
        view = memoryview(data)
    except TypeError:
        view = memoryview(array.array(dtype or "f", data))
    kind = view.format.lstrip("@=<")
    if dtype not in (None, kind):
        raise TypeError(f"data of format {kind!r} is not converted to {dtype!r} without NumPy")
    return memoryview(view if view.c_contiguous else view.tobytes()).cast("B"), view.shape or (), kind


class Module:
    """Loaded code. Its kernels are attributes, or items if a name is no identifier or one of this class: `module["_Z5scalePfi"]`."""

    def __init__(self, session: Session, image: bytes) -> None:
        self._session, self._handle = session, 0
        reply = session._stream.ask("module_load", image=image).module_load
        self._handle = session._stream.hold(reply.module, "module_unload")
        self.log = reply.log  # of the driver's compiler

    def __getitem__(self, name: str) -> Kernel:
        return Kernel(self, name)

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__") or name == "_handle":
            raise AttributeError(name)
        return Kernel(self, name)


    def variable(self, name: str, dtype: Any = "f", shape: Optional[Shape] = None) -> Array:
        """A variable of the module, such as a __constant__ or __device__ one, as an array; without `shape`, of one dimension."""
        reply = self._session._stream.ask("module_variable", module=self._handle, name=name).module_variable
        kind, itemsize = _dtype(dtype)
        dims = (reply.bytes // itemsize,) if shape is None else _ints(shape)
        if math.prod(dims) * itemsize != reply.bytes:
            raise ValueError(f"variable {name} has {reply.bytes} bytes: no array of {dims} {kind}")
        return Array(self._session, dims, kind, reply.bytes, reply.handle, reply.address, self)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self._session._stream.release(self._handle)


class Kernel:
    """A kernel of a module: `kernel[grid, block](*arguments)` launches it."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name = module, name

    def __getitem__(self, dims: Tuple[Shape, Shape]) -> Launcher:
        if not isinstance(dims, tuple) or len(dims) != 2:
            raise TypeError(f"{self.name}[grid, block](…) takes both sizes")
        return Launcher(self, _dim("grid", dims[0]), _dim("block", dims[1]))


class Launcher:
    """A kernel with the sizes of a launch."""

    def __init__(self, kernel: Kernel, grid: Dict[str, int], block: Dict[str, int]) -> None:
        self._kernel, self._grid, self._block = kernel, grid, block

    def __call__(self, *arguments: Any, shared: int = 0) -> None:
        """Queues the kernel, with `shared` bytes of dynamic shared memory, and does not wait.

        An argument is an Array, a Pointer, or a scalar: an int has 32 bits, a float is a C float, a bool has one byte; a
        NumPy scalar or a value of ctypes has its own type, and bytes are passed unchanged. `sync` and `get` raise what fails.
        Call `sync` before another client of the session reads what the kernel wrote.
        """
        module, name = self._kernel.module, self._kernel.name
        module._session._stream.launch(
            module=module._handle, kernel=name, grid=self._grid, block=self._block, shared_bytes=shared,
            arguments=[_argument(f"argument {i} of {name}", value, module._session) for i, value in enumerate(arguments)])


def _dtype(dtype: Any) -> Tuple[Any, int]:
    """The dtype, and the bytes of an element."""
    kind = numpy.dtype(dtype) if numpy else dtype
    return kind, kind.itemsize if numpy else struct.calcsize(kind)


def _ints(sizes: Shape) -> Tuple[int, ...]:
    return tuple(operator.index(size) for size in (sizes if isinstance(sizes, (tuple, list)) else (sizes,)))


def _dim(what: str, sizes: Shape) -> Dict[str, int]:
    dims = _ints(sizes)
    if not 1 <= len(dims) <= 3 or not all(1 <= size < 1 << 32 for size in dims):
        raise ValueError(f"a {what} of {sizes!r}: one to three sizes from 1 on are accepted")
    return dict(zip("xyz", dims))


def _argument(what: str, value: Any, session: Session) -> Dict[str, Any]:
    """An Argument of lease.proto."""
    if isinstance(value, Array):
        value = Pointer(value, 0)
    if isinstance(value, Pointer):
        if value.array.session is not session:
            raise ValueError(f"{what} is an array of another session")
        return {"pointer": {"handle": value.array._handle, "offset": value.offset}}
    return {"raw": _scalar(what, value)}


def _scalar(what: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)):
        return bytes(value)
    if numpy and isinstance(value, numpy.generic):
        return value.tobytes()
    if isinstance(value, bool):
        return struct.pack("=?", value)
    if isinstance(value, int):
        if not -(1 << 31) <= value < 1 << 32:
            raise OverflowError(f"{what} is {value}, which does not fit 32 bits: give it a type, such as ctypes.c_int64 or numpy.int64")
        return struct.pack("=I", value & 0xFFFFFFFF)
    if isinstance(value, float):
        try:
            return struct.pack("=f", value)
        except OverflowError:
            raise OverflowError(f"{what} is {value}, which does not fit a C float: give it a type, such as ctypes.c_double") from None
    raise TypeError(f"{what} is a {type(value).__name__}: an array of this session (gpu.array copies one to the device), a number, "
                    "or a value of ctypes is accepted")
