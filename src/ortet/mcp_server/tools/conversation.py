"""Tools for the conversation and state of a session: say, think, plan, journal, brief, ..."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ortet.cli.session_args import event_line
from ortet.cli.terminal import output
from ortet.mcp_server.context import McpContext
from ortet.mcp_server.tool import ADDS, READS, SETS, ToolResult, cut_middle, join_lines, tool
from ortet.mcp_server.tools.workspace import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortet.journal import events
    from ortet.sessions.reader import SessionReader

_MAX_EVENT_CHARACTERS = 4_000
"""Maximum length of one text of an event in a page of the journal."""

Tokens = Annotated[
    int, Meta(description="The approximate maximum number of tokens.", ge=1, le=200_000)
]


class EventItem(msgspec.Struct, frozen=True):
    """`data` is the recorded data. The middle of long texts is left out. An event that waits in the
    inbox has no number, so its `seq` is 0.
    """

    seq: int
    kind: str
    time: int
    actor: str
    data: dict[str, Any]
    erased: bool = False

    def __str__(self) -> str:
        from ortet.journal import events

        fields = (self.seq, self.kind, self.time, self.actor, self.data, b"")
        return event_line(events.Event(*fields, erased=self.erased, waiting=not self.seq))


class RecordedToolResult(ToolResult, frozen=True):
    """`id`: the id of a decision or fact, or "" for other events."""

    session: str
    seq: int
    kind: str
    id: str = ""

    def __str__(self) -> str:
        id_ = f", id {self.id}" if self.id else ""
        return f"recorded {self.kind} {self.seq}{id_}"


@tool(ADDS)
def say(
    context: McpContext,
    *,
    role: Annotated[str, Meta(description="The role of the speaker, such as user or assistant.")],
    content: Annotated[str, Meta(description="The text of the message.")],
) -> RecordedToolResult:
    """Add a message to the session's conversation, so that it can be recalled and restored."""
    with context.open_session() as session:
        event = session.say(role, content)
        return RecordedToolResult(session.id, event.seq, "message")


@tool(ADDS)
def think(
    context: McpContext, text: Annotated[str, Meta(description="The reasoning.")]
) -> RecordedToolResult:
    """Record a thought. The journal then has the reasoning beside the actions."""
    with context.open_session() as session:
        event = session.think(text)
        return RecordedToolResult(session.id, event.seq, "thought")


@tool(ADDS)
def decide(
    context: McpContext,
    *,
    text: Annotated[str, Meta(description="The decision.")],
    why: Why = "",
    instead_of: Annotated[list[str], Meta(description="The rejected options.")] = [],  # noqa: B006
) -> RecordedToolResult:
    """Record a decision with its reason and the rejected options. Compaction never removes it."""
    with context.open_session() as session:
        id_ = session.decide(text, why=why, instead_of=instead_of)
        return RecordedToolResult(
            session.id, session.internals.event_log.tip().seq, "decision", id_
        )


class FinishToolResult(ToolResult, frozen=True):
    """The session that was finished, by its id and name."""

    session: str
    name: str
    status: str

    def __str__(self) -> str:
        return f"{self.name} is {self.status}: `ortet resume {self.name} --reopen` opens it again"


@tool(SETS)
def finish(context: McpContext, why: Why = "") -> FinishToolResult:
    """Finish the session when its goal is reached, or given up. It can still be read. Afterwards
    the tools that write refuse until the user opens the session again.
    """
    with context.open_session() as session:
        session.finish(why)
        return FinishToolResult(session.id, session.name, session.status)


class PlanToolResult(ToolResult, frozen=True):
    """`step` counts from 0. If all steps are done, it is the number of steps."""

    plan: list[str]
    step: int

    def __str__(self) -> str:
        marks = ["done" if n < self.step else "now" if n == self.step else "" for n in self._range]
        steps = zip(marks, self.plan, strict=True)
        return join_lines(
            "" if self.plan else "no plan yet",
            *(f"{mark:<5} {output.title(text)}".rstrip() for mark, text in steps),
        )

    @property
    def _range(self) -> range:
        return range(len(self.plan))


@tool(ADDS)
def plan(
    context: McpContext,
    *,
    steps: Annotated[
        list[str] | None,
        Meta(description="The steps of a new plan, in order. Leave it out to show the plan."),
    ] = None,
) -> PlanToolResult:
    """Show the plan, or replace it. The first step of a new plan is the current step."""
    if steps is None:
        with context.read_session() as view:
            return PlanToolResult(view.steps, view.step)
    with context.open_session() as session:
        session.plan(steps)
        return PlanToolResult(session.steps, session.step)


@tool(ADDS)
def advance(
    context: McpContext,
    *,
    to: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The number of the step, from 0; by default the next step."),
    ] = None,
) -> PlanToolResult:
    """Make the next step of the plan, or the step with the given number, the current step."""
    with context.open_session() as session:
        session.advance(to)
        return PlanToolResult(session.steps, session.step)


@tool(SETS)
def note(
    context: McpContext,
    *,
    key: Annotated[
        str, Meta(description="The name of the note. A note of the same name is replaced.")
    ],
    value: Annotated[Any, Meta(description="Any JSON; null deletes the note.")],
    ttl: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Number of seconds after which the note expires."),
    ] = None,
) -> RecordedToolResult:
    """Store a note under a key as working memory."""
    with context.open_session() as session:
        event = session.note(key, value, ttl=ttl)
        return RecordedToolResult(session.id, event.seq, "note")


class JournalToolResult(ToolResult, frozen=True):
    """Events in order. `last`: the number to give as `after` for later events. `more`: there are
    later events already.
    """

    session: str
    events: list[EventItem]
    last: int
    more: bool

    def __str__(self) -> str:
        return join_lines(
            *map(str, self.events),
            "" if self.events else "no such event",
            f"more behind after={self.last}" if self.more else "",
        )


@tool(READS)
def journal(
    context: McpContext,
    *,
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Only events after this number; by default the newest."),
    ] = None,
    limit: Annotated[int, Meta(description="The maximum number of results.", ge=1, le=500)] = 50,
    kind: Annotated[
        list[str],
        Meta(
            description="Only these kinds, such as message, thought, decision, fact, begun, ended "
            "or plan."
        ),
    ] = [],  # noqa: B006
) -> JournalToolResult:
    """List the events of the session: messages, thoughts, commands with their outcome, decisions
    and facts. Events of kind lifecycle (opened, released) are listed only if `kind` names them.
    """
    with context.read_session() as view:
        return journal_page(view, after, limit, kind)


def journal_page(
    view: SessionReader, after: int | None, limit: int, kinds: Sequence[str]
) -> JournalToolResult:
    """Return a page of events: those after a number, or the newest."""
    from ortet.journal.kinds.registry import kind_of

    def wanted(event: events.Event) -> bool:
        return event.kind in kinds if kinds else kind_of(event.kind).listed

    if after is None:
        page, more = _newest(view, limit, wanted), False
    else:
        page = list(islice(filter(wanted, view.events(after)), limit + 1))
        page, more = page[:limit], len(page) > limit
    numbered = [event.seq for event in page if not event.waiting]
    last = (
        numbered[-1] if more and numbered else max(view.internals.event_log.tip().seq, after or 0)
    )
    return JournalToolResult(view.id, [_event(event) for event in page], last, more)


def _newest(
    view: SessionReader, limit: int, is_wanted: Callable[[events.Event], bool]
) -> list[events.Event]:
    """Read from the end, so that the cost does not depend on the length of the session."""
    tip, count = view.internals.event_log.tip().seq, limit
    waiting = list(view.events(tip))
    while True:
        newest = list(filter(is_wanted, [*view.internals.event_log.newest(count), *waiting]))
        if len(newest) >= limit or count >= tip:
            return newest[-limit:]
        count *= 4


def _event(event: events.Event) -> EventItem:
    seq = 0 if event.waiting else event.seq
    return EventItem(seq, event.kind, event.time, event.actor, _cut(event.data), event.erased)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return cut_middle(value, _MAX_EVENT_CHARACTERS)
    if isinstance(value, dict):
        return {key: _cut(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(one) for one in value]
    return value


class BriefToolResult(ToolResult, frozen=True):
    """`data`: the briefing as data. `left_out`: the number of entries that did not fit."""

    session: str
    markdown: str
    data: dict[str, Any]
    tokens: int
    left_out: dict[str, int]

    def __str__(self) -> str:
        return output.safe(self.markdown, keep="\n\t")


@tool(READS)
def brief(context: McpContext, tokens: Tokens = 2000) -> BriefToolResult:
    """Return a briefing for whoever continues this work: goal, plan, decisions, facts, open
    questions, effects whose outcome is not known, and the last messages. Call it first in a new
    conversation.
    """
    with context.read_session() as view:
        briefing = view.briefing(tokens)
        return BriefToolResult(
            view.id, briefing.markdown, briefing.data, briefing.tokens, briefing.left_out
        )


class MessageItem(msgspec.Struct, frozen=True):
    role: str
    content: Any


class ContextToolResult(ToolResult, frozen=True):
    """The messages in order. `left_out`: older messages did not fit."""

    messages: list[MessageItem]
    tokens: int
    left_out: bool

    def __str__(self) -> str:
        from ortet.journal.conversation.text import text_of

        return join_lines(
            *(
                f"[{output.safe(one.role)}] "
                f"{output.safe(text_of(one.content), keep=_KEPT_WHITESPACE)}"
                for one in self.messages
            ),
            "" if self.messages else "no message yet",
        )


_KEPT_WHITESPACE = "\n\t"


@tool(READS)
def context(
    context: McpContext,
    *,
    query: Annotated[
        str, Meta(description="The question that the context is for. Related memories are added.")
    ] = "",
    tokens: Tokens = 8000,
) -> ContextToolResult:
    """Return the conversation as context for a model: the summary, the newest messages that fit,
    and memories of a question.
    """
    with context.read_session() as view:
        model_context = view.context(query, tokens)
        messages = [MessageItem(one.role, one.content) for one in model_context]
        return ContextToolResult(messages, model_context.tokens, model_context.left_out)
