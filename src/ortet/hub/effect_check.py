"""Compare the ledger of effects with the journals, and rebuild it from them.

The rows of effects decide whether something happens again. The journals say the same, protected by
the hash of each commit. `verify` reports rows that are missing, damaged, or behind the journals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ortet.backends.base import CatalogRow, RowChange
from ortet.errors import Corrupt, OrtetError
from ortet.hub.governance.rewrite_objects import reachable_journals
from ortet.sessions.actions.effect_recovery import JournalEffects, seen_origins, settled_or_open
from ortet.sessions.actions.ledger import (
    DONE,
    FAILED,
    KEY_KIND,
    EffectRow,
    Ledger,
    decode_effect,
    effect_change,
    effect_kind,
    is_newer,
    key_change,
    ledger_of,
    ledgers_of,
    root_timeline,
)
from ortet.sessions.history.load import origin_of
from ortet.sessions.table import ARCHIVED

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager

_PAGE = 1000
_MAX_ROUNDS = 3


class LedgerProblem(NamedTuple):
    """A row that does not say what the journals say, and the changes that correct it."""

    where: str
    what: str
    repair: list[RowChange]


def check_ledgers(sessions: SessionManager) -> Iterator[LedgerProblem]:
    """Yield each effect whose rows are missing, damaged, or behind the journals."""
    catalog = sessions.store.catalog
    related = _related_ledgers(sessions)
    recorded = _recorded_effects(sessions)
    rows = recorded.recorded.rows
    for ledger in sorted(related):
        yield from _damaged_rows(sessions, ledger, rows)
    yield from _damaged_keys(sessions)
    for place, row in sorted(rows.items()):
        if row.ledger in related:
            names = [row.ledger, *sorted(related[row.ledger] - {row.ledger})]
            yield from _check_effect(
                Ledger(catalog, names, {}), row, recorded.recorded.timelines[place]
            )


def repair_ledgers(sessions: SessionManager) -> list[str]:
    """Rebuild the rows that `check_ledgers` reports, and say what was done."""
    done: list[str] = []
    for _ in range(_MAX_ROUNDS):  # a row that is rebuilt may show what is wrong with another
        problems = list(check_ledgers(sessions))
        for problem in problems:
            sessions.store.catalog.move(
                [], verb="repair", actor=sessions.store.author, rows=problem.repair
            )
            done.append(f"{problem.where}: {problem.what}")
        if not problems:
            break
    return done


def _related_ledgers(sessions: SessionManager) -> dict[str, set[str]]:
    """Return the ledgers that sessions read or that arrived, each with those read beside it."""
    catalog = sessions.store.catalog
    found = {ledger_of(origin): set[str]() for origin in seen_origins(catalog)}
    for row in sessions.all():
        names = ledgers_of(catalog, row)
        for name in names:
            found.setdefault(name, set()).update(names)
    return found


def _recorded_effects(sessions: SessionManager) -> JournalEffects:
    """Return the effects of all journals, and of events that no commit holds yet."""
    services, catalog = sessions.services, sessions.store.catalog
    effects = JournalEffects(services)
    for journal in reachable_journals(sessions):
        effects.add_journal(journal.segment)
    for row in sessions.all():
        if row.status == ARCHIVED and catalog.head(f"branch:{row.branch}") is None:
            continue
        try:
            line = services.load(row).line
            origin = origin_of(services, line.base) or root_timeline(catalog, row.timeline)
            effects.add_events(line.events(line.base.seq), origin)
        except OrtetError:  # reported by the check of the event chains
            continue
    return effects


def _damaged_rows(
    sessions: SessionManager, ledger: str, recorded: dict[tuple[str, str], EffectRow]
) -> Iterator[LedgerProblem]:
    for row in _rows(sessions, effect_kind(ledger)):
        try:
            decode_effect(row)
        except Corrupt as error:
            known = recorded.get((ledger, row.key))
            again = RowChange(row.kind, row.key, None)
            if known is not None:
                again = effect_change(replace(settled_or_open(known), ledger=ledger))
            yield LedgerProblem(f"effect {row.key}", error.message, [again])


def _damaged_keys(sessions: SessionManager) -> Iterator[LedgerProblem]:
    for row in _rows(sessions, KEY_KIND):
        home, _, key = row.key.partition("/")
        try:
            Ledger(sessions.store.catalog, [home], {}).find_in(home, key)
        except Corrupt as error:
            yield LedgerProblem(
                f"effect key {row.key}", error.message, [RowChange(KEY_KIND, row.key, None)]
            )


def _rows(sessions: SessionManager, kind: str) -> Iterator[CatalogRow]:
    after = ""
    while page := sessions.store.catalog.rows(kind, after, _PAGE):
        yield from page
        after = page[-1].key


def _check_effect(ledger: Ledger, row: EffectRow, timeline: str) -> Iterator[LedgerProblem]:
    effect, where = row.effect, f"effect {row.effect.id}"
    again = settled_or_open(row)
    try:
        found = ledger.find(effect.id)
    except Corrupt:
        return  # reported as damaged
    if found is None:
        what = f"{effect.name!r} is {effect.state} in a journal and has no row"
        yield LedgerProblem(where, what, [effect_change(again)])
    elif effect.state in (DONE, FAILED) and is_newer(row, found.row):
        what = f"{effect.name!r} is {effect.state} in a journal, and {found.row.effect.state} here"
        merged = replace(
            found.row, effect=effect, outcome=row.outcome, error=row.error, ledger=found.row.ledger
        )
        yield LedgerProblem(where, what, [effect_change(merged)])
    elif (found.row.effect.name, found.row.effect.key) != (effect.name, effect.key):
        what = f"{effect.name!r} of key {effect.key!r} is not what its row says"
        yield LedgerProblem(where, what, [effect_change(replace(again, ledger=found.row.ledger))])
    if effect.key and effect.replay != "pure":
        home = timeline if effect.scope == "timeline" else ledger.home
        yield from _check_key(ledger, again if found is None else found.row, home)


def _check_key(ledger: Ledger, row: EffectRow, home: str) -> Iterator[LedgerProblem]:
    key = row.effect.key
    try:
        homes = [home] if row.effect.scope == "timeline" else [home, *ledger.names]
        if any(ledger.find_in(one, key) is not None for one in homes):
            return
        what = f"the key {key!r} of {row.effect.name!r} has no row"
    except Corrupt as error:
        what = error.message
    changes = [key_change(home, key, row, expect=None)]
    yield LedgerProblem(f"effect key {home}/{key}", what, changes)
