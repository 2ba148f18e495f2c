"""A mind: what its events add up to, loaded from a fold and brought forward event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet.history.records import Fold
from ortet.history.tree.maps import Maps
from ortet.ids import Oid
from ortet.journal.state.around import BrowserState, Collaboration, RateLimitWindow, ServiceToken
from ortet.journal.state.records import (
    Approval,
    Artifact,
    CoreState,
    Decision,
    Effect,
    Episode,
    Fact,
    NoteRecord,
    Question,
    StateRecord,
)
from ortet.objects.base import Kind, ObjectStore

T = TypeVar("T", bound=StateRecord)

_TABLES: dict[str, type[StateRecord]] = {
    "approvals": Approval,
    "artifacts": Artifact,
    "browsers": BrowserState,
    "collaborations": Collaboration,
    "decisions": Decision,
    "effects": Effect,
    "episodes": Episode,
    "facts": Fact,
    "notes": NoteRecord,
    "past": Fact,
    "questions": Question,
    "tokens": ServiceToken,
    "windows": RateLimitWindow,
}


class StateTable(Generic[T]):
    """A stored map, and what changed since it was stored. A commit that stores it may fail, and
    then takes its pages along: what changed is let go of when `saved` says that it did not."""

    def __init__(self, maps: Maps, record_type: type[T], root: bytes = b"") -> None:
        self._maps = maps
        self._record_type = record_type
        self._root = root
        self._changes: dict[str, T | None] = {}
        self._uncommitted: tuple[bytes, dict[str, T | None]] | None = None

    def get(self, key: str) -> T | None:
        if key in self._changes:
            return self._changes[key]
        data = self._maps.get(Oid(self._root), key.encode()) if self._root else None
        return None if data is None else decode(self._record_type, data)

    def set(self, key: str, value: T) -> None:
        self._changes[key] = value

    def drop(self, key: str) -> None:
        self._changes[key] = None

    def __iter__(self) -> Iterator[T]:
        """In order of keys."""
        stored: dict[str, T | None] = {}
        if self._root:
            for key, data in self._maps.items(Oid(self._root)):
                stored[key.decode()] = decode(self._record_type, data)
        stored.update(self._changes)
        return (value for _, value in sorted(stored.items()) if value is not None)

    @property
    def root(self) -> bytes:
        return self._root

    def pending_changes(self) -> tuple[bytes, list[tuple[str, bytes | None]]]:
        """The root, and what changed since."""
        changes = sorted(self._changes.items())
        return self._root, [(k, None if v is None else encode(v)) for k, v in changes]

    def apply_pending_changes(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        for key, data in changes:
            self._changes[key] = None if data is None else decode(self._record_type, data)

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
            self._uncommitted = root, dict(self._changes)
            return root
        return self._root

    def mark_committed(self) -> None:
        """What was stored last is in a commit."""
        if self._uncommitted is not None:
            (self._root, held), self._uncommitted = self._uncommitted, None
            self._changes = {
                key: value
                for key, value in self._changes.items()
                if key not in held or held[key] is not value
            }


class PendingChanges(StoredRecord, frozen=True):
    """What a mind knows beyond the fold that it was loaded from: its core, and of each table the
    root that it goes on from, with what was set or dropped since."""

    core: bytes
    tables: list[tuple[str, bytes, list[tuple[str, bytes | None]]]]


class SessionState:
    """`core` is replaced, tables are changed, by folding (see folding.py) and nothing else."""

    def __init__(self, maps: Maps, fold: Fold | None = None) -> None:
        roots = dict(fold.maps) if fold is not None else {}
        self.core = decode(CoreState, fold.core) if fold is not None else CoreState()
        self.approvals = StateTable(maps, Approval, roots.get("approvals", b""))
        self.artifacts = StateTable(maps, Artifact, roots.get("artifacts", b""))
        self.browsers = StateTable(maps, BrowserState, roots.get("browsers", b""))
        self.collaborations = StateTable(maps, Collaboration, roots.get("collaborations", b""))
        self.decisions = StateTable(maps, Decision, roots.get("decisions", b""))
        self.effects = StateTable(maps, Effect, roots.get("effects", b""))
        self.episodes = StateTable(maps, Episode, roots.get("episodes", b""))
        self.facts = StateTable(maps, Fact, roots.get("facts", b""))
        self.notes = StateTable(maps, NoteRecord, roots.get("notes", b""))
        self.past = StateTable(maps, Fact, roots.get("past", b""))  # facts that were given up
        self.questions = StateTable(maps, Question, roots.get("questions", b""))
        self.tokens = StateTable(maps, ServiceToken, roots.get("tokens", b""))
        self.windows = StateTable(maps, RateLimitWindow, roots.get("windows", b""))

    @classmethod
    def load(cls, maps: Maps, objects: ObjectStore, fold: bytes) -> SessionState:
        """The mind a fold holds; b"": a new one."""
        return cls(
            maps, decode(Fold, objects.get(objects.replacement_of(Oid(fold)))) if fold else None
        )

    def equals(self, other: SessionState) -> bool:
        """Whether both know the same, however their maps came to be."""
        mine, theirs = (msgspec.structs.replace(m.core, last=b"") for m in (self, other))
        return mine == theirs and all(
            list(getattr(self, name)) == list(getattr(other, name)) for name in _TABLES
        )

    def change_core(self, **fields: object) -> None:
        """Replace some of the core."""
        self.core = msgspec.structs.replace(self.core, **fields)

    def save(self, objects: ObjectStore) -> Oid:
        """Store it: the core, and the pages of tables that changed."""
        roots = [(name, getattr(self, name).save()) for name in sorted(_TABLES)]
        fold = Fold(encode(self.core), [(name, root) for name, root in roots if root])
        return objects.put(Kind.FOLD, encode(fold))

    def pending_changes(self) -> PendingChanges:
        """What another needs to know the same that has its fold."""
        tables = [(name, *getattr(self, name).pending_changes()) for name in sorted(_TABLES)]
        return PendingChanges(encode(self.core), tables)

    def apply_pending_changes(self, pending: PendingChanges) -> bool:
        """Know that too, as one that was just loaded; False where it goes on from another fold."""
        tables = {name: (root, changes) for name, root, changes in pending.tables}
        if set(tables) != set(_TABLES):
            return False
        if any(getattr(self, name).root != root for name, (root, _) in tables.items()):
            return False
        core = decode(CoreState, pending.core)
        for name, (_, changes) in tables.items():
            getattr(self, name).apply_pending_changes(changes)
        self.core = core
        return True

    def mark_committed(self) -> None:
        """The commit that it was stored for is there."""
        for name in _TABLES:
            getattr(self, name).mark_committed()
