"""Payloads of an older schema, brought to the present one when they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ortet.errors import Invalid

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Data of one version in, data of the next version out."""

_CUSTOM_KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
_MAX_KIND_CHARS = 100


class UpcastRegistry:
    """Which function leads from a version of a kind to the next. What none leads on from stays as
    it is: a newer version than this program knows is kept and shown."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], Upcast] = {}

    def register(self, kind: str, version: int, function: Upcast) -> None:
        """From now on, data of `kind` at `version` is read through `function`, as version + 1."""
        if not kind or not isinstance(kind, str):
            raise Invalid("bad_upcast", f"kind {kind!r}: give the kind of event it is for")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise Invalid("bad_upcast", f"version {version!r}: give a number from 1")
        if not callable(function):
            raise Invalid("bad_upcast", f"{function!r} cannot be called: give a function of data")
        self._steps[kind, version] = function

    def unregister(self, kind: str, version: int) -> None:
        self._steps.pop((kind, version), None)

    def apply(self, kind: str, version: int, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """As far up as it goes; what was recorded is not changed by it."""
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
    """A program's own kind has a dot, so that it is never one of ours, of any release."""
    if isinstance(kind, str) and len(kind) <= _MAX_KIND_CHARS and _CUSTOM_KIND.fullmatch(kind):
        return kind
    raise Invalid(
        "bad_kind",
        f"kind {kind!r}: name the program and the thing, as 'myapp.ticket', in lower case",
    )


def upcast(kind: str, version: int) -> Callable[[Upcast], Upcast]:
    """Decorate a function that makes data of `version` of your own kind that of version + 1.

    Whatever is read from now on goes through it; what was recorded stays as it is.
    """

    def keep(function: Upcast) -> Upcast:
        register(check_custom_kind(kind), version, function)
        return function

    return keep


_REGISTRY = UpcastRegistry()  # a program's schemas are the same for every store it opens
register = _REGISTRY.register
unregister = _REGISTRY.unregister
apply = _REGISTRY.apply
