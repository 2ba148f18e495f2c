"""Reducers: how each kind of event changes a session state.

Events of kinds from a later release are kept and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.journal.conversation.superseded import SUPERSEDED_KIND, apply_superseded
from ortet.journal.conversation.tool_calls import unanswered_calls
from ortet.journal.events import Event
from ortet.journal.state import around
from ortet.journal.state.records import (
    Approval,
    Artifact,
    Decision,
    Effect,
    Episode,
    Fact,
    Message,
    NoteRecord,
    Question,
    SourceEventRef,
)
from ortet.journal.state.state import SessionState

EVENT_KINDS = (
    "message",
    "thought",
    "note",
    "question",
    "answer",
    "plan",
    "step",
    "begun",
    "ended",
    "model",
    "fact",
    "lesson",
    "episode",
    "decision",
    "artifact",
    "spend",
    "budget",
    "asked",
    "given",
    "comment",
    "compaction",
    "goal",
    "lifecycle",
    "record",
    "warning",
    "merge",
    *around.EXTERNAL_STATE_REDUCERS,
    "environment",
    SUPERSEDED_KIND,
)
"""Every event kind that this release writes."""

_HASH_PREFIX_BYTES = 16
"""Bytes of an event hash that identify the event."""

SHAREABLE_KINDS = frozenset({"fact", "lesson", "episode"})
"""Event kinds that can be shared. `scope` in their data says with whom."""

TRANSIENT_KINDS = frozenset({"message", "thought", "note", "model"})
"""Event kinds that a compaction may remove from the context. All others are durable."""


def fold(state: SessionState, events: Iterable[Event]) -> SessionState:
    """Apply events to a state, in order, and return the same state."""
    last: Event | None = None
    try:
        for event in events:
            change = _REDUCERS.get(event.kind)
            if change is not None and not event.erased:
                try:
                    change(state, event, event.data)
                    if scope := event.data.get("scope") if event.kind in SHAREABLE_KINDS else None:
                        state.change_core(shared={**state.core.shared, scope: event.seq})
                except (KeyError, TypeError, ValueError):
                    if event.version <= 1:
                        raise  # an unknown later schema changes nothing and is kept
            last = event
    finally:
        if last is not None:
            state.change_core(events=last.seq, last=last.hash[:_HASH_PREFIX_BYTES])
    return state


def message_of(event: Event) -> Message:
    """Return the message that an event records."""
    data = event.data
    return Message(
        seq=event.seq,
        role=data.get("role", ""),
        content=data.get("content"),
        time=event.time,
        extra=data.get("extra", {}),
    )


def _fold_message(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    before = state.core.calling
    if not before and (data.get("role") != "assistant" or _has_no_tool_calls(data)):
        return  # no call waits for a result, and this message makes none
    calling = unanswered_calls(before, message_of(event))
    if calling != before:
        state.change_core(calling=calling)


def _has_no_tool_calls(data: dict[str, Any]) -> bool:
    """Return True for a plain text message: the common case, without a search for calls."""
    return "extra" not in data and type(data.get("content")) is str


def _fold_note(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    key = data["key"]
    if data.get("value") is None:
        state.notes.drop(key)
    else:
        state.notes.set(key, NoteRecord(key, data["value"], data.get("expires", 0), event.seq))


def _fold_goal(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    state.change_core(goal=data["text"])


def _fold_plan(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    state.change_core(plan=list(data["steps"]), step=0)


def _fold_step(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    state.change_core(step=data["step"])


def _fold_question(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    state.questions.set(data["id"], Question(data["id"], data["text"], seq=event.seq))


def _fold_answer(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    asked = state.questions.get(data["id"])
    if asked is not None:
        answered = msgspec.structs.replace(asked, answer=data.get("answer"), answered=True)
        state.questions.set(asked.id, answered)


def _fold_fact(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    if data.get("gone"):
        if "why" in data:
            _end_fact(state, data["id"], event, why=data["why"])
        else:  # as releases without memory wrote it
            state.facts.drop(data["id"])
        return
    fact = fact_of(event)
    state.facts.set(fact.id, fact)
    if fact.supersedes:
        _end_fact(state, fact.supersedes, event, by=fact.id)


def fact_of(event: Event) -> Fact:
    """Return the fact that an event records."""
    data = event.data
    return Fact(
        id=data["id"],
        text=data["text"],
        about=data.get("about", ""),
        lesson=event.kind == "lesson",
        seq=event.seq,
        time=event.time,
        scope=data.get("scope", ""),
        confidence=data.get("confidence", 1.0),
        since=data.get("since", 0),
        until=data.get("until", 0),
        source=_source_of(data),
        supersedes=data.get("supersedes", ""),
        like=data.get("like", ""),
    )


def _end_fact(
    state: SessionState, fact_id: str, event: Event, *, by: str = "", why: str = ""
) -> None:
    """Retract a fact. A fact of a shared memory, which is not in this state, is marked as ended."""
    known = state.facts.get(fact_id) or state.past.get(fact_id) or Fact(fact_id, "", seq=event.seq)
    state.past.set(fact_id, msgspec.structs.replace(known, ended=event.time, ended_by=by, why=why))
    if state.facts.get(fact_id) is not None:
        state.facts.drop(fact_id)


def _source_of(data: dict[str, Any]) -> SourceEventRef | None:
    told = data.get("source")
    return msgspec.convert(told, thread_safe_struct(SourceEventRef)) if told else None


def _fold_episode(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del data
    episode = episode_of(event)
    state.episodes.set(episode.id, episode)


def episode_of(event: Event) -> Episode:
    """Return the episode that an event records."""
    data = event.data
    return Episode(
        id=data["id"],
        summary=data["summary"],
        outcome=data.get("outcome", ""),
        first=data.get("first", 0),
        last=data.get("last", 0),
        participants=data.get("participants", []),
        importance=data.get("importance", 0.5),
        cause=data.get("cause", ""),
        seq=event.seq,
        time=data.get("time", event.time),
        began=data.get("began", 0),
        session=data.get("session", ""),
        source=_source_of(data),
    )


def _fold_decision(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    decision = Decision(
        id=data["id"],
        text=data["text"],
        why=data.get("why", ""),
        instead_of=data.get("instead_of", []),
        seq=event.seq,
        time=event.time,
    )
    state.decisions.set(decision.id, decision)


def _fold_artifact(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    known = {field: data[field] for field in Artifact.__struct_fields__ if field in data}
    artifact = Artifact(**{**known, "seq": event.seq, "time": event.time})
    state.artifacts.set(f"{artifact.name}\0{artifact.version:08d}", artifact)


def _fold_action_begun(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    effect = Effect(
        id=data["id"],
        name=data["name"],
        replay=data["replay"],
        state="begun",
        key=data.get("key", ""),
        scope=data.get("scope", ""),
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        begun=event.seq,
        time=event.time,
        actor=event.actor,
    )
    state.effects.set(effect.id, effect)
    names = secrets_in(data)
    if names:
        state.change_core(secrets={**state.core.secrets, **dict.fromkeys(names, event.seq)})
    approval = state.approvals.get(data.get("approval", ""))
    if approval is not None:
        state.approvals.set(approval.id, msgspec.structs.replace(approval, used=effect.id))


def secrets_in(data: dict[str, Any]) -> list[str]:
    """Return the vault names of the secrets that a command used."""
    said = data.get("kwargs")
    given = said.get("secrets") if isinstance(said, dict) and data.get("name") == "run" else None
    names = given.values() if isinstance(given, dict) else given
    return [name for name in names or () if isinstance(name, str)]


def _fold_approval_requested(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    approval = Approval(
        id=data["id"],
        what=data["what"],
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        seq=event.seq,
        time=event.time,
    )
    state.approvals.set(approval.id, approval)


def _fold_approval_answered(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    asked = state.approvals.get(data["id"])
    if asked is not None:
        state.approvals.set(asked.id, answer_approval(asked, event))


def answer_approval(approval: Approval, event: Event) -> Approval:
    """Return an approval after an answer. The first answer counts."""
    if approval.state != "asked":
        return approval
    data = event.data
    return msgspec.structs.replace(
        approval,
        state="given" if data.get("ok") else "denied",
        by=event.actor,
        because=data.get("why", ""),
        answered=event.time,
    )


def _fold_action_ended(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    effect = state.effects.get(data["id"])
    if effect is not None:
        ended = msgspec.structs.replace(effect, state=data["state"], ended=event.seq)
        state.effects.set(effect.id, ended)


def _fold_spend(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    _add_spent(state, data["amounts"])


def _fold_merge(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    """Add their spending. Facts and other records are merged by events of their own."""
    del event
    _add_spent(state, data.get("spent", {}))


def _add_spent(state: SessionState, amounts: dict[str, Any]) -> None:
    spent = dict(state.core.spent)
    for name, amount in amounts.items():
        spent[name] = spent.get(name, 0.0) + float(amount)
    state.change_core(spent=spent)


def _fold_budget(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    state.change_core(limits=data.get("limits", {}), soft=data.get("soft", {}))


def _fold_lifecycle(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    del event
    state.change_core(status=data["to"])


def _fold_compaction(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    state.change_core(since=data["last"], summary=event.seq)


def _fold_superseded(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    """Mark messages as superseded. Calls without a result are no longer known after that."""
    del event
    state.change_core(aside=apply_superseded(state.core.aside, data), calling=[])


def _fold_environment(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    """Record which events hold each part. The environment itself stays in those events."""
    told = dict.fromkeys(data["parts"], event.seq)
    core = state.core
    state.change_core(
        environment={**core.environment, **told},
        environment_first={**told, **core.environment_first},
    )


_REDUCERS: dict[str, Callable[[SessionState, Event, dict[str, Any]], None]] = {
    "message": _fold_message,
    "note": _fold_note,
    "goal": _fold_goal,
    "plan": _fold_plan,
    "step": _fold_step,
    "question": _fold_question,
    "answer": _fold_answer,
    "fact": _fold_fact,
    "lesson": _fold_fact,
    "episode": _fold_episode,
    "decision": _fold_decision,
    "artifact": _fold_artifact,
    "begun": _fold_action_begun,
    "ended": _fold_action_ended,
    "spend": _fold_spend,
    "merge": _fold_merge,
    "budget": _fold_budget,
    "asked": _fold_approval_requested,
    "given": _fold_approval_answered,
    "lifecycle": _fold_lifecycle,
    "compaction": _fold_compaction,
    **around.EXTERNAL_STATE_REDUCERS,
    "environment": _fold_environment,
    SUPERSEDED_KIND: _fold_superseded,
}
