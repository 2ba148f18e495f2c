"""The state of a session, loaded from a stored fold and changed event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet.history.records import Fold
from ortet.history.tree.tree import Maps
from ortet.ids import Oid
from ortet.journal.state.records import (
    Approval,
    Artifact,
    BrowserState,
    Collaboration,
    CoreState,
    Decision,
    Effect,
    Episode,
    Fact,
    NoteRecord,
    Question,
    RateLimitWindow,
    ServiceToken,
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
    """A stored map with the changes since it was stored.

    Changes are kept until `mark_committed`, because the commit that stores them may fail and its
    pages are lost then.
    """

    def __init__(self, maps: Maps, record_type: type[T], root: bytes = b"") -> None:
        self._maps = maps
        self._record_type = record_type
        self._root = root
        self._changes: dict[str, T | None] = {}
        self._uncommitted: tuple[bytes, dict[str, T | None]] | None = None

    def get(self, key: str) -> T | None:
        """Return the value of a key, or None."""
        if key in self._changes:
            return self._changes[key]
        data = self._maps.get(Oid(self._root), key.encode()) if self._root else None
        return None if data is None else decode(self._record_type, data)

    def set(self, key: str, value: T) -> None:
        self._changes[key] = value

    def drop(self, key: str) -> None:
        self._changes[key] = None

    def __iter__(self) -> Iterator[T]:
        """Iterate over the values in key order."""
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
        """Return the root, and the changes since that root was stored."""
        changes = sorted(self._changes.items())
        return self._root, [(k, None if v is None else encode(v)) for k, v in changes]

    def apply_pending_changes(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        for key, data in changes:
            self._changes[key] = None if data is None else decode(self._record_type, data)

    def save(self) -> bytes:
        """Store the map and return its root; b"" for a map that was always empty."""
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
        """Record that the map stored last is in a commit."""
        if self._uncommitted is not None:
            (self._root, held), self._uncommitted = self._uncommitted, None
            self._changes = {
                key: value
                for key, value in self._changes.items()
                if key not in held or held[key] is not value
            }


class PendingChanges(StoredRecord, frozen=True):
    """Changes of a state since the fold that it was loaded from.

    `tables` holds for each table its root and the values that were set or dropped since.
    """

    core: bytes
    tables: list[tuple[str, bytes, list[tuple[str, bytes | None]]]]


class SessionState:
    """The state that the events of a session fold into.

    `core` is replaced and tables are changed only by folding (see `kinds.registry.fold`).
    """

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
        self.past = StateTable(maps, Fact, roots.get("past", b""))  # retracted facts
        self.questions = StateTable(maps, Question, roots.get("questions", b""))
        self.tokens = StateTable(maps, ServiceToken, roots.get("tokens", b""))
        self.windows = StateTable(maps, RateLimitWindow, roots.get("windows", b""))

    @classmethod
    def load(cls, maps: Maps, objects: ObjectStore, fold: bytes) -> SessionState:
        """Load the state of a fold; a new state for b""."""
        return cls(
            maps, decode(Fold, objects.get(objects.replacement_of(Oid(fold)))) if fold else None
        )

    def equals(self, other: SessionState) -> bool:
        """Return True if both hold equal records, however their maps were built."""
        mine, theirs = (msgspec.structs.replace(m.core, last=b"") for m in (self, other))
        return mine == theirs and all(
            list(getattr(self, name)) == list(getattr(other, name)) for name in _TABLES
        )

    def change_core(self, **fields: object) -> None:
        """Replace fields of the core."""
        self.core = msgspec.structs.replace(self.core, **fields)

    def save(self, objects: ObjectStore) -> Oid:
        """Store the core and the changed pages of the tables, and return the oid of the fold."""
        roots = [(name, getattr(self, name).save()) for name in sorted(_TABLES)]
        fold = Fold(encode(self.core), [(name, root) for name, root in roots if root])
        return objects.put(Kind.FOLD, encode(fold))

    def pending_changes(self) -> PendingChanges:
        """Return the changes since the fold, for a process that has loaded the same fold."""
        tables = [(name, *getattr(self, name).pending_changes()) for name in sorted(_TABLES)]
        return PendingChanges(encode(self.core), tables)

    def apply_pending_changes(self, pending: PendingChanges) -> bool:
        """Apply changes to a state that was just loaded.

        Returns:
            False, without any change, if the changes start from another fold.
        """
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
        """Record that the commit with the stored state exists."""
        for name in _TABLES:
            getattr(self, name).mark_committed()
