"""Convert event data of older schema versions to the newest one when it is read.

Stored events do not change. A program registers a conversion for each version of its own event
kinds; the store uses all of them in every session that the program opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortet.errors import Invalid
from ortet.journal.events import check_custom_kind

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Function from data of one version to data of the next version."""


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
