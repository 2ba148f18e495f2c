"""Shapes of event data by kind, checked before an event is written.

An event that cannot be folded would make the session impossible to open.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid


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
