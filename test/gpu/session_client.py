# SPDX-License-Identifier: Apache-2.0
"""A client of a GPU session in Python, with grpcio: no driver, no CUDA, nothing generated.

    $ bin/session descriptor >session.pb

    with open("session.pb", "rb") as file:
        protocol = Protocol(file.read())
    session = Session("/run/gpuslice/leases/ID", protocol)
    handle = session.alloc(12)
    session.write(handle, 0, data)
    module = session.load(ptx)
    session.launch(module, "scale", [handle, struct.pack("<f", 2), struct.pack("<I", 3)], block=3)
    session.sync()
    session.read(handle, 0, 12)

The first command writes a FileDescriptorSet of lease/leasepb/lease.proto, from which the messages are made. A program would generate
lease_pb2.py with grpcio-tools instead.

If the session's broker ends and another one follows, requests fail with SYNC_FAILED and the session is connected again: allocate and
load anew.

From another machine: Session.remote("gpu1.example.org:9837", "lease-ID", token, protocol, "client.pem", "client.key", "ca.pem").
"""
import os
import queue
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Failed(Exception):
    def __init__(self, code, failure):
        super().__init__(f"{code}: {failure.message}" + (f" ({failure.advice})" if failure.advice else ""))
        self.code, self.failure = code, failure


class Protocol:
    """The messages, by their names, and the codes."""

    def __init__(self, descriptor_set):
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            pool.Add(file)
        self.pool = pool
        self.codes = {v.number: v.name for v in pool.FindEnumTypeByName("gpuslice.lease.v1.Code").values}

    def __getattr__(self, name):
        descriptor = self.pool.FindMessageTypeByName("gpuslice.lease.v1." + name)
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self.pool).GetPrototype(descriptor)


class Session:
    OPTIONS = [("grpc.max_receive_message_length", 66 << 20), ("grpc.max_send_message_length", 66 << 20),
               ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    OVER = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    RECONNECT = 60  # seconds: another broker may be started after ten
    socket = None

    def __init__(self, directory, protocol):
        with open(os.path.join(directory, "token")) as f:
            token = f.read().strip()
        self.socket = os.path.join(directory, "session.sock")
        self._open(grpc.insecure_channel("unix:" + self.socket, options=self.OPTIONS), token, protocol)

    @classmethod
    def remote(cls, address, lease, token, protocol, certificate, key, ca):
        """A session on another machine, at HOST:PORT, with the client's certificate: files in PEM."""
        def read(path):
            with open(path, "rb") as f:
                return f.read()
        credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
        session = cls.__new__(cls)
        session._open(grpc.secure_channel(address, credentials, options=cls.OPTIONS), token, protocol, (("lease", lease),))
        return session

    def _open(self, channel, token, protocol, metadata=()):
        self.protocol, self.channel = protocol, channel
        self.metadata = (("authorization", "Bearer " + token),) + metadata
        self.work = self.channel.stream_stream("/gpuslice.lease.v1.Session/Work", protocol.Requests.SerializeToString, protocol.Replies.FromString)
        self.stats_call = self.channel.unary_unary("/gpuslice.lease.v1.Session/Stats", protocol.StatsRequest.SerializeToString,
                                                   protocol.StatsReply.FromString)
        self._connect()

    def _connect(self):
        """Connects, or has the next request say why not. The broker says whether another one would follow it."""
        self.requests, self.sequence = queue.Queue(), 0
        self.stream = self.work(iter(self.requests.get, None), metadata=self.metadata)
        self.replies = self._replies(self.stream)
        self.followed = any(key == "gpuslice-followed" for key, _ in self.stream.initial_metadata() or ())

    def _reconnect(self, error):
        """Returns when a broker serves the session. The error is raised if it has ended."""
        begin = time.monotonic()
        self.requests.put(None)
        while time.monotonic() - begin < self.RECONNECT:
            self._connect()
            if self.followed:
                return
            self.requests.put(None)
            if self.stream.code() in self.OVER or self.socket and not os.path.exists(self.socket):
                break
            time.sleep(0.05)
        raise error

    @staticmethod
    def _replies(stream):
        for message in stream:
            yield from message.replies

    def ask(self, name, **fields):
        """One operation, and its reply."""
        self.sequence += 1
        request = self.protocol.Request(sequence=self.sequence)
        getattr(request, name).SetInParent()
        getattr(request, name).MergeFrom(type(getattr(request, name))(**fields))
        self.requests.put(self.protocol.Requests(requests=[request]))
        try:
            reply = next(self.replies)
        except (StopIteration, grpc.RpcError) as error:
            if not self.followed:
                raise
            self._reconnect(error)
            said = error.details() if isinstance(error, grpc.RpcError) else "the connection to the session's broker has ended"
            raise Failed("SYNC_FAILED", self.protocol.Failure(message=said, advice="allocate and load anew")) from error
        assert reply.sequence == self.sequence
        if reply.HasField("failure"):
            raise Failed(self.protocol.codes[reply.failure.code], reply.failure)
        return reply

    def alloc(self, size):
        return self.ask("mem_alloc", bytes=size).mem_alloc.handle

    def free(self, handle):
        self.ask("mem_free", handle=handle)

    def write(self, handle, offset, data):
        self.ask("mem_write", handle=handle, offset=offset, data=data)

    def read(self, handle, offset, size):
        return self.ask("mem_read", handle=handle, offset=offset, bytes=size).mem_read.data

    def load(self, image):
        return self.ask("module_load", image=image).module_load.module

    def launch(self, module, kernel, arguments=(), grid=1, block=1):
        """An argument is a handle, or bytes."""
        p = self.protocol
        self.ask("launch", module=module, kernel=kernel, grid=p.Dim(x=grid), block=p.Dim(x=block), arguments=[
            p.Argument(raw=a) if isinstance(a, bytes) else p.Argument(pointer=p.Pointer(handle=a)) for a in arguments])

    def sync(self):
        self.ask("sync")

    def stats(self):
        return self.stats_call(self.protocol.StatsRequest(), metadata=self.metadata)

    def close(self):
        self.requests.put(None)
        self.channel.close()
