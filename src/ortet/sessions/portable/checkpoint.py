"""Checkpoints: a portable record of a session, and a session made from a record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from ortet.errors import Conflict, Invalid, NotFound
from ortet.ids import from_hex
from ortet.journal.conversation.compaction import Compaction, compaction_data
from ortet.journal.events import Draft, ObjectRef
from ortet.journal.reports.checkpoint import (
    AgentCheckpoint,
    CheckpointBudget,
    CheckpointMessage,
    CompletedEffect,
    ResumePoint,
    check_checkpoint,
)
from ortet.journal.state.merge import fact_data as told_of
from ortet.journal.state.records import Artifact, Effect, external_state_events
from ortet.objects.base import Kind
from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.approvals import approvals_of, pending_approval_row
from ortet.sessions.actions.effects import carried_effect_rows
from ortet.sessions.actions.ledger import EffectRow, ledgers_of
from ortet.sessions.context import SessionContext, SessionServices
from ortet.sessions.conversation import Conversation
from ortet.sessions.conversation_state import (
    known_effects,
    last_compaction,
    live_notes,
    open_questions,
    system_messages,
    unsettled_of,
)
from ortet.sessions.environment.external_state import collaborations_of, windows_of
from ortet.sessions.memory.facts import believed_facts
from ortet.sessions.starting import InitialContent
from ortet.sessions.table import SessionRow, check_agent, check_session

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S")


def checkpoint_of(view: SessionContext) -> AgentCheckpoint:
    """Return the checkpoint of a session; see `SessionReader.checkpoint`."""
    mind, core, past = view.state, view.state.core, last_compaction(view)
    accounting = Accounting(view)
    head, kept = view.head, live_notes(mind, view.now())
    known_rows = known_effects(view)
    return AgentCheckpoint(
        session_id=view.id,
        timestamp=datetime.fromtimestamp(view.store.clock.now_ns() / 1e9, UTC),
        goal=core.goal,
        plan=core.plan,
        current_step=core.step,
        context=kept,
        messages=[
            CheckpointMessage(message.role, message.content, message.time, message.extra)
            for message in [*system_messages(view), *Conversation(view).messages()]
        ],
        artifacts=sorted(mind.artifacts, key=lambda artifact: artifact.seq),
        resume_point=ResumePoint(
            commit=head.oid if head else "",
            event=core.events,
            step=core.step,
            unsettled=unsettled_of(view),
            done=[
                CompletedEffect(effect_row.effect, effect_row.outcome)
                for effect_row in known_rows
                if _is_done_once(effect_row, view)
            ],
        ),
        facts=believed_facts(view),
        decisions=sorted(mind.decisions, key=lambda decision: decision.seq),
        budget=CheckpointBudget(accounting.limits() or core.limits, core.soft, accounting.spent()),
        questions=sorted(open_questions(mind), key=lambda question: question.seq),
        summary=past.summary if past else "",
        name=view.name,
        agent=view.agent,
        collaborations=collaborations_of(view),
        windows=[window for window in windows_of(view) if not window.full],
        tokens=list(mind.tokens),
        expires={
            note.key: note.expires for note in mind.notes if note.expires and note.key in kept
        },
        approvals=[
            a for a in approvals_of(view.store.catalog, view.id, mind) if a.state == "asked"
        ],
    )


def _is_done_once(effect_row: EffectRow, view: SessionContext) -> bool:
    """Return True if the session must not perform this effect again."""
    effect = effect_row.effect
    mine = effect.scope != "timeline" or effect_row.session == view.id
    return bool(effect.key) and effect.state == "done" and mine


def from_checkpoint(
    sessions: SessionServices,
    create: Callable[..., S],
    checkpoint: AgentCheckpoint | str | bytes,
    name: str,
    agent: str,
) -> S:
    """Create a session from a checkpoint, in one transaction; see `Transfer.from_checkpoint`."""
    if isinstance(checkpoint, str | bytes):
        checkpoint = AgentCheckpoint.from_json(checkpoint)
    elif not isinstance(checkpoint, AgentCheckpoint):
        raise Invalid("bad_checkpoint", "give an AgentCheckpoint, or its JSON", path="$")
    record = check_checkpoint(checkpoint)
    name = check_session(name or record.name)
    agent = check_agent(agent or record.agent or "default")
    known = _find_session(sessions, record.session_id)
    away = [] if known else _foreign_effects(record.resume_point)
    store = sessions.store
    with store.writing():  # a sweep must not delete the content of artifacts
        start = InitialContent(
            drafts=[Draft(*draft, store.author) for draft in _event_data(record, known is not None)]
            + [_artifact(sessions, artifact) for artifact in record.artifacts]
            + [
                Draft(*draft, store.author)
                for effect_row in away
                for draft in _effect_events(effect_row)
            ],
            rows=lambda row: [
                *carried_effect_rows(row, row.ledgers[0], away),
                pending_approval_row(row.id),
            ],
            ledgers=ledgers_of(store.catalog, known) if known else (),
            family=known.family if known else "",
            parent=known.id if known else "",
            spent={} if known else record.budget.spent,
        )
        try:
            return create(
                name,
                agent,
                goal=record.goal,
                # the family already has its limits
                budget=None if known else {**record.budget.limits, "soft": record.budget.soft},
                initial=start,
            )
        except Conflict as error:
            if error.kind == "row_moved" and sessions.table.find(agent, name) is not None:
                raise Conflict(
                    "name_taken",
                    f"there is a session {name!r} already: give another name=…",
                    name=name,
                ) from error
            raise


def _find_session(sessions: SessionServices, id_: str) -> SessionRow | None:
    """Return the session of a checkpoint if this store has it.

    Effects then belong to its family.
    """
    try:
        return sessions.table.get(id_)
    except NotFound:
        return None


def _foreign_effects(point: ResumePoint) -> list[EffectRow]:
    """Return the effects of a checkpoint from another store."""
    begun = [replace(effect, state="unsettled") for effect in point.unsettled]
    done = [EffectRow(replace(x.effect, state="done"), "", x.outcome) for x in point.done]
    return [*(EffectRow(effect, "") for effect in begun), *done]


def _event_data(record: AgentCheckpoint, in_family: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that rebuild the state of a checkpoint."""
    origin = {"session": record.session_id, "event": record.resume_point.event}
    found: list[tuple[str, dict[str, Any]]] = [
        ("record", {"what": "checkpoint", **origin, "commit": record.resume_point.commit})
    ]
    budget = record.budget
    if in_family and (budget.limits or budget.soft):
        found.append(("budget", {"limits": budget.limits, "soft": budget.soft}))
    if budget.spent:
        found.append(("spend", {"amounts": budget.spent, "carried": True}))
    if record.plan:
        found.append(("plan", {"steps": record.plan}))
        found.append(("step", {"step": record.current_step}))
    for key, value in record.context.items():
        note = {"key": key, "value": value}
        if until := record.expires.get(key):
            note["expires"] = until
        found.append(("note", note))
    for asked in record.approvals:
        data = {"id": asked.id, "what": asked.what, "why": asked.why}
        found.append(("asked", {**data, "digest": asked.digest} if asked.digest else data))
    for fact in record.facts:
        # not shared: anyone can write a checkpoint, so its facts must not reach other sessions
        own = replace(fact, scope="")
        found.append(("lesson" if fact.lesson else "fact", told_of(own)))
    for made in record.decisions:
        data = {"id": made.id, "text": made.text, "why": made.why}
        found.append(("decision", {**data, "instead_of": made.instead_of}))
    found += [("question", {"id": q.id, "text": q.text}) for q in record.questions]
    found += external_state_events(record.collaborations, record.windows, record.tokens)
    if record.summary:  # messages after the first event are in context
        past = Compaction(first=1, last=1, count=0, digest="", summary=record.summary)
        found.append(("compaction", compaction_data(past)))
    for message in record.messages:
        message_data = {"role": message.role, "content": message.content}
        found.append(
            ("message", {**message_data, "extra": message.extra} if message.extra else message_data)
        )
    return found


def _artifact(sessions: SessionServices, artifact: Artifact) -> Draft:
    """Return the draft of an artifact, with its content if this store has it."""
    data: dict[str, Any] = msgspec.to_builtins(artifact)
    objects = sessions.store.objects
    refs: list[ObjectRef] = []
    if artifact.oid and objects.has(from_hex(artifact.oid)):
        refs = [
            ref
            for ref in objects.find_by_prefix(artifact.oid)
            if ref[1] in (Kind.BLOB, Kind.BLOCKS)
        ]
    return Draft("artifact", data, sessions.store.author, refs)


def _effect_events(effect_row: EffectRow) -> list[tuple[str, dict[str, Any]]]:
    effect: Effect = effect_row.effect
    begun: dict[str, Any] = {
        "id": effect.id,
        "name": effect.name,
        "replay": effect.replay,
        "key": effect.key,
    }
    begun |= {"scope": effect.scope, "why": effect.why, "digest": effect.digest}
    begun |= {"args": [], "kwargs": {}, "carried": True}
    ended: dict[str, Any] = {"id": effect.id, "state": effect.state, "carried": True}
    if effect_row.outcome is not None:
        ended["outcome"] = effect_row.outcome
    return [("begun", begun), ("ended", ended)]
