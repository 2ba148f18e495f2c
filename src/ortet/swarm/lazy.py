"""A swarm runner that imports the swarm code only when a swarm is used.

A module of its own, because every command creates it and must start fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.sessions.manager import SwarmRunner
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import SwarmRequest, SwarmResult


class LazySwarms:
    """Delegates to `LocalSwarms`, which is imported at first use."""

    def __init__(self, opener: Callable[..., Any]) -> None:
        self._opener = opener

    @cached_property
    def _swarms(self) -> SwarmRunner:
        from ortet.swarm.runner import LocalSwarms  # noqa: PLC0415 - as said above

        return LocalSwarms(self._opener)

    def run(self, session: Session, request: SwarmRequest) -> SwarmResult:
        """Run or continue a swarm; see `LocalSwarms.run`."""
        return self._swarms.run(session, request)

    def all(self, session: SessionReader) -> list[SwarmResult]:
        """Return all swarms of a session; see `LocalSwarms.all`."""
        return self._swarms.all(session)

    def get(self, session: SessionReader, name: str) -> SwarmResult:
        """Return one swarm of a session; see `LocalSwarms.get`."""
        return self._swarms.get(session, name)
