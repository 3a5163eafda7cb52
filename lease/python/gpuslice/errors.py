# SPDX-License-Identifier: Apache-2.0
"""The errors of the lease service and of brokers. docs/use/leases-reference.md explains each code."""

from __future__ import annotations

from typing import Dict, Optional, Type


class Error(Exception):
    """A failure that the lease service or a broker reports. Each code has a subclass.

    `requested`, `limit` and `used` are bytes, or None where the failure is not for want of memory. `lost` means that all
    arrays and modules of the session are gone with its broker.
    """

    code = ""

    def __init__(self, message: str, *, advice: str = "", log: str = "", requested: Optional[int] = None,
                 limit: Optional[int] = None, used: Optional[int] = None, lost: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice  # what to do; may be empty
        self.log = log  # of the driver's compiler
        self.requested, self.limit, self.used = requested, limit, used
        self.lost = lost

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}" if self.code else self.message
        return f"{text} ({self.advice})" if self.advice else text


class LeaseExpired(Error):
    """The lease has ended."""

    code = "LEASE_EXPIRED"


class AllocFailed(Error, MemoryError):
    """The memory is beyond the lease."""

    code = "ALLOC_FAILED"


class InvalidHandle(Error):
    """An array or a module does not exist (any more), or a range is not within an array."""

    code = "INVALID_HANDLE"


class LoadFailed(Error):
    """The driver does not load the module; `log` is what its compiler says."""

    code = "LOAD_FAILED"


class LaunchFailed(Error):
    """The kernel was not launched: no such kernel, too many threads, arguments that do not fit."""

    code = "LAUNCH_FAILED"


class SyncFailed(Error):
    """A launched kernel failed, or was lost with the session's broker."""

    code = "SYNC_FAILED"


class InvalidRequest(Error):
    """The request makes no sense, whatever the session holds."""

    code = "INVALID_REQUEST"


class Refused(Error):
    """The lease or the connection was refused."""

    code = "REFUSED"


class NotFound(Error):
    """There is no such lease, or it is another user's."""

    code = "NOT_FOUND"


class Unreachable(Error):
    """The lease service or the session does not answer."""


class Closed(Error):
    """The session was closed by this program."""


BY_CODE: Dict[str, Type[Error]] = {
    kind.code: kind
    for kind in (LeaseExpired, AllocFailed, InvalidHandle, LoadFailed, LaunchFailed, SyncFailed, InvalidRequest, Refused, NotFound)
}
