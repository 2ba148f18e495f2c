"""The ledger of effects: the catalog rows that say what was begun and done, and under which key.

A ledger belongs to the origin of a history: the timeline on which the first event of its journal
was written. Every commit names it in its segments, so that all stores that have the commit agree on
the ledger, and can rebuild the rows from the journals (`effect_recovery.py`).

Rows, each with a checksum of its place and its value:

- `deed/{ledger}`, by effect id: an `EffectRow`.
- `deed-key`, by `{ledger}/{key}` or `{timeline}/{key}`: the id of the effect under a key, behind
  its ledger and a slash if that is another one.

A session that restores a commit of another origin keeps its ledgers and adds the one of that
origin: what was done stays done. `SessionRow.ledgers` lists them, that of the present history
first. New effects are written there, and their keys in all of them. The families of earlier
releases have the ledger `family`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ortet._util.codec import add_checksum, decode, encode, strip_checksum
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import Corrupt
from ortet.journal.state.records import Effect

if TYPE_CHECKING:
    from ortet.sessions.table import SessionRow

DONE, FAILED, BEGUN, UNSETTLED = "done", "failed", "begun", "unsettled"
OPEN_STATES = (BEGUN, UNSETTLED)

KEY_KIND = "deed-key"
_RANKS = {BEGUN: 0, UNSETTLED: 1, FAILED: 2, DONE: 3}
_SAME_ATTEMPT_NS = 1_000_000_000


class EffectRow(msgspec.Struct, frozen=True):
    """The catalog row of an effect. It survives every restore.

    `session` performed it; "" if that was in another store. `call` is the call as text, for an
    effect with a key. `ledger` is that of the row.
    """

    effect: Effect
    session: str
    outcome: Any = None
    error: str = ""
    ledger: str = ""
    call: str = ""


class StoredEffect(NamedTuple):
    """An effect and the version of its row."""

    row: EffectRow
    version: int


def effect_kind(ledger: str) -> str:
    """Return the kind of the effect rows of a ledger."""
    return f"deed/{ledger}"


def effect_change(row: EffectRow, expect: int | None = None) -> RowChange:
    """Return the change that writes the row of an effect in its ledger."""
    kind, id_ = effect_kind(row.ledger), row.effect.id
    value = add_checksum(f"{kind}/{id_}", encode(row))
    return RowChange(kind, id_, value, expect=expect)


def key_change(home: str, key: str, effect: EffectRow, expect: int | None = 0) -> RowChange:
    """Return the change that puts an effect under a key of a ledger or timeline."""
    name = f"{home}/{key}"
    value = f"{effect.ledger}/{effect.effect.id}".encode()
    return RowChange(KEY_KIND, name, add_checksum(f"{KEY_KIND}/{name}", value), expect=expect)


def decode_effect(row: CatalogRow) -> EffectRow:
    """Return the effect of a row. Raise Corrupt if the row is damaged or misplaced."""
    found = decode(EffectRow, strip_checksum(f"{row.kind}/{row.key}", row.value))
    ledger = row.kind.removeprefix("deed/")
    if found.effect.id != row.key or found.ledger not in ("", ledger):
        raise damaged(f"{row.kind}/{row.key}", f"holds effect {found.effect.id}")
    return msgspec.structs.replace(found, ledger=ledger)


def damaged(row: str, what: str) -> Corrupt:
    """Return the error for a row that must not decide whether an effect is done."""
    return Corrupt(
        "bad_row",
        f"catalog row {row!r} {what}: nothing is done again on its word; run `ortet verify`, then "
        "`ortet verify --repair`",
        row=row,
    )


def ledgers_of(catalog: Catalog, row: SessionRow) -> list[str]:
    """Return the ledgers of a session, that of its present history first."""
    if row.ledgers:
        return row.ledgers
    return [row.family, ledger_of(root_timeline(catalog, row.timeline))]


def ledger_of(origin: str) -> str:
    """Return the ledger of an origin. It differs from the origin: timelines have keys, too."""
    return f"of-{origin}"


def root_timeline(catalog: Catalog, timeline: str) -> str:
    """Return the oldest timeline of this store that leads to a timeline."""
    line = catalog.timeline(timeline)
    while line is not None and line.parent:
        timeline = line.parent
        line = catalog.timeline(timeline)
    return timeline


def effect_rows(catalog: Catalog, ledgers: Sequence[str]) -> list[EffectRow]:
    """Return all effects of some ledgers, in the order they began."""
    found: dict[str, EffectRow] = {}
    for ledger in ledgers:
        for row in _rows(catalog, ledger):
            known = found.get(row.effect.id)
            if known is None or is_newer(row, known):
                found[row.effect.id] = row
    return [found[id_] for id_ in sorted(found)] if len(ledgers) > 1 else list(found.values())


def _rows(catalog: Catalog, ledger: str, after: str = "") -> Iterator[EffectRow]:
    while page := catalog.rows(effect_kind(ledger), after):
        yield from map(decode_effect, page)
        after = page[-1].key


def is_newer(one: EffectRow, other: EffectRow) -> bool:
    """Return True if `one` says more about the same effect than `other`.

    Done counts whatever else is known. Otherwise the later attempt counts, and of one attempt the
    later state. A row and the events of its journal have slightly different times.
    """
    a, b = one.effect, other.effect
    if DONE in (a.state, b.state):
        return b.state != DONE
    if a.begun == b.begun and abs(a.time - b.time) < _SAME_ATTEMPT_NS:
        return _RANKS[a.state] > _RANKS[b.state]
    return a.time > b.time


class LedgerIndex:
    """What the effect rows of one ledger say about keys and open outcomes.

    The rows are read once, and later the new ones. `keys` finds a key whose own row was lost, so
    that a lost row is never taken for "not done". `open` has effects that were not ended when they
    were read, by the digest of the call.
    """

    def __init__(self, ledger: str) -> None:
        self.keys: dict[str, str] = {}
        self.open: dict[str, dict[str, None]] = {}
        self.ids: set[str] = set()
        self._ledger = ledger
        self._after = ""
        self._lock = Lock()

    def refresh(self, catalog: Catalog) -> None:
        """Read the rows of effects that began since the last call."""
        with self._lock:
            for row in _rows(catalog, self._ledger, self._after):
                self.note(row)
                self._after = row.effect.id

    def note(self, row: EffectRow) -> None:
        """Add what a row says."""
        effect = row.effect
        self.ids.add(effect.id)
        if effect.key and effect.scope != "timeline":
            self.keys[effect.key] = effect.id
        if effect.state in OPEN_STATES:
            self.open.setdefault(effect.digest, {})[effect.id] = None
        elif effect.digest in self.open:
            self.drop(effect.digest, effect.id)

    def drop(self, digest: str, id_: str) -> None:
        """Forget an open effect, which has ended."""
        waiting = self.open.get(digest, {})
        waiting.pop(id_, None)
        if not waiting:
            self.open.pop(digest, None)


class Ledger:
    """The ledgers of one session, read as one. New effects are written to `home`."""

    def __init__(
        self, catalog: Catalog, names: Sequence[str], indexes: dict[str, LedgerIndex]
    ) -> None:
        self.names = names
        self.home = names[0]
        self._catalog = catalog
        self._indexes = [indexes.setdefault(name, LedgerIndex(name)) for name in names]
        self._is_read = False

    def find(self, id_: str) -> StoredEffect | None:
        """Return an effect by id."""
        best: StoredEffect | None = None
        for name in self.names:
            found = self._row(name, id_)
            if found is not None and (best is None or is_newer(found.row, best.row)):
                best = found
        return best

    def find_by_key(self, key: str) -> StoredEffect | None:
        """Return the effect under a key of the family.

        Raises:
            Corrupt: a row is damaged, or rows contradict each other.
        """
        best: StoredEffect | None = None
        for name in self.names:
            found = self.find_in(name, key)
            if found is not None and (best is None or is_newer(found.row, best.row)):
                best = found
        if best is None:
            for index in self._read():
                if id_ := index.keys.get(key):
                    raise damaged(f"{KEY_KIND}/{self.home}/{key}", f"is lost: effect {id_} had it")
        return best

    def find_in(self, home: str, key: str) -> StoredEffect | None:
        """Return the effect under a key of one ledger or timeline."""
        name = f"{home}/{key}"
        row = self._catalog.row(KEY_KIND, name)
        if row is None:
            return None
        ledger, id_ = _decode_key(row)
        found = self._row(ledger, id_) if ledger else None
        found = found or self.find(id_)  # rows of earlier releases do not name the ledger
        if found is None:
            raise damaged(f"{KEY_KIND}/{name}", f"names effect {id_!r}, which has no row")
        if found.row.effect.key != key:
            raise damaged(f"{KEY_KIND}/{name}", f"names an effect of key {found.row.effect.key!r}")
        return found

    def key_changes(self, row: EffectRow, timeline: str) -> list[RowChange]:
        """Return the changes that put a new effect under its key."""
        effect = row.effect
        homes = (timeline,) if effect.scope == "timeline" else self.names
        return [key_change(home, effect.key, row) for home in homes]

    def has_open_calls(self, digest: str) -> bool:
        """Return False if no effect with this digest of a call was open when it was read."""
        return any(digest in index.open for index in self._read())

    def open_calls(self, digest: str) -> Iterator[StoredEffect]:
        """Yield the effects with this digest of a call that have no known outcome."""
        for index in self._read():
            for id_ in list(index.open.get(digest, ())):
                found = self.find(id_)
                if found is None or found.row.effect.state not in OPEN_STATES:
                    index.drop(digest, id_)
                else:
                    yield found

    def note(self, row: EffectRow) -> None:
        """Remember a row that was just written."""
        self._indexes[0].note(row)

    def missing(self, effects: Iterable[Effect]) -> list[Effect]:
        """Return the effects that have no row."""
        known = set[str]().union(*(index.ids for index in self._read()))
        return [one for one in effects if one.id not in known and self.find(one.id) is None]

    @property
    def is_read(self) -> bool:
        """True if the rows were read and checked."""
        return self._is_read

    def _read(self) -> list[LedgerIndex]:
        if not self._is_read:
            for index in self._indexes:
                index.refresh(self._catalog)
            self._is_read = True
        return self._indexes

    def _row(self, ledger: str, id_: str) -> StoredEffect | None:
        row = self._catalog.row(effect_kind(ledger), id_)
        return None if row is None else StoredEffect(decode_effect(row), row.version)


def _decode_key(row: CatalogRow) -> tuple[str, str]:
    """Return (ledger or "", effect id) of a key row."""
    name = f"{row.kind}/{row.key}"
    try:
        text = strip_checksum(name, row.value).decode("ascii")
    except UnicodeDecodeError as error:
        raise damaged(name, "does not name an effect") from error
    ledger, slash, id_ = text.rpartition("/")
    return (ledger, id_) if slash else ("", text)
