"""The messages of NRI and of ttrpc that the plugin uses, as protobuf's classes.

The fields are those of containerd/nri (pkg/api/api.proto, v1alpha1) and containerd/ttrpc (request.proto) that
are read or written here. On the wire a map is a list of keys and values.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_PACKAGE = "bursar.nri"
# By message its fields: name, number, type; a star: several; a capital: another message of this table.
_MESSAGES = {
    "Status": "code 1 int32, message 2 string",
    "Request": "service 1 string, method 2 string, payload 3 bytes, timeout_nano 4 int64",
    "Response": "status 1 Status, payload 2 bytes",
    "KeyValue": "key 1 string, value 2 string",
    "RegisterPlugin": "plugin_name 1 string, plugin_idx 2 string",
    "Configure": "runtime_name 2 string, runtime_version 3 string, request_timeout 5 int64",
    "Configured": "events 2 int32",
    "Synchronize": "more 3 bool",
    "Synchronized": "more 2 bool",
    "Sandbox": "name 2 string, uid 3 string, namespace 4 string, annotations 6* KeyValue, "
    "runtime_handler 7 string",
    "Container": "id 1 string, name 3 string, env 8* string",
    "CreateContainer": "pod 1 Sandbox, container 2 Container",
    "ContainerCreated": "adjust 1 Adjustment",
    "Adjustment": "mounts 3* Mount, env 4* KeyValue, linux 6 Linux, cdi_devices 8* Named",
    "Linux": "devices 1* Device",
    "Device": "path 1 string, type 2 string, major 3 int64, minor 4 int64",
    "Mount": "destination 1 string, type 2 string, source 3 string, options 4* string",
    "Named": "name 1 string",
    "Validate": "pod 1 Sandbox, container 2 Container, adjust 3 Adjustment, plugins 6* Named",
    "Validated": "reject 1 bool, reason 2 string",
}
_TYPES = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("int32", "int64", "string", "bytes", "bool")
}


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="nri.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for name, number, kind in (field.split() for field in fields.split(", ")):
            several = (
                FieldDescriptorProto.LABEL_REPEATED if "*" in number else FieldDescriptorProto.LABEL_OPTIONAL
            )
            field = declared.field.add(name=name, number=int(number.rstrip("*")), label=several)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


_CLASSES = _classes()


def message(name: str, /, **fields: object) -> Any:
    """A new message of this name in the table."""
    return _CLASSES[name](**fields)


def parsed(name: str, raw: bytes) -> Any:
    """The message of this name in the bytes. Raises google.protobuf.message.DecodeError."""
    return _CLASSES[name].FromString(raw)
