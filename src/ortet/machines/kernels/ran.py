"""What a kernel says became of code: plain records, made of what cannot be trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec


class TracebackFrame(msgspec.Struct, frozen=True):
    """A line that was being executed; `source` is its text, of a cell too."""

    file: str
    line: int
    function: str
    source: str


class CellError(msgspec.Struct, frozen=True):
    """An error in the code that was run; `text` is the whole traceback, as Python shows it."""

    type: str
    message: str
    frames: list[TracebackFrame]
    text: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class CellResult(msgspec.Struct, frozen=True):
    """How a run in a kernel went.

    `value` is that of the last expression when it is plain data (a tuple becomes a list), otherwise
    None, and `repr` shows it. `timed_out`: it was interrupted for its time, see `error`.
    """

    value: Any = None
    repr: str = ""
    stdout: str = ""
    stderr: str = ""
    error: CellError | None = None
    duration: float = 0.0
    timed_out: bool = False


class KernelVariable(msgspec.Struct, frozen=True):
    """A variable that is to outlive its interpreter; `why` says why it cannot."""

    name: str
    type: str
    why: str = ""

    @property
    def kept(self) -> bool:
        return not self.why


def parse_cell_result(
    reply: Mapping[str, Any], *, stdout: str, stderr: str, duration: float, timed_out: bool
) -> CellResult:
    """ValueError or TypeError for what no kernel says."""
    error = reply.get("error")
    return CellResult(
        value=_storable_value(reply.get("value")),
        repr=_storable_text(reply.get("repr", "")),
        stdout=stdout,
        stderr=stderr,
        error=None if error is None else _parse_error(error),
        duration=duration,
        timed_out=timed_out,
    )


def parse_variables(items: Any) -> list[KernelVariable]:
    """ValueError for what no kernel says."""
    try:
        return [
            KernelVariable(
                _storable_text(one["name"]),
                _storable_text(one["type"]),
                _storable_text(one.get("why", "")),
            )
            for one in items
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("no list of variables") from error


def _parse_error(reply: Any) -> CellError:
    try:
        frames = [
            TracebackFrame(
                _storable_text(file), int(line), _storable_text(function), _storable_text(source)
            )
            for file, line, function, source in reply["frames"]
        ]
        return CellError(
            _storable_text(reply["type"]),
            _storable_text(reply["message"]),
            frames,
            _storable_text(reply["text"]),
        )
    except (TypeError, KeyError) as error:
        raise ValueError("no error of a cell") from error


def _storable_text(value: Any) -> str:
    """Text that can be stored: a lone surrogate cannot."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value.encode("utf-8", "replace").decode()


def _storable_value(value: Any) -> Any:
    """Plain data that can be stored."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value
