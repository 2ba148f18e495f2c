"""Checks of arguments before a verb does any work. Invalid tells the caller what to pass."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ortet.errors import Invalid


class Constraint(NamedTuple):
    """A condition on an argument, with its description for the error message."""

    description: str
    accepts: Callable[[Any], bool]
    kind: str = "bad_value"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    text = os.fspath(value)
    return isinstance(text, str) and text != "" and "\0" not in text


TEXT = Constraint("text", lambda value: isinstance(value, str), "not_text")
PATH = Constraint("a path, not empty and without NUL, as text or a Path", _is_path, "bad_path")
COUNT = Constraint("a whole number from 0", _is_count)
POSITIVE_COUNT = Constraint(
    "a whole number from 1", lambda value: _is_count(value) and value > 0, "bad_count"
)
NUMBER = Constraint("a number from 0", _is_number)
FRACTION = Constraint("a number from 0 to 1", lambda value: _is_number(value) and value <= 1)
FLAG = Constraint("True or False", lambda value: isinstance(value, bool))
DICT = Constraint("a dict", lambda value: isinstance(value, Mapping))
CALLABLE = Constraint("a function", callable)
TEXT_OR_BYTES = Constraint("text or bytes", lambda value: isinstance(value, str | bytes))
LIST = Constraint(
    "a list",
    lambda value: (
        type(value) is list or (isinstance(value, Iterable) and not isinstance(value, str | bytes))
    ),
)


def require(constraint: Constraint, /, **fields: Any) -> None:
    """Raise Invalid, naming the parameter, unless every value satisfies `constraint`."""
    for name, value in fields.items():
        if not constraint.accepts(value):
            shown = repr(value) if isinstance(value, int | float) else type(value).__name__
            raise Invalid(constraint.kind, f"{name} is {shown}: give {constraint.description}")


def optional(constraint: Constraint, /, **fields: Any) -> None:
    """Check like `require`, but accept None for a value that was left out."""
    require(constraint, **{name: value for name, value in fields.items() if value is not None})


def check_text(**fields: Any) -> None:
    """Raise Invalid unless every argument is a str.

    Other values cannot be serialised into the journal.
    """
    require(TEXT, **fields)


def check_texts(name: str, value: Any) -> list[str]:
    """Return `value` as a list of str. Raise Invalid if it is a single str or not iterable."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise Invalid("not_text", f"{name} is {type(value).__name__}: give a list of texts")
    several = list(value)
    for text in several:
        check_text(**{f"one of {name}": text})
    return several
