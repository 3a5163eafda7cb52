# SPDX-License-Identifier: Apache-2.0
"""The lease service: acquire, renew, drop, list and show leases."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import os
import re
from typing import Any, Dict, List, Optional, Tuple, Union

import grpc

from . import _wire
from .errors import Unreachable

DEFAULT_SOCKET = "/run/gpuslice/leases.sock"

Size = Union[int, str]
Duration = Union[int, float, str, datetime.timedelta]


def size(text: Size) -> int:
    """Bytes of a size such as 7G, 64MiB or 4096; units are powers of 1024."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:([kmgtp])(?:i?b)?|b)?", text.strip(), re.IGNORECASE)
    number = decimal.Decimal(match[1]) * 1024 ** (" kmgtp".index((match[2] or " ").lower())) if match else None
    if number is None or number != int(number):
        raise ValueError(f"{text!r} is not a size: 7G, 64MiB or a whole number of bytes is accepted")
    return int(number)


def seconds(text: Duration) -> float:
    """Seconds of a duration such as 90s, 1h30m or 7d, of a number of seconds, or of a timedelta."""
    if isinstance(text, datetime.timedelta):
        return text.total_seconds()
    if isinstance(text, (int, float)):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration: 90s, 30m, 12h, 7d or a number of seconds is accepted")
    return sum(float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


@dataclasses.dataclass(frozen=True)
class TLS:
    """The client's certificate and key, and the CA of the host's certificate: files in PEM."""

    certificate: Optional[str] = None
    key: Optional[str] = None
    ca: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        texts = []
        for path in (self.ca, self.key, self.certificate):
            if not path:
                raise ValueError("a lease service on another machine needs a certificate, its key, and the CA of that machine's certificate: "
                                 "name all three files")
            with open(path, "rb") as file:
                texts.append(file.read())
        return grpc.ssl_channel_credentials(*texts)


def connect(address: str, tls: TLS) -> Tuple[grpc.Channel, str, str]:
    """A channel to an address; the socket's path if it is one of this host; and the lease that a tls: address names."""
    if address.startswith("unix:"):
        return grpc.insecure_channel(address, options=_wire.OPTIONS), address[len("unix:"):], ""
    match = re.fullmatch(r"tls:([^/%?# ]+:\d+)(?:/([!-.0-~]+))?", address)
    if not match:
        raise ValueError(f"{address!r} is no address: unix:PATH, tls:HOST:PORT, and /LEASE of a session there, are accepted")
    return grpc.secure_channel("dns:///" + match[1], tls.credentials(), options=_wire.OPTIONS), "", match[2] or ""


@dataclasses.dataclass(frozen=True)
class Lease:
    """A lease, as the service describes it. Sizes are in bytes."""

    id: str
    address: str  # of its session, for gpuslice.open; empty once it has ended
    token_file: str  # that its owner can read
    token: str = dataclasses.field(repr=False)  # for a client on another machine, in place of the file
    remote_address: str  # of its session for clients on other machines, if they are served
    device: str  # UUID
    device_name: str
    compute_capability: str  # of the device, such as 9.0
    vram: int  # that clients may allocate
    overhead: int  # that is admitted beside it, for the broker's context and code
    charged: int  # in the slice's ledger now, with overhead
    reserved: bool
    tenant: str
    uid: int  # of the user who acquired it
    acquired: datetime.datetime
    expires: Optional[datetime.datetime]  # None: never
    state: str  # active, ended (dropped or expired) or failed
    reason: str  # why it is not active
    restarts: int  # how often another broker was started
    restart_reason: str


def _lease(message: Any) -> Lease:
    def time(stamp: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(stamp.seconds + stamp.nanos / 1e9, datetime.timezone.utc)

    special = {
        "acquired": time(message.acquired), "expires": time(message.expires) if message.HasField("expires") else None,
        "state": {2: "ended", 3: "failed"}.get(message.state, "active"),
    }
    return Lease(**{f.name: special[f.name] if f.name in special else getattr(message, f.name) for f in dataclasses.fields(Lease)})


def _duration(value: Duration) -> Dict[str, int]:
    whole, part = divmod(round(seconds(value) * 1e9), 10**9)
    return {"seconds": whole, "nanos": part}


class Service:
    """A lease service: that of this host, or of another machine at tls:HOST:PORT, which takes a certificate.

    What is not given is taken from the variables of `gpuslice lease`: GPUSLICE_LEASE_ADDRESS or GPUSLICE_LEASE_SOCKET, and
    GPUSLICE_LEASE_CERTIFICATE, GPUSLICE_LEASE_KEY, GPUSLICE_LEASE_CA.
    """

    def __init__(self, address: Optional[str] = None, *, certificate: Optional[str] = None, key: Optional[str] = None,
                 ca: Optional[str] = None) -> None:
        env = os.environ.get
        self.address = address or env("GPUSLICE_LEASE_ADDRESS") or "unix:" + env("GPUSLICE_LEASE_SOCKET", DEFAULT_SOCKET)
        self.tls = TLS(certificate or env("GPUSLICE_LEASE_CERTIFICATE"), key or env("GPUSLICE_LEASE_KEY"), ca or env("GPUSLICE_LEASE_CA"))

    def acquire(self, vram: Size, *, ttl: Optional[Duration] = None, device: str = "", tenant: str = "", reserve: bool = False,
                linger: Optional[Duration] = None, clients: int = 0) -> Lease:
        """Acquires a lease, and leaves it to the caller to renew and drop it; `gpuslice.lease` does both.

        `vram` is what clients may allocate. Without `ttl` it lives as long as any slice may; with `linger` it ends so long
        after its last client has left. `device` is a UUID or an index, `clients` how many may be connected at one time.
        """
        times = {name: _duration(value) for name, value in (("ttl", ttl), ("linger", linger)) if value is not None}
        return _lease(self._call("Acquire", _wire.AcquireRequest(
            vram=size(vram), device=str(device), tenant=tenant, reserve=reserve, clients=clients, **times)))

    def renew(self, lease: Union[str, Lease], ttl: Duration) -> Lease:
        """Sets the remaining time of a lease."""
        return _lease(self._call("Renew", _wire.RenewRequest(id=_id(lease), ttl=_duration(ttl)), timeout=30))

    def drop(self, lease: Union[str, Lease]) -> Lease:
        """Ends a lease. Its memory is free on return."""
        return _lease(self._call("Drop", _wire.DropRequest(id=_id(lease))))

    def show(self, lease: Union[str, Lease]) -> Lease:
        """Describes a lease, for some time also after its end."""
        return _lease(self._call("Show", _wire.ShowRequest(id=_id(lease)), timeout=30))

    def list(self) -> List[Lease]:
        """Describes the caller's active leases; for root, those of all users."""
        return [_lease(lease) for lease in self._call("List", _wire.ListRequest(), "ListReply", timeout=30).leases]

    def _call(self, method: str, request: Any, reply: str = "Lease", timeout: Optional[float] = None) -> Any:
        channel, _, lease = connect(self.address, self.tls)
        if lease:
            raise ValueError(f"{self.address!r} names a lease: use tls:HOST:PORT")
        with channel:
            call = channel.unary_unary("/gpuslice.lease.v1.Leases/" + method, request_serializer=type(request).SerializeToString,
                                       response_deserializer=getattr(_wire, reply).FromString)
            try:
                return call(request, timeout=timeout)
            except grpc.RpcError as error:
                raise _wire.said(error) or Unreachable(
                    f"the lease service does not answer on {self.address}: {_wire.cause(error)}",
                    advice="run it: sudo systemctl start gpuslice-leased" if self.address.startswith("unix:") else
                    "tls_address in [leases] of that host's configuration says where it does") from None


def _id(lease: Union[str, Lease]) -> str:
    return lease.id if isinstance(lease, Lease) else lease
