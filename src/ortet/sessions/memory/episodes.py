"""Episodes: a short summary of the events since the last episode, with their range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ortet.errors import Invalid
from ortet.journal.conversation.compaction import Compaction, Summarise
from ortet.journal.conversation.superseded import SeqRange, is_superseded
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import without_obsolete_results
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.records import Message, message_of
from ortet.memory.extraction.summaries import SUMMARY_CHARS, SpokenTurn
from ortet.sessions.memory.shared_scopes import AGENT, users_of

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext

_MAX_SUMMARY_CHARS = 4000
_SPEAKERS = ("user", "assistant")


def last_episode_seq(view: SessionContext) -> int:
    """Return the last event that an episode of this session covers."""
    return max((one.last for one in view.state.episodes if not one.source), default=0)


def episode_data(
    view: SessionContext,
    id_: str,
    *,
    cause: str,
    events: Iterable[Event],
    summary: str = "",
    outcome: str = "",
    importance: float | None = None,
    summarise: Summarise | None = None,
) -> dict[str, Any] | None:
    """Return the data of an episode for these events, or None if nothing happened."""
    kept = [event for event in events if not event.erased]
    aside = view.state.core.aside
    happened = [
        one
        for one in kept
        if kind_of(one.kind).in_episodes and not _is_superseded_message(one, aside)
    ]
    if not happened:
        return None
    messages = [message_of(event) for event in happened if event.kind == "message"]
    if not summary:
        summary = _summary(view, happened, without_obsolete_results(messages), summarise)
    weight = 0.4 + sum(kind_of(event.kind).importance for event in happened)
    return {
        "id": id_,
        "summary": summary[:_MAX_SUMMARY_CHARS],
        "outcome": outcome or _outcome(view),
        "first": kept[0].seq,
        "last": kept[-1].seq,
        "participants": _participants(view, messages),
        "importance": min(1.0, weight) if importance is None else importance,
        "cause": cause,
        "began": kept[0].time,
        "scope": _episode_scope(view),
    }


def _is_superseded_message(event: Event, aside: Sequence[SeqRange]) -> bool:
    """Return True for a message on an abandoned path of the conversation."""
    return event.kind == "message" and is_superseded(aside, event.seq)


def _episode_scope(view: SessionContext) -> str:
    """Return the scope that an episode is published to.

    This is the agent, or the only user of the session. An episode with several users is not
    published.
    """
    users = users_of(view.row)
    return AGENT if not users else users[0] if len(users) == 1 else ""


def compaction_episode(view: SessionContext, id_: str, past: Compaction) -> dict[str, Any] | None:
    """Return the episode of messages that a compaction left out, or None."""
    return episode_data(
        view,
        id_,
        cause="compacted",
        events=view.events(max(last_episode_seq(view), past.first - 1), past.last),
        summary=past.summary,
    )


def _summary(
    view: SessionContext, events: list[Event], messages: list[Message], summarise: Summarise | None
) -> str:
    """Return the goal, decisions, lessons and artifacts, then a summary of the conversation."""
    text = (
        (summarise(messages) if summarise else _summarise_messages(view, messages))
        if messages
        else ""
    )
    if not isinstance(text, str):
        raise Invalid(
            "bad_summary",
            f"the summary is {type(text).__name__}, not text: give a function that returns str",
        )
    lines = [f"Goal: {view.goal}"] if view.goal else []
    lines += [f"Decided: {e.data.get('text', '')}" for e in events if e.kind == "decision"][:8]
    lines += [f"Lesson: {e.data.get('text', '')}" for e in events if e.kind == "lesson"][:8]
    lines += [f"Made: {e.data.get('name', '')}" for e in events if e.kind == "artifact"][:8]
    return "\n".join([*lines, text]).strip() or f"{len(events)} events"


def _summarise_messages(view: SessionContext, messages: list[Message]) -> str:
    """Return the summary of the hub's summariser, or the start of the first message."""
    turns = turns_of(messages)
    return view.services.summariser(turns, SUMMARY_CHARS) or (
        turns[0].text[:SUMMARY_CHARS] if turns else ""
    )


def turns_of(messages: Iterable[Message]) -> list[SpokenTurn]:
    """Return the turns of users and assistants, with their names where given."""
    found = []
    for message in messages:
        text = text_of(message.content)
        if message.role in _SPEAKERS and text.strip():
            name = message.extra.get("name") or message.extra.get("user") or message.role
            found.append(SpokenTurn(str(name), text))
    return found


def _outcome(view: SessionContext) -> str:
    """Return "done" if the plan is finished, otherwise ""."""
    core = view.state.core
    return "done" if core.plan and core.step >= len(core.plan) else ""


def _participants(view: SessionContext, messages: Iterable[Message]) -> list[str]:
    found = {view.agent: None}
    for message in messages:
        name = message.extra.get("user") or message.extra.get("name") or message.role
        if isinstance(name, str) and name not in ("assistant", "system", "tool", "developer"):
            found[name] = None
    return list(found)
