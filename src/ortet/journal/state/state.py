"""A mind: what its events add up to, loaded from a fold and brought forward event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from ortet._util.codec import Record, decode, encode
from ortet.history.records import Fold
from ortet.history.tree.maps import Maps
from ortet.ids import Oid
from ortet.journal.state.around import Browsing, Collaboration, Token, Window
from ortet.journal.state.records import (
    Approval,
    Artifact,
    Core,
    Decision,
    Effect,
    Episode,
    Fact,
    Note,
    Question,
    Thing,
)
from ortet.objects.base import Kind, Objects

T = TypeVar("T", bound=Thing)

_TABLES: dict[str, type[Thing]] = {
    "approvals": Approval,
    "artifacts": Artifact,
    "browsers": Browsing,
    "collaborations": Collaboration,
    "decisions": Decision,
    "effects": Effect,
    "episodes": Episode,
    "facts": Fact,
    "notes": Note,
    "past": Fact,
    "questions": Question,
    "tokens": Token,
    "windows": Window,
}


class Table(Generic[T]):
    """A stored map, and what changed since it was stored. A commit that stores it may fail, and
    then takes its pages along: what changed is let go of when `saved` says that it did not."""

    def __init__(self, maps: Maps, kind: type[T], root: bytes = b"") -> None:
        self._maps = maps
        self._kind = kind
        self._root = root
        self._changes: dict[str, T | None] = {}
        self._put: tuple[bytes, dict[str, T | None]] | None = None

    def get(self, key: str) -> T | None:
        if key in self._changes:
            return self._changes[key]
        data = self._maps.get(Oid(self._root), key.encode()) if self._root else None
        return None if data is None else decode(self._kind, data)

    def set(self, key: str, value: T) -> None:
        self._changes[key] = value

    def drop(self, key: str) -> None:
        self._changes[key] = None

    def __iter__(self) -> Iterator[T]:
        """In order of keys."""
        stored: dict[str, T | None] = {}
        if self._root:
            for key, data in self._maps.items(Oid(self._root)):
                stored[key.decode()] = decode(self._kind, data)
        stored.update(self._changes)
        return (value for _, value in sorted(stored.items()) if value is not None)

    @property
    def root(self) -> bytes:
        return self._root

    def ahead(self) -> tuple[bytes, list[tuple[str, bytes | None]]]:
        """The root, and what changed since."""
        changes = sorted(self._changes.items())
        return self._root, [(k, None if v is None else encode(v)) for k, v in changes]

    def go_ahead(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        for key, data in changes:
            self._changes[key] = None if data is None else decode(self._kind, data)

    def save(self) -> bytes:
        """Store it; returns its root, b"" for an empty map that never held anything."""
        if self._changes:
            edits = {
                key.encode(): None if value is None else encode(value)
                for key, value in self._changes.items()
            }
            if self._root:
                root = self._maps.patch(Oid(self._root), edits)
            else:
                root = self._maps.build({k: v for k, v in edits.items() if v is not None})
            self._put = root, dict(self._changes)
            return root
        return self._root

    def saved(self) -> None:
        """What was stored last is in a commit."""
        if self._put is not None:
            (self._root, held), self._put = self._put, None
            self._changes = {
                key: value
                for key, value in self._changes.items()
                if key not in held or held[key] is not value
            }


class Ahead(Record, frozen=True):
    """What a mind knows beyond the fold that it was loaded from: its core, and of each table the
    root that it goes on from, with what was set or dropped since."""

    core: bytes
    tables: list[tuple[str, bytes, list[tuple[str, bytes | None]]]]


class Mind:
    """`core` is replaced, tables are changed, by folding (see folding.py) and nothing else."""

    def __init__(self, maps: Maps, fold: Fold | None = None) -> None:
        roots = dict(fold.maps) if fold is not None else {}
        self.core = decode(Core, fold.core) if fold is not None else Core()
        self.approvals = Table(maps, Approval, roots.get("approvals", b""))
        self.artifacts = Table(maps, Artifact, roots.get("artifacts", b""))
        self.browsers = Table(maps, Browsing, roots.get("browsers", b""))
        self.collaborations = Table(maps, Collaboration, roots.get("collaborations", b""))
        self.decisions = Table(maps, Decision, roots.get("decisions", b""))
        self.effects = Table(maps, Effect, roots.get("effects", b""))
        self.episodes = Table(maps, Episode, roots.get("episodes", b""))
        self.facts = Table(maps, Fact, roots.get("facts", b""))
        self.notes = Table(maps, Note, roots.get("notes", b""))
        self.past = Table(maps, Fact, roots.get("past", b""))  # facts that were given up
        self.questions = Table(maps, Question, roots.get("questions", b""))
        self.tokens = Table(maps, Token, roots.get("tokens", b""))
        self.windows = Table(maps, Window, roots.get("windows", b""))

    @classmethod
    def load(cls, maps: Maps, objects: Objects, fold: bytes) -> Mind:
        """The mind a fold holds; b"": a new one."""
        return cls(maps, decode(Fold, objects.get(objects.heir(Oid(fold)))) if fold else None)

    def equals(self, other: Mind) -> bool:
        """Whether both know the same, however their maps came to be."""
        mine, theirs = (msgspec.structs.replace(m.core, last=b"") for m in (self, other))
        return mine == theirs and all(
            list(getattr(self, name)) == list(getattr(other, name)) for name in _TABLES
        )

    def change(self, **fields: object) -> None:
        """Replace some of the core."""
        self.core = msgspec.structs.replace(self.core, **fields)

    def save(self, objects: Objects) -> Oid:
        """Store it: the core, and the pages of tables that changed."""
        roots = [(name, getattr(self, name).save()) for name in sorted(_TABLES)]
        fold = Fold(encode(self.core), [(name, root) for name, root in roots if root])
        return objects.put(Kind.FOLD, encode(fold))

    def ahead(self) -> Ahead:
        """What another needs to know the same that has its fold."""
        tables = [(name, *getattr(self, name).ahead()) for name in sorted(_TABLES)]
        return Ahead(encode(self.core), tables)

    def go_ahead(self, ahead: Ahead) -> bool:
        """Know that too, as one that was just loaded; False where it goes on from another fold."""
        tables = {name: (root, changes) for name, root, changes in ahead.tables}
        if set(tables) != set(_TABLES):
            return False
        if any(getattr(self, name).root != root for name, (root, _) in tables.items()):
            return False
        core = decode(Core, ahead.core)
        for name, (_, changes) in tables.items():
            getattr(self, name).go_ahead(changes)
        self.core = core
        return True

    def saved(self) -> None:
        """The commit that it was stored for is there."""
        for name in _TABLES:
            getattr(self, name).saved()
