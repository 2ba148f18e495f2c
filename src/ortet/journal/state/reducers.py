"""What each kind of event does to a mind. Kinds of a later release change nothing and are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ortet._util.structs import known
from ortet.journal.conversation.superseded import ASIDE, changed
from ortet.journal.conversation.tool_calls import unanswered
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
    Note,
    Origin,
    Question,
)
from ortet.journal.state.state import Mind

KINDS = (
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
    *around.FOLDS,
    "environment",
    ASIDE,
)
"""Every kind this release writes."""

_ENOUGH = 16
"""Bytes of a hash that tell one event from all others."""

SHAREABLE = frozenset({"fact", "lesson", "episode"})
"""What may be meant for others too: `scope` says for whom."""

TRANSIENT = frozenset({"message", "thought", "note", "model"})
"""What compaction may drop from view; all else is durable."""


def fold(mind: Mind, events: Iterable[Event]) -> Mind:
    """Bring a mind forward."""
    last: Event | None = None
    try:
        for event in events:
            change = _FOLDS.get(event.kind)
            if change is not None and not event.erased:
                try:
                    change(mind, event, event.data)
                    if scope := event.data.get("scope") if event.kind in SHAREABLE else None:
                        mind.change(shared={**mind.core.shared, scope: event.seq})
                except (KeyError, TypeError, ValueError):
                    if event.version <= 1:
                        raise  # a later schema that does not fit changes nothing, and is kept
            last = event
    finally:
        if last is not None:
            mind.change(events=last.seq, last=last.hash[:_ENOUGH])
    return mind


def message_of(event: Event) -> Message:
    data = event.data
    return Message(
        seq=event.seq,
        role=data.get("role", ""),
        content=data.get("content"),
        time=event.time,
        extra=data.get("extra", {}),
    )


def _message(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    before = mind.core.calling
    if not before and (data.get("role") != "assistant" or _asks_nothing(data)):
        return  # nothing waits for it, and it asks for nothing
    calling = unanswered(before, message_of(event))
    if calling != before:
        mind.change(calling=calling)


def _asks_nothing(data: dict[str, Any]) -> bool:
    """As most that an assistant says: seen without looking for calls in it."""
    return "extra" not in data and type(data.get("content")) is str


def _note(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    key = data["key"]
    if data.get("value") is None:
        mind.notes.drop(key)
    else:
        mind.notes.set(key, Note(key, data["value"], data.get("expires", 0), event.seq))


def _goal(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    mind.change(goal=data["text"])


def _plan(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    mind.change(plan=list(data["steps"]), step=0)


def _step(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    mind.change(step=data["step"])


def _question(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    mind.questions.set(data["id"], Question(data["id"], data["text"], seq=event.seq))


def _answer(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    asked = mind.questions.get(data["id"])
    if asked is not None:
        answered = msgspec.structs.replace(asked, answer=data.get("answer"), answered=True)
        mind.questions.set(asked.id, answered)


def _fact(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    if data.get("gone"):
        if "why" in data:
            _end(mind, data["id"], event, why=data["why"])
        else:  # as releases before memory told it
            mind.facts.drop(data["id"])
        return
    fact = fact_of(event)
    mind.facts.set(fact.id, fact)
    if fact.supersedes:
        _end(mind, fact.supersedes, event, by=fact.id)


def fact_of(event: Event) -> Fact:
    """The fact that an event tells."""
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
        source=_origin(data),
        supersedes=data.get("supersedes", ""),
        like=data.get("like", ""),
    )


def _end(mind: Mind, fact: str, event: Event, *, by: str = "", why: str = "") -> None:
    """Give a fact up; one of a shared memory, which this mind has not, is remembered as ended."""
    known = mind.facts.get(fact) or mind.past.get(fact) or Fact(fact, "", seq=event.seq)
    mind.past.set(fact, msgspec.structs.replace(known, ended=event.time, ended_by=by, why=why))
    if mind.facts.get(fact) is not None:
        mind.facts.drop(fact)


def _origin(data: dict[str, Any]) -> Origin | None:
    told = data.get("source")
    return msgspec.convert(told, known(Origin)) if told else None


def _episode(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del data
    episode = episode_of(event)
    mind.episodes.set(episode.id, episode)


def episode_of(event: Event) -> Episode:
    """The episode that an event tells."""
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
        source=_origin(data),
    )


def _decision(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    decision = Decision(
        id=data["id"],
        text=data["text"],
        why=data.get("why", ""),
        instead_of=data.get("instead_of", []),
        seq=event.seq,
        time=event.time,
    )
    mind.decisions.set(decision.id, decision)


def _artifact(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    known = {field: data[field] for field in Artifact.__struct_fields__ if field in data}
    artifact = Artifact(**{**known, "seq": event.seq, "time": event.time})
    mind.artifacts.set(f"{artifact.name}\0{artifact.version:08d}", artifact)


def _begun(mind: Mind, event: Event, data: dict[str, Any]) -> None:
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
    mind.effects.set(effect.id, effect)
    names = secrets_in(data)
    if names:
        mind.change(secrets={**mind.core.secrets, **dict.fromkeys(names, event.seq)})
    approval = mind.approvals.get(data.get("approval", ""))
    if approval is not None:
        mind.approvals.set(approval.id, msgspec.structs.replace(approval, used=effect.id))


def secrets_in(data: dict[str, Any]) -> list[str]:
    """Names in the vault of what a command was given."""
    said = data.get("kwargs")
    given = said.get("secrets") if isinstance(said, dict) and data.get("name") == "run" else None
    names = given.values() if isinstance(given, dict) else given
    return [name for name in names or () if isinstance(name, str)]


def _asked(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    approval = Approval(
        id=data["id"],
        what=data["what"],
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        seq=event.seq,
        time=event.time,
    )
    mind.approvals.set(approval.id, approval)


def _given(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    asked = mind.approvals.get(data["id"])
    if asked is not None:
        mind.approvals.set(asked.id, answered(asked, event))


def answered(asked: Approval, event: Event) -> Approval:
    """An approval after an answer; the first that came counts."""
    if asked.state != "asked":
        return asked
    data = event.data
    return msgspec.structs.replace(
        asked,
        state="given" if data.get("ok") else "denied",
        by=event.actor,
        because=data.get("why", ""),
        answered=event.time,
    )


def _ended(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    effect = mind.effects.get(data["id"])
    if effect is not None:
        ended = msgspec.structs.replace(effect, state=data["state"], ended=event.seq)
        mind.effects.set(effect.id, ended)


def _spend(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    _pay(mind, data["amounts"])


def _merge(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    """What it knew is told by events of their own; what it cost is ours now too."""
    del event
    _pay(mind, data.get("spent", {}))


def _pay(mind: Mind, amounts: dict[str, Any]) -> None:
    spent = dict(mind.core.spent)
    for name, amount in amounts.items():
        spent[name] = spent.get(name, 0.0) + float(amount)
    mind.change(spent=spent)


def _budget(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    mind.change(limits=data.get("limits", {}), soft=data.get("soft", {}))


def _lifecycle(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    del event
    mind.change(status=data["to"])


def _compaction(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    mind.change(since=data["last"], summary=event.seq)


def _aside(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    """Which calls wait for a result on the way that is taken now is not known: none is made up."""
    del event
    mind.change(aside=changed(mind.core.aside, data), calling=[])


def _environment(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    """Only where to read each part: the record itself stays in its events."""
    told = dict.fromkeys(data["parts"], event.seq)
    core = mind.core
    mind.change(
        environment={**core.environment, **told},
        environment_first={**told, **core.environment_first},
    )


_FOLDS: dict[str, Callable[[Mind, Event, dict[str, Any]], None]] = {
    "message": _message,
    "note": _note,
    "goal": _goal,
    "plan": _plan,
    "step": _step,
    "question": _question,
    "answer": _answer,
    "fact": _fact,
    "lesson": _fact,
    "episode": _episode,
    "decision": _decision,
    "artifact": _artifact,
    "begun": _begun,
    "ended": _ended,
    "spend": _spend,
    "merge": _merge,
    "budget": _budget,
    "asked": _asked,
    "given": _given,
    "lifecycle": _lifecycle,
    "compaction": _compaction,
    **around.FOLDS,
    "environment": _environment,
    ASIDE: _aside,
}
