"""say, think, decide, plan, advance, note, journal, brief, context: what a mind is told, and what
whoever goes on with it has to know."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ortet.cli import output
from ortet.cli.session_args import event_line
from ortet.mcp_server.answers import ends_of, joined
from ortet.mcp_server.context import Desk
from ortet.mcp_server.tool import ADDS, READS, SETS, Answer, tool
from ortet.mcp_server.tools.workspace import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortet.journal import events
    from ortet.sessions.reader import View

_EVENT = 4_000
"""Characters of one text inside an event that a page of the journal shows."""

Tokens = Annotated[int, Meta(description="About how long it may be.", ge=1, le=200_000)]


class Event(msgspec.Struct, frozen=True):
    """`data` is as it was recorded, but for long texts, of which the middle is left out. One that
    waits to be taken in has no number: `seq` is 0."""

    seq: int
    kind: str
    time: int
    actor: str
    data: dict[str, Any]
    erased: bool = False

    def __str__(self) -> str:
        from ortet.journal import events

        told = (self.seq, self.kind, self.time, self.actor, self.data, b"")
        return event_line(events.Event(*told, erased=self.erased, waiting=not self.seq))


class Recorded(Answer, frozen=True):
    """`id` is that of a decision or fact, "" for what has none."""

    session: str
    seq: int
    kind: str
    id: str = ""

    def __str__(self) -> str:
        id_ = f", id {self.id}" if self.id else ""
        return f"recorded {self.kind} {self.seq}{id_}"


@tool(ADDS)
def say(
    desk: Desk,
    *,
    role: Annotated[str, Meta(description="Who speaks, as user or assistant.")],
    content: Annotated[str, Meta(description="What was said.")],
) -> Recorded:
    """Add a message to the session's conversation, so that it can be recalled and restored."""
    with desk.writing() as session:
        event = session.say(role, content)
        return Recorded(session.id, event.seq, "message")


@tool(ADDS)
def think(
    desk: Desk, text: Annotated[str, Meta(description="Reasoning that led somewhere.")]
) -> Recorded:
    """Record a thought: reasoning that is to be found in the journal beside what was done."""
    with desk.writing() as session:
        event = session.think(text)
        return Recorded(session.id, event.seq, "thought")


@tool(ADDS)
def decide(
    desk: Desk,
    *,
    text: Annotated[str, Meta(description="What was decided.")],
    why: Why = "",
    instead_of: Annotated[list[str], Meta(description="Roads not taken.")] = [],  # noqa: B006
) -> Recorded:
    """Record a decision with its reason and the roads not taken. It outlives every compaction."""
    with desk.writing() as session:
        id_ = session.decide(text, why=why, instead_of=instead_of)
        return Recorded(session.id, session.line.tip().seq, "decision", id_)


class Plan(Answer, frozen=True):
    """`step` counts from 0; it is the number of steps when all are done."""

    plan: list[str]
    step: int

    def __str__(self) -> str:
        marks = ["done" if n < self.step else "now" if n == self.step else "" for n in self._range]
        steps = zip(marks, self.plan, strict=True)
        return joined(
            "" if self.plan else "no plan yet",
            *(f"{mark:<5} {output.title(text)}".rstrip() for mark, text in steps),
        )

    @property
    def _range(self) -> range:
        return range(len(self.plan))


@tool(ADDS)
def plan(
    desk: Desk,
    *,
    steps: Annotated[
        list[str] | None, Meta(description="What is to be done, in order; leave it out to look.")
    ] = None,
) -> Plan:
    """Show the plan, or make another: the first step is then the current one."""
    if steps is None:
        with desk.reading() as view:
            return Plan(view.steps, view.step)
    with desk.writing() as session:
        session.plan(steps)
        return Plan(session.steps, session.step)


@tool(ADDS)
def advance(
    desk: Desk,
    *,
    to: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The step, from 0; else the next.")
    ] = None,
) -> Plan:
    """Go on to the next step of the plan, or to one by its number."""
    with desk.writing() as session:
        session.advance(to)
        return Plan(session.steps, session.step)


@tool(SETS)
def note(
    desk: Desk,
    *,
    key: Annotated[str, Meta(description="Its name; the same again takes its place.")],
    value: Annotated[Any, Meta(description="Any JSON; null ends the note.")],
    ttl: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="Seconds that it holds.")
    ] = None,
) -> Recorded:
    """Keep a scratch value under a key, as long as it is needed."""
    with desk.writing() as session:
        event = session.note(key, value, ttl=ttl)
        return Recorded(session.id, event.seq, "note")


class Journal(Answer, frozen=True):
    """In order. `last` is the number to give as `after` for what comes later; `more` says whether
    there is more already."""

    session: str
    events: list[Event]
    last: int
    more: bool

    def __str__(self) -> str:
        return joined(
            *map(str, self.events),
            "" if self.events else "no such event",
            f"more behind after={self.last}" if self.more else "",
        )


@tool(READS)
def journal(
    desk: Desk,
    *,
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Events behind this number; else the newest."),
    ] = None,
    limit: Annotated[int, Meta(description="At most so many.", ge=1, le=500)] = 50,
    kind: Annotated[
        list[str],
        Meta(description="Only these, as message, thought, decision, fact, begun, ended, plan."),
    ] = [],  # noqa: B006
) -> Journal:
    """List what happened in the session: messages, thoughts, commands with their outcome,
    decisions, facts. That it was opened and let go (kind lifecycle) is listed only when asked
    for."""
    with desk.reading() as view:
        return page(view, after, limit, kind)


def page(view: View, after: int | None, limit: int, kinds: Sequence[str]) -> Journal:
    """Some events: those behind a number, or the newest."""

    def wanted(event: events.Event) -> bool:
        return event.kind in kinds if kinds else event.kind != "lifecycle"

    if after is None:
        found, more = _newest(view, limit, wanted), False
    else:
        found = list(islice(filter(wanted, view.events(after)), limit + 1))
        found, more = found[:limit], len(found) > limit
    numbered = [event.seq for event in found if not event.waiting]
    last = numbered[-1] if more and numbered else max(view.line.tip().seq, after or 0)
    return Journal(view.id, [_event(event) for event in found], last, more)


def _newest(view: View, limit: int, wanted: Callable[[events.Event], bool]) -> list[events.Event]:
    """From the end on: a long session costs what is looked at."""
    tip, look = view.line.tip().seq, limit
    waiting = list(view.events(tip))
    while True:
        found = list(filter(wanted, [*view.line.newest(look), *waiting]))
        if len(found) >= limit or look >= tip:
            return found[-limit:]
        look *= 4


def _event(event: events.Event) -> Event:
    seq = 0 if event.waiting else event.seq
    return Event(seq, event.kind, event.time, event.actor, _cut(event.data), event.erased)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return ends_of(value, _EVENT)
    if isinstance(value, dict):
        return {key: _cut(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value]
    return value


class Briefing(Answer, frozen=True):
    """`data` is the same as records; `left_out` counts what did not fit."""

    session: str
    markdown: str
    data: dict[str, Any]
    tokens: int
    left_out: dict[str, int]

    def __str__(self) -> str:
        return output.safe(self.markdown, keep="\n\t")


@tool(READS)
def brief(desk: Desk, tokens: Tokens = 2000) -> Briefing:
    """Tell whoever goes on with this work what it has to know: goal, plan, decisions, facts, open
    questions, deeds whose outcome is not known, last messages. Call it first in a new
    conversation."""
    with desk.reading() as view:
        found = view.briefing(tokens)
        return Briefing(view.id, found.markdown, found.data, found.tokens, found.left_out)


class Message(msgspec.Struct, frozen=True):
    role: str
    content: Any


class Context(Answer, frozen=True):
    """`left_out`: older messages did not fit."""

    messages: list[Message]
    tokens: int
    left_out: bool

    def __str__(self) -> str:
        from ortet.journal.conversation.text import text_of

        return joined(
            *(
                f"[{output.safe(one.role)}] {output.safe(text_of(one.content), keep=_KEEP)}"
                for one in self.messages
            ),
            "" if self.messages else "nothing was said yet",
        )


_KEEP = "\n\t"


@tool(READS)
def context(
    desk: Desk,
    *,
    query: Annotated[str, Meta(description="What it is for: related memories are added.")] = "",
    tokens: Tokens = 8000,
) -> Context:
    """Give the conversation as a model is to be given it: the summary, the newest messages that
    fit, and what is remembered for a question."""
    with desk.reading() as view:
        found = view.context(query, tokens)
        messages = [Message(one.role, one.content) for one in found]
        return Context(messages, found.tokens, found.left_out)
