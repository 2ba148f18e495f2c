"""Import of events that happened elsewhere, with their effects and spends.

All events of one call and the rows that belong to them are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.backends.base import RowChange
from ortet.ids import Oid
from ortet.journal.events import Draft, Event, check_custom_kind, check_plain
from ortet.journal.state.records import Effect
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.actions import digest
from ortet.sessions.actions.effects import command_of
from ortet.sessions.actions.ledger import (
    DONE,
    EffectRow,
    Ledger,
    effect_change,
    ledgers_of,
)
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.fork_session import fork_at
from ortet.sessions.writing.large_events import EventInput, drafts_of, is_large
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.sessions.session import Session


# Appending events of several kinds in one write, for programs that translate foreign records.
_COMMIT_AFTER_EVENTS = 500


def append_events(
    session: Session, several: Sequence[EventInput], *, rows: Sequence[RowChange] = ()
) -> list[Event]:
    """Append all events and rows in one transaction, durable on return.

    `full_data` reads them back.
    """
    for kind, data in several:
        check_plain(data)
        if "." in kind:
            check_custom_kind(kind)
    session.internals.pipeline.begin_change()
    store = session.internals.store
    if not any(is_large(one.data) for one in several):
        drafts = [Draft(kind, data, store.author) for kind, data in several]
        events = session.internals.pipeline.writer.add(*drafts, rows=rows, durable=True)
    else:
        events = run_with_sweep_retry(store, lambda: _add_large(session, several, rows))
    if several:
        session.internals.pipeline.auto_commit_if_due(*several[-1])
    return events


def _add_large(
    session: Session, several: Sequence[EventInput], rows: Sequence[RowChange]
) -> list[Event]:
    store = session.internals.store
    with store.writing():  # a sweep must not delete the object before the event exists
        return session.internals.pipeline.writer.add(
            *drafts_of(store, several), rows=rows, durable=True
        )


def commit_if_many_events(session: Session, message: str) -> None:
    """Commit a session with many events since the last commit. Each open reads all of them."""
    if (
        session.internals.pipeline.writer.tip.seq - session.internals.event_log.base.seq
        >= _COMMIT_AFTER_EVENTS
    ):
        session.commit(message)


_ARGUMENT_FIELDS = ("args", "kwargs")
_INTENT = ("id", "name", "replay", "key", "scope", "why", "digest")


class PastSpend(msgspec.Struct, frozen=True):
    """An amount that was spent earlier, with the model and the time in ns since 1970."""

    amounts: dict[str, float]
    model: str = ""
    at: int = 0


def import_events(
    session: Session, drafts: Sequence[Draft], spend: PastSpend | None = None
) -> list[Event]:
    """Append events. They are durable on return.

    An effect is described by its `begun` and `ended` events, in this call or in two calls. An
    artifact gets the next version of its name.

    Args:
        session: the open session.
        drafts: the events.
        spend: an amount to record in the same transaction.

    Raises:
        Refused: "budget_spent" if the spend exceeds the budget. The events are recorded and the
            session is paused.
    """
    session.internals.pipeline.begin_change()
    ledger, budget = session.internals.pipeline.writer, session.internals.pipeline.budget
    with ledger.exclusive():
        filled = list(_complete_drafts(session, map(ledger.redacted, drafts)))
        rows = _effect_row_changes(session, filled)
        if spend is None:
            return ledger.add(*filled, rows=rows, durable=True)
        events, refusal = budget.spend(
            spend.amounts, model=spend.model, drafts=filled, extra_rows=rows, at=spend.at
        )
    if refusal is not None:
        session.internals.pipeline.stop(refusal)
    return events


def store_content(session: Session, data: bytes) -> artifacts.StoredContent:
    """Store bytes for an event that is appended next.

    Must be called inside `store.writing()`, which must last until the event is appended.
    """
    return artifacts.store_content(
        session.internals.store.objects, session.internals.store.secrets.redact_bytes(data)
    )


def fork_named_after_event(session: Session, seq: int, name: str) -> Session:
    """Fork the session state after event `seq`, as NAME/name, without files."""
    store = session.internals.store

    def fork() -> list[Session]:
        with store.writing():
            point = _commit_after_event(session, seq)
            return fork_at(session, point, names=[name], machine=False)

    return run_with_sweep_retry(store, fork)[0]


def restore_after_event(session: Session, seq: int) -> None:
    """Restore the session state to the position after event `seq`. Files stay as they are."""
    store = session.internals.store
    only = {"mind"} if session.internals.row.has_files else None

    def restore() -> None:
        with store.writing():
            session.restore(_commit_after_event(session, seq).hex(), only=only)

    run_with_sweep_retry(store, restore)


def _commit_after_event(session: Session, seq: int) -> Oid:
    session.internals.pipeline.writer.flush()
    return commit_at(
        session.internals.services, session.internals.row, session.internals.event_log, seq
    )


def _complete_drafts(session: Session, drafts: Iterable[Draft]) -> Iterator[Draft]:
    """Fill in what depends on the journal: call digests and artifact versions."""
    versions: dict[str, int] = {}
    for draft in drafts:
        data: Mapping[str, Any] = {}
        if draft.kind == "begun":
            said = {key: draft.data.get(key) for key in _ARGUMENT_FIELDS}
            data = {
                "digest": digest(
                    session.internals.store.objects.hasher.oid, draft.data["name"], said
                )
            }
        elif draft.kind == "artifact":
            name = draft.data["name"]
            last = versions.get(name) or artifacts.last_version(
                session.internals.state.artifacts, name
            )
            versions[name] = last + 1
            data = {"version": last + 1}
        yield msgspec.structs.replace(draft, data={**draft.data, **data}) if data else draft


def _effect_row_changes(session: Session, drafts: Sequence[Draft]) -> list[RowChange]:
    """Return the effect rows of the family that these events describe."""
    catalog = session.internals.store.catalog
    names = ledgers_of(catalog, session.internals.row)
    ledger, found = Ledger(catalog, names, {}), dict[str, EffectRow]()

    def effect_row_of(id_: str) -> EffectRow | None:
        return found.get(id_) or _find_effect_row(ledger, id_)

    for seq, draft in enumerate(drafts, session.internals.pipeline.writer.tip.seq + 1):
        data = draft.data
        if draft.kind == "begun":
            intent = {name: data[name] for name in _INTENT}
            effect = Effect(
                **intent,
                state="begun",
                begun=seq,
                time=session.internals.context.now(),
                actor=draft.actor,
                command=command_of(session.internals.store, data),
            )
            before = effect_row_of(effect.id)
            # a transcript may have the same call twice: what is done stays done
            if before is None or before.effect.state != DONE:
                found[effect.id] = EffectRow(effect, session.id, ledger=ledger.home)
        elif draft.kind == "ended":
            effect_row = effect_row_of(data["id"])
            if effect_row is not None:
                effect = msgspec.structs.replace(effect_row.effect, state=data["state"], ended=seq)
                found[effect.id] = msgspec.structs.replace(
                    effect_row,
                    effect=effect,
                    outcome=data.get("outcome"),
                    error=data.get("error", ""),
                )
    return [effect_change(effect_row) for effect_row in found.values()]


def _find_effect_row(ledger: Ledger, effect: str) -> EffectRow | None:
    known = ledger.find(effect)
    return known.row if known is not None else None
