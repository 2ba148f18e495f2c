"""Results of code cells, parsed from the replies of a kernel, which are not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec


class TracebackFrame(msgspec.Struct, frozen=True):
    """One line of a traceback. `source` is its text, also for lines of a cell."""

    file: str
    line: int
    function: str
    source: str


class CellError(msgspec.Struct, frozen=True):
    """An exception in the executed code. `text` is the whole traceback as Python prints it."""

    type: str
    message: str
    frames: list[TracebackFrame]
    text: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class CellResult(msgspec.Struct, frozen=True):
    """The result of one `Kernel.run`.

    `value` is the value of the last expression if it is plain data (a tuple becomes a list),
    otherwise None; `repr` always shows it. `timed_out` is True if the time-out interrupted the
    code; `error` then holds the interrupt.
    """

    value: Any = None
    repr: str = ""
    stdout: str = ""
    stderr: str = ""
    error: CellError | None = None
    duration: float = 0.0
    timed_out: bool = False


class KernelVariable(msgspec.Struct, frozen=True):
    """A variable declared with `Kernel.vars`. `why` says why it cannot be saved or loaded."""

    name: str
    type: str
    why: str = ""

    @property
    def kept(self) -> bool:
        """True if the variable can be saved."""
        return not self.why


def parse_cell_result(
    reply: Mapping[str, Any], *, stdout: str, stderr: str, duration: float, timed_out: bool
) -> CellResult:
    """Parse the reply to a run. Raises ValueError or TypeError if no kernel would send it."""
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
    """Parse a list of variables. Raises ValueError if no kernel would send it."""
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
    """Return text that can be stored: lone surrogates are replaced."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value.encode("utf-8", "replace").decode()


def _storable_value(value: Any) -> Any:
    """Return the value if it is plain data that can be stored.

    Raises ValueError or TypeError if it is not.
    """
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value
