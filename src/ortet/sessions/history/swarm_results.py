"""Results of a swarm: adopt or merge the best attempts, harvest facts, drop the forks.

Each step is written in one transaction with the row that marks it as done, so that none is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortet.backends.base import RowChange
from ortet.history.records import State
from ortet.ids import Oid, to_hex
from ortet.journal.events import Draft, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.state.merge import Contradiction, fact_data, merge_states
from ortet.journal.state.records import Fact
from ortet.journal.state.state import SessionState
from ortet.sessions.history.load import journal_of
from ortet.sessions.history.merge import SessionMergeResult
from ortet.sessions.session import Session
from ortet.sessions.table import PAUSED

if TYPE_CHECKING:
    pass

HarvestRowFactory = Callable[[list[Fact], list[Contradiction]], RowChange]
"""Makes the row to write together with the harvested facts."""


def pause_with(session: Session, row: RowChange) -> None:
    """Pause a session after its last commit and write `row` in the same transaction."""
    try:
        session.internals.pipeline.budget.settle()
        session.internals.lifecycle.set_status(PAUSED, "", rows=[row])
    finally:
        session.internals.lifecycle.release()


def adopt_with(session: Session, commit: Oid, row: RowChange) -> None:
    """Adopt a commit. If that moves the session, `row` is written in the same transaction."""
    with session.internals.navigation.participant.with_rows(row):
        session.adopt(to_hex(commit))


def merge_with(session: Session, commit: Oid, row: RowChange, message: str) -> SessionMergeResult:
    """Merge a commit and write `row` in the same transaction. Our side wins conflicts."""
    with session.internals.navigation.participant.with_rows(row):
        return session.merge(to_hex(commit), favor="ours", message=message)


def harvest(
    session: Session, point: Oid, others: Sequence[tuple[str, Oid]], make_row: HarvestRowFactory
) -> tuple[list[Fact], list[Contradiction]]:
    """Record the facts and lessons that others learned since `point`.

    Args:
        others: pairs of a name and a commit.
        make_row: makes the row to write in the same transaction.

    Returns:
        The recorded facts, and contradictions between them and known facts.
    """
    sessions, ledger = session.internals.services, session.internals.pipeline.writer
    facts: list[Fact] = []
    contradictions: list[Contradiction] = []
    drafts: list[Draft] = []
    base = _state_at(session, point)
    with ledger.exclusive():
        ledger.flush()
        line, tip = ledger.event_log, ledger.tip
        ours = SessionState.load(sessions.maps, sessions.store.objects, line.base.fold)
        fold(ours, line.events(line.base.seq, tip.seq))
        for name, commit in others:
            found = merge_states(base, ours, _state_at(session, commit))
            for fact in (*found.facts, *found.lessons):
                data = {**fact_data(fact), "merged": name}
                draft = Draft("lesson" if fact.lesson else "fact", data, sessions.store.author)
                _, event = sessions.chain.make(tip, draft, sessions.store.clock.now_ns())
                fold(ours, [event])
                tip = Tip(event.seq, event.hash, event.time)
                drafts.append(draft)
                facts.append(fact)
            contradictions += found.contradictions
        row = make_row(facts, contradictions)
        if drafts:
            session.internals.pipeline.begin_change()
            ledger.add(*drafts, rows=[row])
        else:
            sessions.store.catalog.move(
                [], verb="swarm", lease=session.internals.held_lease.lease, rows=[row]
            )
    return facts, contradictions


def _state_at(session: Session, commit: Oid) -> SessionState:
    sessions = session.internals.services
    state: State = sessions.store.history.state(commit)
    return SessionState.load(
        sessions.maps, sessions.store.objects, journal_of(sessions, state).fold
    )
