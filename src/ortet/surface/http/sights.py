"""Which commits a caller may name: those of sessions whose agent its token is for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortet.errors import NotFound
from ortet.ids import Oid
from ortet.session.hub import Hub
from ortet.surface.http.tokens import Caller


@contextmanager
def seen_by(caller: Caller, hub: Hub) -> Iterator[None]:
    """While it works for this caller, a hub knows no other commit, by whatever name."""
    if not caller.agents:
        yield
        return
    hub.refs.sees = _Sight(caller, hub).sees
    try:
        yield
    finally:
        hub.refs.sees = None


class _Sight:
    """Looked up when a commit is first named."""

    def __init__(self, caller: Caller, hub: Hub) -> None:
        self._caller = caller
        self._hub = hub
        self._known: set[Oid] = set()
        self._rest: list[Oid] | None = None

    def sees(self, oid: Oid) -> bool:
        """Whether it can be reached from where a branch of theirs is, or has been."""
        if self._rest is None:
            self._rest = list(self._heads())
        while oid not in self._known and self._rest:
            found = self._rest.pop()
            if found not in self._known:
                self._known.add(found)
                self._rest += self._parents(found)
        return oid in self._known

    def _parents(self, oid: Oid) -> list[Oid]:
        try:
            return self._hub.history.read(oid).parents
        except NotFound:  # of an old move, swept since
            return []

    def _heads(self) -> Iterator[Oid]:
        for row in self._hub.sessions():
            if self._caller.sees(row.agent):
                for op in self._hub.refs.reflog(row.branch):
                    yield from (one for one in (op.old, op.new) if one is not None)
                head = self._hub.refs.get(row.branch)
                if head is not None:
                    yield head.oid
