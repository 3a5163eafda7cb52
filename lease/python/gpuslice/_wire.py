# SPDX-License-Identifier: Apache-2.0
"""The messages of lease.proto, made from their descriptor: generated code would need the protobuf that generated it."""

from __future__ import annotations

from typing import Any, Optional

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

from . import errors
from ._descriptor import DESCRIPTOR

_PACKAGE = "gpuslice.lease.v1."
MAX_MESSAGE = 66 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500),
]

_pool = descriptor_pool.DescriptorPool()
for _file in (any_pb2, duration_pb2, timestamp_pb2):
    _pool.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
_pool.AddSerializedFile(DESCRIPTOR)
# google.rpc.Status, which gRPC's own package has, and Debian's does not.
_status = descriptor_pb2.FileDescriptorProto(name="google/rpc/status.proto", package="google.rpc", syntax="proto3",
                                             dependency=["google/protobuf/any.proto"])
_status.message_type.add(name="Status").field.add(name="details", number=3, label=3, type=11, type_name=".google.protobuf.Any")
_pool.AddSerializedFile(_status.SerializeToString())


def _class(name: str) -> Any:
    descriptor = _pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool).GetPrototype(descriptor)  # before protobuf 4.22


def __getattr__(name: str) -> Any:
    """A message class, by its name."""
    try:
        kind = _class(_PACKAGE + name)
    except KeyError:
        raise AttributeError(name) from None
    globals()[name] = kind
    return kind


_Status = _class("google.rpc.Status")
_Failure = _class(_PACKAGE + "Failure")
_codes = {value.number: value.name for value in _pool.FindEnumTypeByName(_PACKAGE + "Code").values}


def error_of(failure: Any) -> errors.Error:
    """The exception of a Failure."""
    name = _codes.get(failure.code, str(failure.code))
    figures = {figure: getattr(failure, field) if failure.HasField(field) else None
               for figure, field in (("requested", "requested"), ("limit", "limit"), ("used", "current"))}
    error = errors.BY_CODE.get(name, errors.Error)(failure.message, advice=failure.advice, log=failure.log, lost=failure.lost, **figures)
    error.code = name
    return error


def said(call: Any) -> Optional[errors.Error]:
    """The exception of the Failure in the status of a call that has failed, if there is one."""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in _Status.FromString(value).details:
                if detail.type_url.endswith("/" + _PACKAGE + "Failure"):
                    return error_of(_Failure.FromString(detail.value))
    return None


def cause(call: Any) -> str:
    """What gRPC says of a failed call."""
    return (call.details() or str(call.code())).rpartition("last error: ")[2]
