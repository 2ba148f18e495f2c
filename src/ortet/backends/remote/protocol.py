"""The messages between a remote hub and its server: msgpack of the records of `backends`.

The arguments of a Catalog method are sent as a map by name, so either side may know more arguments
than the other. The schema is derived from the method signatures, so there is no second list to
maintain.
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
"""The protocol version. A server reports its newest version; a client refuses a newer one."""

IDEMPOTENT_WRITES = (
    "acquire",
    "extend",
    "release",
    "seize",
    "trim_ops",
    "trim_events",
    "erase_events",
)
"""Writes that may be repeated safely."""
SLOW_WRITES = ("drop_timeline", "scrub", "reclaim")
"""Writes that may be repeated safely and may take long."""
ONCE_ONLY_WRITES = ("move", "put_row", "drop_row", "append")
"""Writes that must not be applied twice. The server records them."""
WRITES = frozenset((*IDEMPOTENT_WRITES, *SLOW_WRITES, *ONCE_ONLY_WRITES))
_ROWS = ("head", "heads", "ops", "last_op", "lease", "row", "rows", "check")
_TIMELINE_READS = ("timeline", "children", "events", "last_seq")
READS = frozenset((*_ROWS, *_TIMELINE_READS))

EPOCH_HEADER, TIME_HEADER = "ortet-epoch", "ortet-time"
REQUEST_HEADER, RETRY_HEADER, DONE_HEADER = "ortet-request", "ortet-again", "ortet-done"
CONTENT_TYPE = "application/x-msgpack"


class MethodSchema(NamedTuple):
    """The argument and result types of one Catalog method."""

    args_type: type[msgspec.Struct]
    result_type: Any


class Hello(msgspec.Struct, frozen=True):
    """The description of server and store that a client reads before its first call."""

    version: int
    store: str  # globally unique id of the store
    format: int  # object format, as in FORMAT
    key_id: bytes
    epoch: int
    boot: str  # id of the server process; signal tokens are valid only for it


class KeysRequest(msgspec.Struct, frozen=True):
    """A request about several bucket keys."""

    keys: list[str]


class PrefixRequest(msgspec.Struct, frozen=True):
    """A request to list the keys with a prefix."""

    prefix: str = ""


class RangesRequest(msgspec.Struct, frozen=True):
    """A request for (start, length) ranges of one object."""

    key: str
    ranges: list[tuple[int, int]]


class TopicsRequest(msgspec.Struct, frozen=True):
    """A request about signal topics."""

    topics: list[str]


class SignalToken(msgspec.Struct, frozen=True):
    """A signal token, and the server process that issued it."""

    boot: str
    token: int


class SignalWaitRequest(msgspec.Struct, frozen=True):
    """A request to wait for a notification of one topic."""

    topic: str
    mark: SignalToken
    timeout: float


class RemoteErrorBody(msgspec.Struct, frozen=True):
    """The form of all errors; see OrtetError.as_dict."""

    error: str
    kind: str
    message: str
    details: dict[str, Any] = {}


@cache
def method_schema(name: str) -> MethodSchema:
    """Return the schema of a Catalog method. The caller must check that `name` is allowed."""
    function = getattr(Catalog, name)
    hints = get_type_hints(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        field = (parameter.name, hints[parameter.name])
        has = parameter.default is not parameter.empty
        fields.append((*field, parameter.default) if has else field)
    fields.sort(key=len)  # fields with a default last; they are sent by name
    args = msgspec.defstruct(name, fields, frozen=True, omit_defaults=True)
    return MethodSchema(args, hints["return"])


_encoder = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    """Encode a message. Raise Invalid for a value that cannot be sent."""
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
    """Decode a message. Errors of msgspec are passed on; each side translates them."""
    return _decoder(type_).decode(data)


_CLASSES = {
    cls.name: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, OrtetError)
}


def parse_error(body: bytes, status: int = 0) -> OrtetError | None:
    """Return the error in an answer, or None if it contains no error of ours.

    An unknown error class becomes Refused or Unavailable, depending on the HTTP status.
    """
    try:
        failure = msgspec.json.decode(body, type=thread_safe_struct(RemoteErrorBody))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    strange: type[OrtetError] = Refused if status in (401, 403) else Unavailable
    error = _CLASSES.get(failure.error, strange)(failure.kind, failure.message)
    error.details = failure.details
    return error
