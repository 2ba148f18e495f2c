"""What a kernel says became of code: plain records, made of what cannot be trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec


class Frame(msgspec.Struct, frozen=True):
    """A line that was being executed; `source` is its text, of a cell too."""

    file: str
    line: int
    function: str
    source: str


class Failure(msgspec.Struct, frozen=True):
    """An error in the code that was run; `text` is the whole traceback, as Python shows it."""

    type: str
    message: str
    frames: list[Frame]
    text: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Ran(msgspec.Struct, frozen=True):
    """How a run in a kernel went.

    `value` is that of the last expression when it is plain data (a tuple becomes a list), otherwise
    None, and `repr` shows it. `timed_out`: it was interrupted for its time, see `error`.
    """

    value: Any = None
    repr: str = ""
    stdout: str = ""
    stderr: str = ""
    error: Failure | None = None
    duration: float = 0.0
    timed_out: bool = False


class Var(msgspec.Struct, frozen=True):
    """A variable that is to outlive its interpreter; `why` says why it cannot."""

    name: str
    type: str
    why: str = ""

    @property
    def kept(self) -> bool:
        return not self.why


def ran_of(
    reply: Mapping[str, Any], *, stdout: str, stderr: str, duration: float, timed_out: bool
) -> Ran:
    """ValueError or TypeError for what no kernel says."""
    error = reply.get("error")
    return Ran(
        value=_sound(reply.get("value")),
        repr=_text(reply.get("repr", "")),
        stdout=stdout,
        stderr=stderr,
        error=None if error is None else _failure(error),
        duration=duration,
        timed_out=timed_out,
    )


def vars_of(items: Any) -> list[Var]:
    """ValueError for what no kernel says."""
    try:
        return [
            Var(_text(one["name"]), _text(one["type"]), _text(one.get("why", ""))) for one in items
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("no list of variables") from error


def _failure(said: Any) -> Failure:
    try:
        frames = [
            Frame(_text(file), int(line), _text(function), _text(source))
            for file, line, function, source in said["frames"]
        ]
        return Failure(_text(said["type"]), _text(said["message"]), frames, _text(said["text"]))
    except (TypeError, KeyError) as error:
        raise ValueError("no error of a cell") from error


def _text(value: Any) -> str:
    """Text that can be stored: a lone surrogate cannot."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value.encode("utf-8", "replace").decode()


def _sound(value: Any) -> Any:
    """Plain data that can be stored."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value
