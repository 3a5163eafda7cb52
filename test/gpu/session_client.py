# SPDX-License-Identifier: Apache-2.0
"""A client of a GPU session in Python, with grpcio: no driver, no CUDA, nothing generated.

    session = Session("/run/gpuslice/leases/ID")
    handle = session.alloc(12)
    session.write(handle, 0, data)
    module = session.load(ptx)
    session.launch(module, "scale", [handle, struct.pack("<f", 2), struct.pack("<I", 3)], block=3)
    session.sync()
    session.read(handle, 0, 12)

From another machine: Session.remote("gpu1.example.org:9837", "lease-ID", token, protocol, "client.pem", "client.key", "ca.pem").

Its messages come from a FileDescriptorSet of lease/leasepb/lease.proto (`protoc --include_imports --descriptor_set_out=FILE`, or
`bin/session descriptor`). A program would rather generate lease_pb2.py with grpcio-tools.
"""
import os
import queue

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
    OPTIONS = [("grpc.max_receive_message_length", 66 << 20), ("grpc.max_send_message_length", 66 << 20)]

    def __init__(self, directory, protocol):
        with open(os.path.join(directory, "token")) as f:
            token = f.read().strip()
        self._open(grpc.insecure_channel("unix:" + os.path.join(directory, "session.sock"), options=self.OPTIONS), token, protocol)

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
        work = self.channel.stream_stream("/gpuslice.lease.v1.Session/Work", protocol.Requests.SerializeToString, protocol.Replies.FromString)
        self.stats_call = self.channel.unary_unary("/gpuslice.lease.v1.Session/Stats", protocol.StatsRequest.SerializeToString,
                                                   protocol.StatsReply.FromString)
        self.requests = queue.Queue()
        self.replies = self._replies(work(iter(self.requests.get, None), metadata=self.metadata))
        self.sequence = 0

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
        reply = next(self.replies)
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
