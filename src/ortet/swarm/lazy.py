"""A runner of swarms that loads nothing until there is a swarm: a command must start fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.sessions.reader import View
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import SwarmResult, Swarms, Wish


class LazySwarms:
    """See LocalSwarms."""

    def __init__(self, opener: Callable[..., Any]) -> None:
        self._opener = opener

    @cached_property
    def _swarms(self) -> Swarms:
        from ortet.swarm.runner import LocalSwarms  # noqa: PLC0415 - as said above

        return LocalSwarms(self._opener)

    def run(self, session: Session, wish: Wish) -> SwarmResult:
        return self._swarms.run(session, wish)

    def all(self, session: View) -> list[SwarmResult]:
        return self._swarms.all(session)

    def get(self, session: View, name: str) -> SwarmResult:
        return self._swarms.get(session, name)
