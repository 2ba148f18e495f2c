"""What goes over the wire between a remote hub and its server: msgpack of the records of `backend`.

The arguments of each Catalog method are a map by their names, so either side may know more of them
than the other, made from the methods themselves: there is no second list to keep in step.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from ortet import errors
from ortet._util.structs import thread_safe_struct
from ortet.backends.base import Catalog
from ortet.errors import Invalid, OrtetError, Refused, Unavailable

PROTOCOL_VERSION = 1
"""Of the protocol; a server answers the newest it knows, and a client refuses a newer one."""

IDEMPOTENT_WRITES = (
    "acquire",
    "extend",
    "release",
    "seize",
    "trim_ops",
    "trim_events",
    "erase_events",
)
"""Writes that may be repeated: doing them twice is doing them once."""
SLOW_WRITES = ("drop_timeline", "scrub", "reclaim")
"""The same, and they may take long."""
ONCE_ONLY_WRITES = ("move", "put_row", "drop_row", "append")
"""Writes that must not be done twice: the server takes note of them."""
WRITES = frozenset((*IDEMPOTENT_WRITES, *SLOW_WRITES, *ONCE_ONLY_WRITES))
_ROWS = ("head", "heads", "ops", "last_op", "lease", "row", "rows", "check")
_TIMELINE_READS = ("timeline", "children", "events", "last_seq")
READS = frozenset((*_ROWS, *_TIMELINE_READS))

EPOCH_HEADER, TIME_HEADER = "ortet-epoch", "ortet-time"
REQUEST_HEADER, RETRY_HEADER, DONE_HEADER = "ortet-request", "ortet-again", "ortet-done"
CONTENT_TYPE = "application/x-msgpack"


class MethodSchema(NamedTuple):
    """One method of Catalog on the wire."""

    args_type: type[msgspec.Struct]
    result_type: Any


class Hello(msgspec.Struct, frozen=True):
    """What a client must know before it begins."""

    version: int
    store: str  # an id that no other store has
    format: int  # of objects, as in FORMAT
    key_id: bytes
    epoch: int
    boot: str  # of the server's process: tokens of signals are its own


class KeysRequest(msgspec.Struct, frozen=True):
    keys: list[str]


class PrefixRequest(msgspec.Struct, frozen=True):
    prefix: str = ""


class RangesRequest(msgspec.Struct, frozen=True):
    key: str
    ranges: list[tuple[int, int]]


class TopicsRequest(msgspec.Struct, frozen=True):
    topics: list[str]


class SignalToken(msgspec.Struct, frozen=True):
    """A token of a signal, and the process that gave it."""

    boot: str
    token: int


class SignalWaitRequest(msgspec.Struct, frozen=True):
    topic: str
    mark: SignalToken
    timeout: float


class RemoteErrorBody(msgspec.Struct, frozen=True):
    """The one shape of errors, see OrtetError.as_dict."""

    error: str
    kind: str
    message: str
    details: dict[str, Any] = {}


@cache
def method_schema(name: str) -> MethodSchema:
    """Its arguments and answer; NotFound-like for anything that is no method is the caller's."""
    function = getattr(Catalog, name)
    hints = get_type_hints(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        field = (parameter.name, hints[parameter.name])
        has = parameter.default is not parameter.empty
        fields.append((*field, parameter.default) if has else field)
    fields.sort(key=len)  # those with a default last; they go by name
    args = msgspec.defstruct(name, fields, frozen=True, omit_defaults=True)
    return MethodSchema(args, hints["return"])


_encoder = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    """Invalid, in the words that every backend has, for what no message can hold."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise Invalid(
            "bad_name", f"a name cannot be sent ({error}): give text without halves of characters"
        ) from error
    except (TypeError, OverflowError) as error:
        raise Invalid("bad_value", f"this cannot be sent ({error}): give plain values") from error


@cache
def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(thread_safe_struct(type_))


def unpack(type_: Any, data: bytes) -> Any:
    """msgspec.ValidationError, msgspec.DecodeError: each side has its own words for it."""
    return _decoder(type_).decode(data)


_CLASSES = {
    cls.name: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, OrtetError)
}


def parse_error(body: bytes, status: int = 0) -> OrtetError | None:
    """The error that an answer tells of; None when it tells of none that is ours. One of a class
    that is not known here is what its status says."""
    try:
        failure = msgspec.json.decode(body, type=thread_safe_struct(RemoteErrorBody))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    strange: type[OrtetError] = Refused if status in (401, 403) else Unavailable
    error = _CLASSES.get(failure.error, strange)(failure.kind, failure.message)
    error.details = failure.details
    return error
