"""Shapes of event data by kind, checked before an event is written.

An event that cannot be folded would make the session impossible to open.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid

# Convert event data of older schema versions to the newest one when it is read.

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Function from data of one version to data of the next version."""

_CUSTOM_KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
_MAX_KIND_CHARS = 100


class UpcastRegistry:
    """Holds the conversion functions by event kind and version.

    Data without a conversion stays as it is. That includes versions newer than this program.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], Upcast] = {}

    def register(self, kind: str, version: int, function: Upcast) -> None:
        """Register the conversion of `kind` from `version` to version + 1.

        Raises:
            Invalid: kind "bad_upcast", if an argument is not valid.
        """
        if not kind or not isinstance(kind, str):
            raise Invalid("bad_upcast", f"kind {kind!r}: give the kind of event it is for")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise Invalid("bad_upcast", f"version {version!r}: give a number from 1")
        if not callable(function):
            raise Invalid("bad_upcast", f"{function!r} cannot be called: give a function of data")
        self._steps[kind, version] = function

    def unregister(self, kind: str, version: int) -> None:
        """Remove the conversion of `kind` from `version`, if there is one."""
        self._steps.pop((kind, version), None)

    def apply(self, kind: str, version: int, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Convert data as far as conversions exist. The stored event does not change.

        Returns:
            The reached version and its data.

        Raises:
            Invalid: kind "bad_upcast", if a conversion fails or does not return a dict.
        """
        while self._steps and (step := self._steps.get((kind, version))) is not None:
            try:
                data = step(dict(data))
            except Exception as error:
                raise Invalid(
                    "bad_upcast",
                    f"the upcast of {kind!r} from version {version} failed "
                    f"({type(error).__name__}: {error}): mend the function that was registered",
                ) from error
            if not isinstance(data, dict):
                raise Invalid(
                    "bad_upcast",
                    f"the upcast of {kind!r} from version {version} gave {type(data).__name__}: "
                    "return a dict",
                )
            version += 1
        return version, data


def check_custom_kind(kind: Any) -> str:
    """Return the kind if a program may use it for its own events.

    It must contain a dot. Kinds of Ortet, of any release, never do.
    """
    if isinstance(kind, str) and len(kind) <= _MAX_KIND_CHARS and _CUSTOM_KIND.fullmatch(kind):
        return kind
    raise Invalid(
        "bad_kind",
        f"kind {kind!r}: name the program and the thing, as 'myapp.ticket', in lower case",
    )


def upcast(kind: str, version: int) -> Callable[[Upcast], Upcast]:
    """Decorate a function that converts data of your own event kind to the next version.

    Events are converted when they are read. Stored events do not change.

    Args:
        kind: Kind of the event, with a dot, such as "myapp.ticket".
        version: Version that the function converts from.
    """

    def keep(function: Upcast) -> Upcast:
        register(check_custom_kind(kind), version, function)
        return function

    return keep


_REGISTRY = UpcastRegistry()  # one registry for all stores that a program opens
register = _REGISTRY.register
unregister = _REGISTRY.unregister
apply = _REGISTRY.apply


class _Message(msgspec.Struct):
    role: str = ""
    extra: dict[str, Any] = {}


class _Text(msgspec.Struct):
    text: str = ""


class _Note(msgspec.Struct):
    key: str = ""
    expires: int = 0


class _Question(msgspec.Struct):
    id: str = ""
    text: str = ""


class _IdOnly(msgspec.Struct):
    id: str = ""


class _Plan(msgspec.Struct):
    steps: list[str] = []


class _Step(msgspec.Struct):
    step: int = 0


class _Origin(msgspec.Struct):
    timeline: str = ""
    seq: int = 0
    session: str = ""


class _Fact(msgspec.Struct):
    id: str = ""
    text: str = ""
    about: str = ""
    scope: str = ""
    confidence: float = 1.0
    since: int = 0
    until: int = 0
    source: _Origin | None = None
    supersedes: str = ""
    like: str = ""
    why: str = ""


class _Episode(msgspec.Struct):
    id: str = ""
    summary: str = ""
    outcome: str = ""
    first: int = 0
    last: int = 0
    participants: list[str] = []
    importance: float = 0.5
    cause: str = ""
    time: int = 0
    began: int = 0
    session: str = ""
    source: _Origin | None = None


class _Decision(msgspec.Struct):
    id: str = ""
    text: str = ""
    why: str = ""
    instead_of: list[str] = []


class _Artifact(msgspec.Struct):
    name: str = ""
    version: int = 0
    oid: str = ""
    size: int = 0
    kind: str = ""
    media: str = ""
    link: str = ""
    action: str = ""
    why: str = ""


class _ActionBegun(msgspec.Struct):
    id: str = ""
    name: str = ""
    replay: str = ""
    key: str = ""
    scope: str = ""
    why: str = ""
    approval: str = ""


class _ApprovalRequested(msgspec.Struct):
    id: str = ""
    what: str = ""
    why: str = ""


class _ApprovalAnswered(msgspec.Struct):
    id: str = ""
    ok: bool = False
    why: str = ""


class _Lifecycle(msgspec.Struct):
    to: str = ""
    why: str = ""


class _Model(msgspec.Struct):
    provider: str = ""
    model: str = ""


class _SupersededSpans(msgspec.Struct):
    out: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []


class _Spend(msgspec.Struct):
    amounts: dict[str, float] = {}
    model: str = ""


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "message": _Message,
    "thought": _Text,
    "note": _Note,
    "question": _Question,
    "answer": _IdOnly,
    "goal": _Text,
    "plan": _Plan,
    "step": _Step,
    "fact": _Fact,
    "lesson": _Fact,
    "episode": _Episode,
    "decision": _Decision,
    "artifact": _Artifact,
    "begun": _ActionBegun,
    "ended": _IdOnly,
    "asked": _ApprovalRequested,
    "given": _ApprovalAnswered,
    "comment": _Text,
    "lifecycle": _Lifecycle,
    "model": _Model,
    "spend": _Spend,
    "aside": _SupersededSpans,
}


def check_shape(kind: str, data: dict[str, Any]) -> None:
    """Raise Invalid("bad_value") if a field does not have the type that readers rely on."""
    shape = _SHAPES.get(kind)
    if shape is not None:
        try:
            msgspec.convert(data, thread_safe_struct(shape))
        except msgspec.ValidationError as error:
            raise Invalid(
                "bad_value", f"this is no {kind} ({error}): correct the value and repeat"
            ) from error
