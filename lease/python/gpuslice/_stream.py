# SPDX-License-Identifier: Apache-2.0
"""A client's connection to a GPU session: requests and replies, shared memory, and the next broker after one has ended."""

from __future__ import annotations

import collections
import mmap
import os
import queue
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

import grpc

from . import _wire
from ._service import TLS, connect
from .errors import Closed, Error, LeaseExpired, SyncFailed, Unreachable

MIN_PAUSE, MAX_PAUSE = 0.01, 0.5  # seconds between attempts to connect
OPEN_TIMEOUT = 15.0  # a broker that failed often is started again after 10 s
REMOTE_TIMEOUT = 60.0  # after which an unresponsive session on another machine is given up
CLOSE_TIMEOUT = 5.0  # for the broker to free what a client has allocated
MAX_QUIET = 512  # launches without an answer
MAX_BATCH = 128  # requests in a message
STAGED_FROM = 1 << 20  # bytes of the smallest transfer through shared memory
PIECE, PIECES = 2 << 20, 4  # of shared memory
CHUNK = 4 << 20  # bytes in a message


class Stream:
    """Sends requests in order. A thread takes the replies, and connects to the next broker when one has ended."""

    def __init__(self, address: str, token: str, tls: TLS, explain: Callable[[Error], Error] = lambda error: error) -> None:
        """`explain` turns the error with which the session ends into the one that calls raise."""
        self._channel, self._socket, lease = connect(address, tls)
        if not self._socket and not lease:
            raise ValueError(f"{address!r} names no lease: tls:HOST:PORT/LEASE is accepted")
        self._token, self._explain = token, explain
        self._metadata = (("authorization", "Bearer " + token),) + ((("lease", lease),) if lease else ())
        service = "/gpuslice.lease.v1.Session/"
        self._work = self._channel.stream_stream(service + "Work", _wire.Requests.SerializeToString, _wire.Replies.FromString)
        self._stats = self._channel.unary_unary(service + "Stats", _wire.StatsRequest.SerializeToString, _wire.StatsReply.FromString)
        self._staging = _Staging()
        self._garbage: Deque[int] = collections.deque()  # handles to free with the next request
        self._lock = threading.Condition()  # guards all below
        self._requests: Any = None  # a queue to the broker; None while there is none
        self._pending: Deque[Tuple[int, str, Optional[Future[Any]]]] = collections.deque()  # unanswered requests
        self._sequence = self._quiet = 0
        self._error: Optional[Error] = None  # why the session has ended
        self._failed: Optional[Error] = None  # of the first failed launch that was not raised yet
        self._unsynced = False  # there are launches that no sync has followed
        self._followed = False  # another broker follows if this one ends
        self._broker = 0  # counts those that were connected to
        self.capability = ""  # of the device, such as 9.0
        self._held: Dict[int, str] = {}  # handles of this broker, and the operation that frees each
        try:
            call = self._open(OPEN_TIMEOUT if self._socket else 0)
        except BaseException:
            self._channel.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(call,), name="gpuslice-replies", daemon=True)
        self._thread.start()

    # --- requests

    def ask(self, operation: str, **fields: Any) -> Any:
        """Carries out one operation, and returns its reply."""
        return self.send(operation, **fields).result()

    def send(self, operation: str, **fields: Any) -> Future[Any]:
        with self._lock:
            future = self._put(operation, fields)
        assert future is not None
        return future

    def launch(self, **fields: Any) -> None:
        """Sends a launch, and does not wait. `sync` and `check` raise what failed."""
        with self._lock:
            future = self._put("launch", fields, quiet=self._quiet < MAX_QUIET)
            self._unsynced = True
        if future is not None:
            future.exception()

    def sync(self) -> None:
        """Waits for all launches, and raises the first failure."""
        with self._lock:
            future = self._put("sync", {})
            self._unsynced = False
        assert future is not None
        error: Optional[BaseException] = future.exception()
        with self._lock:
            error, self._failed = self._failed or error, None
        if error is not None:
            raise error

    def check(self) -> None:
        """Raises the failure of a launch that is answered by now."""
        if self._failed is not None:
            self.sync()  # the broker, too, reports it only once

    def hold(self, handle: int, free: str) -> int:
        """Notes a new handle, and the operation that frees it."""
        with self._lock:
            self._held[handle] = free
        return handle

    def release(self, handle: int) -> None:
        """Frees a handle with the next request. Takes no lock: the garbage collector calls it anywhere."""
        self._garbage.append(handle)

    def stats(self) -> Any:
        try:
            return self._stats(_wire.StatsRequest(), metadata=self._metadata, timeout=30)
        except grpc.RpcError as error:
            raise self._of(error) from None

    def _put(self, operation: str, fields: Dict[str, Any], quiet: bool = False) -> Optional[Future[Any]]:
        while self._requests is None and self._error is None:
            self._lock.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        while self._garbage:
            self._release(self._garbage.popleft())
        return self._write(operation, fields, quiet)

    def _release(self, handle: int) -> None:
        free = self._held.pop(handle, None)
        if free is not None:
            self._write(free, {"module" if free == "module_unload" else "handle": handle}, quiet=True)

    def _write(self, operation: str, fields: Dict[str, Any], quiet: bool = False) -> Optional[Future[Any]]:
        self._sequence += 1
        self._quiet = self._quiet + 1 if quiet else 0
        future: Optional[Future[Any]] = None if quiet else Future()
        request = _wire.Request(sequence=self._sequence, **{operation: fields})
        self._pending.append((self._sequence, operation, future))
        self._requests.put((request, quiet))
        return future

    # --- transfers

    def transfer(self, handle: int, offset: int, data: memoryview, write: bool) -> None:
        """Copies bytes to or from a buffer, in pieces of which some are in flight."""
        staging = None
        if self._socket and len(data) >= STAGED_FROM and self._staging.take(self._broker, os.path.dirname(self._socket), self._token):
            staging = self._staging
        try:
            self._transfer(handle, offset, data, write, staging)
        except BaseException:
            if staging:
                staging.close()  # the broker may still use it
            raise
        finally:
            if staging:
                staging.lock.release()

    def _transfer(self, handle: int, offset: int, data: memoryview, write: bool, staging: Optional[_Staging]) -> None:
        flight: Deque[Tuple[Future[Any], memoryview, int]] = collections.deque()

        def land() -> None:
            future, part, at = flight.popleft()
            reply = future.result()
            if not write:
                part[:] = staging.memory[at:at + len(part)] if staging else reply.mem_read.data

        step = PIECE if staging else CHUNK
        for number, start in enumerate(range(0, len(data), step)):
            if len(flight) == PIECES:
                land()
            part, at = data[start:start + step], number % PIECES * PIECE
            fields: Dict[str, Any] = {"handle": handle, "offset": offset + start}
            if staging:
                fields["shared"] = {"memory": staging.number, "offset": at, "bytes": len(part)}
                if write:
                    staging.memory[at:at + len(part)] = part
            elif write:
                fields["data"] = bytes(part)
            else:
                fields["bytes"] = len(part)
            flight.append((self.send("mem_write" if write else "mem_read", **fields), part, at))
        while flight:
            land()

    # --- the connection

    def end(self, error: Error) -> None:
        """Ends the session for this client: calls raise the error."""
        if self._error is None:
            error = self._explain(error)
        with self._lock:
            self._error = self._error or error
            self._leave(self._error)

    def close(self, free: bool) -> None:
        """Closes the connection; with `free`, frees what this client has allocated."""
        with self._lock:
            free = free and self._requests is not None
            for handle in list(self._held) if free else ():
                self._release(handle)
            if self._requests is not None:
                self._requests.put(None)  # the broker answers what it got, and ends the stream
                self._requests = None
            self._error = self._error or Closed("the session was closed")
            self._lock.notify_all()
        if free:
            self._thread.join(CLOSE_TIMEOUT)
        self._channel.close()
        with self._staging.lock:
            self._staging.close()

    def _connect(self) -> Any:
        """Opens the stream. Returns once the broker has accepted it."""
        requests: Any = queue.SimpleQueue()
        call = self._work(_messages(requests), metadata=self._metadata)
        try:
            header = dict(call.initial_metadata() or ())
            followed = "gpuslice-followed" in header
            if not followed:  # the call has failed, or the broker was started by hand
                self._stats(_wire.StatsRequest(), metadata=self._metadata, timeout=30)
                if call.done():
                    raise call
        except BaseException:
            requests.put(None)
            raise
        with self._lock:
            self._requests, self._followed = requests, followed
            self.capability = header.get("gpuslice-compute-capability", "")
            self._broker += 1
            self._lock.notify_all()
        return call

    def _open(self, timeout: float) -> Any:
        """Connects, again until the session has ended or time is over."""
        begin, pause = time.monotonic(), MIN_PAUSE
        while self._error is None:
            try:
                return self._connect()
            except grpc.RpcError as error:
                if _is_final(_wire.said(error)) or self._is_gone() or time.monotonic() - begin > timeout:
                    raise self._of(error) from None
            except ValueError as error:  # the channel is closed
                raise Closed(str(error)) from None
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
        raise self._error

    def _run(self, call: Any) -> None:
        while call is not None:
            try:
                for message in call:
                    for reply in message.replies:
                        self._take(reply)
                loss: Error = Unreachable("the broker has closed the connection")
            except grpc.RpcError as error:
                loss = self._of(error)
            except IndexError:
                loss = Error("the broker sent an answer without a request")
            call = self._follow(loss)

    def _follow(self, loss: Error) -> Any:
        """Connects to the next broker, if one follows."""
        if self._error is not None or not self._followed or not isinstance(loss, (SyncFailed, Unreachable)):
            return self.end(loss)
        if isinstance(loss, Unreachable):
            loss = SyncFailed("the connection to the session's broker was lost: " + loss.message,
                              advice="the session continues; if the broker has exited, its arrays and modules are lost: create them again",
                              lost=bool(self._socket))  # a connection on this host ends with its broker alone
        with self._lock:
            self._held.clear()
            if not self._leave(loss) and self._unsynced:
                self._failed = self._failed or loss
            self._unsynced = False
        try:
            return self._open(float("inf") if self._socket else REMOTE_TIMEOUT)
        except Error as error:
            return self.end(error)

    def _take(self, reply: Any) -> None:
        error = _wire.error_of(reply.failure) if reply.HasField("failure") else None
        with self._lock:
            sequence, operation, future = self._pending.popleft()
            while sequence != reply.sequence:  # a reply answers the launches before it, too
                sequence, operation, future = self._pending.popleft()
            if operation == "launch" and error is not None:
                self._failed = self._failed or error
            if error is not None and error.lost and self._followed and self._requests is not None:
                self._requests.put(None)
                self._requests = None  # later requests are for the next broker
        if future is not None:
            _settle(future, reply, error)

    def _leave(self, error: Error) -> bool:
        """Fails what is in flight, and reports whether that tells a caller."""
        told = False
        if self._requests is not None:
            self._requests.put(None)
            self._requests = None
        while self._pending:
            future = self._pending.popleft()[2]
            if future is not None:
                _settle(future, None, error)
                told = True
        self._lock.notify_all()
        return told

    def _is_gone(self) -> bool:
        """Reports whether a session of this host has ended: its lease's directory is removed then."""
        return bool(self._socket) and not os.path.exists(self._socket)

    def _of(self, call: Any) -> Error:
        """Returns the exception of a failed call."""
        said = _wire.said(call)
        if said is not None:
            return said
        if self._is_gone():
            return LeaseExpired("the session has ended: its broker does not answer", advice="acquire another lease", lost=True)
        return Unreachable(f"the session does not answer: {_wire.cause(call)}")


def _messages(requests: Any) -> Iterator[Any]:
    """Sends launches that wait in one message, with the request after them."""
    item: Any = ()
    while item is not None:
        batch: List[Any] = []
        quiet = True
        while quiet and len(batch) < MAX_BATCH:
            try:
                item = requests.get(block=not batch)
            except queue.Empty:
                break
            if item is None:
                break
            request, quiet = item
            batch.append(request)
        if batch:
            yield _wire.Requests(requests=batch, quiet=True, answer_last=not quiet)


def _is_final(error: Optional[Error]) -> bool:
    return error is not None and not isinstance(error, SyncFailed)


def _settle(future: Future[Any], reply: Any, error: Optional[Error]) -> None:
    if error is None:
        future.set_result(reply)
    else:
        future.set_exception(error)


class _Staging:
    """Memory that a client and the broker of this host share, for the long transfers of one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held during a transfer
        self.memory: Any = None
        self.number = 0
        self._broker = 0  # that was asked for it
        self._connection: Optional[socket.socket] = None

    def take(self, broker: int, directory: str, token: str) -> bool:
        """Locks the memory, unless it is in use or the broker has none. Messages do without."""
        if not self.lock.acquire(blocking=False):
            return False
        if self._broker != broker:
            self.close()
            self._broker = broker
            try:
                self._share(os.path.join(directory, "shared.sock"), token, PIECE * PIECES)
            except OSError:
                self.memory = None
        if self.memory is None:
            self.lock.release()
        return self.memory is not None

    def _share(self, path: str, token: str, size: int) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(CLOSE_TIMEOUT)
        self._connection.connect(path)
        self._connection.sendall(f"{token} {size}\n".encode())
        line, descriptors, _, _ = socket.recv_fds(self._connection, 512, 1)
        for descriptor in descriptors:
            try:
                self.memory = memoryview(mmap.mmap(descriptor, size))
                self.number = int(line.split()[1])
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Gives the memory up. The broker frees its part when the connection ends."""
        if self._connection is not None:
            self._connection.close()
        self.memory, self._connection, self._broker = None, None, 0
