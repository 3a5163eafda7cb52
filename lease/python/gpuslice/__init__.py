# SPDX-License-Identifier: Apache-2.0
"""Leases of a slice of a GPU, for programs without a driver and without CUDA.

    import gpuslice

    with gpuslice.lease("7G") as gpu:                   # acquires, renews by itself, drops at the end
        x = gpu.array(numpy.arange(1000, dtype="f"))
        m = gpu.module(ptx)                             # or a cubin, or a fatbin
        m.scale[4, 256](x, 2.0, 1000)                   # grid, block; an int has 32 bits, a float is a C float
        print(x.get())

docs/use/python.md of gpuslice explains it.
"""

from __future__ import annotations

import os as _os
import typing as _typing

from ._service import TLS as _TLS
from ._service import Duration, Lease, Service, Size
from ._session import Array, Kernel, Launcher, Module, Pointer, Session
from .errors import (AllocFailed, Closed, Error, InvalidHandle, InvalidRequest, LaunchFailed, LeaseExpired, LoadFailed, NotFound,
                     Refused, SyncFailed, Unreachable)

__all__ = [
    "AllocFailed", "Array", "Closed", "Error", "InvalidHandle", "InvalidRequest", "Kernel", "LaunchFailed", "Launcher", "Lease",
    "LeaseExpired", "LoadFailed", "Module", "NotFound", "Pointer", "Refused", "Service", "Session", "SyncFailed", "Unreachable",
    "acquire", "drop", "lease", "list", "open", "renew", "show",
]

_read = open


def lease(vram: Size, *, ttl: _typing.Optional[Duration] = "10m", renew: bool = True, service: _typing.Optional[Service] = None,
          device: str = "", tenant: str = "", reserve: bool = False, linger: _typing.Optional[Duration] = None,
          clients: int = 0) -> Session:
    """Acquires a lease, and opens its session. It is renewed while the session is open, and dropped when that is closed.

    A program that is killed does not drop its lease: it ends when its `ttl` is over. `Service.acquire` has the other
    parameters.
    """
    service = service or Service()
    acquired = service.acquire(vram, ttl=ttl, device=device, tenant=tenant, reserve=reserve, linger=linger, clients=clients)
    try:
        return Session(acquired.address, acquired.token or _token(acquired.token_file), service.tls, lease=acquired, service=service,
                       ttl=ttl if renew else None)
    except BaseException:
        service.drop(acquired)
        raise


def open(address: str, token: _typing.Union[str, "_os.PathLike[str]"], *, certificate: _typing.Optional[str] = None,
         key: _typing.Optional[str] = None, ca: _typing.Optional[str] = None) -> Session:
    """Opens the session of a lease that another program has acquired, and leaves the lease to it.

    `address` is unix:PATH, or tls:HOST:PORT/LEASE with the three files in PEM. `token` is the token, or the path of its
    file: what has a slash in it is a path.
    """
    return Session(address, _token(token), _TLS(certificate, key, ca))


def _token(token: _typing.Union[str, "_os.PathLike[str]"]) -> str:
    if isinstance(token, str) and "/" not in token:
        return token
    with _read(token, encoding="ascii") as file:
        return file.read().strip()


def acquire(vram: Size, **parameters: _typing.Any) -> Lease:
    """`Service().acquire`."""
    return Service().acquire(vram, **parameters)


def renew(lease: _typing.Union[str, Lease], ttl: Duration) -> Lease:
    """`Service().renew`."""
    return Service().renew(lease, ttl)


def drop(lease: _typing.Union[str, Lease]) -> Lease:
    """`Service().drop`."""
    return Service().drop(lease)


def show(lease: _typing.Union[str, Lease]) -> Lease:
    """`Service().show`."""
    return Service().show(lease)


def list() -> _typing.List[Lease]:
    """`Service().list`."""
    return Service().list()
