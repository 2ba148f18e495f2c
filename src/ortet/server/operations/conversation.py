"""The conversation of a session: messages and their compaction, thoughts, notes and questions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ortet.journal.conversation.compaction import Compaction
from ortet.journal.state.records import Message, Question
from ortet.server.operations.registry import operation
from ortet.server.pagination import (
    Page,
    Paged,
    paginate,
)
from ortet.server.schemas import (
    CreatedId,
    EventInfo,
    NonEmptyText,
    Number,
    OperationRequest,
    recorded_event_info,
)
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

Role = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class ListMessages(Paged, frozen=True):
    """`last`: only the newest messages, as many as given, in one page."""

    last: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None


@operation("GET", "/sessions/{session}/messages")
def list_messages(view: SessionReader, ask: ListMessages) -> Page[Message]:
    """List the messages that are in context, in order."""
    if ask.last is not None:
        return Page(view.messages(ask.last))
    return paginate(view.messages(), ask, lambda one: one.seq)


class Say(OperationRequest, frozen=True):
    """`content`: text, or the content parts of a model API. `extra`: further keys, such as
    tool_calls.
    """

    role: Role
    content: Any
    extra: dict[str, Any] = {}


@operation("POST", "/sessions/{session}/messages", status=201)
def say(session: Session, ask: Say) -> EventInfo:
    """Add a message to the conversation."""
    return recorded_event_info(session, session.say_all([as_message(ask)])[0])


class SayAll(OperationRequest, frozen=True):
    messages: Annotated[list[Say], msgspec.Meta(min_length=1, max_length=1000)]


class Events(msgspec.Struct, frozen=True):
    items: list[EventInfo]


@operation("POST", "/sessions/{session}/messages/batch", status=201)
def say_all(session: Session, ask: SayAll) -> Events:
    """Add several messages in one transaction, all or none."""
    return Events(
        [
            recorded_event_info(session, one)
            for one in session.say_all(list(map(as_message, ask.messages)))
        ]
    )


def as_message(message: Say) -> dict[str, Any]:
    return {**message.extra, "role": message.role, "content": message.content}


class Text(OperationRequest, frozen=True):
    text: NonEmptyText


@operation("POST", "/sessions/{session}/thoughts", status=201)
def think(session: Session, ask: Text) -> EventInfo:
    """Record a thought."""
    return recorded_event_info(session, session.think(ask.text))


class Notes(msgspec.Struct, frozen=True):
    """The notes that have not expired, by key."""

    notes: dict[str, Any]


@operation("GET", "/sessions/{session}/notes")
def notes(view: SessionReader) -> Notes:
    """List the notes of a session by key."""
    return Notes(view.conversation.notes())


class Note(OperationRequest, frozen=True):
    """`ttl`: the number of seconds after which the note expires. `value`: a null deletes the
    note.
    """

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    value: Any = None
    ttl: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


@operation("POST", "/sessions/{session}/notes", status=201)
def note(session: Session, ask: Note) -> EventInfo:
    """Write a note under a key. A note is working memory and can expire."""
    return recorded_event_info(session, session.note(ask.key, ask.value, ttl=ask.ttl))


@operation("GET", "/sessions/{session}/questions")
def questions(view: SessionReader, ask: Paged) -> Page[Question]:
    """List the open questions of a session."""
    return paginate(view.conversation.questions(), ask, lambda one: one.id)


@operation("POST", "/sessions/{session}/questions", status=201)
def ask_question(session: Session, ask: Text) -> CreatedId:
    """Record a question. It stays open until it is answered."""
    return CreatedId(session.ask(ask.text))


class Answer(OperationRequest, frozen=True):
    question: str
    answer: Any = None


@operation("POST", "/sessions/{session}/questions/{question}/answer")
def answer(session: Session, ask: Answer) -> EventInfo:
    """Answer an open question."""
    return recorded_event_info(session, session.answer(ask.question, ask.answer))


@operation("GET", "/sessions/{session}/compactions")
def compactions(view: SessionReader, ask: Paged) -> Page[Compaction]:
    """List the compactions of a session, the latest first. A compaction replaces messages in
    context by a summary.
    """
    return paginate(view.conversation.compactions(), ask, lambda one: one.seq)


class ListDropped(Paged, frozen=True):
    """`compaction`: the number of a compaction event, or 0 for all compactions."""

    compaction: Number = 0


@operation("GET", "/sessions/{session}/dropped")
def dropped(view: SessionReader, ask: ListDropped) -> Page[Message]:
    """List the messages that compactions removed from context, in order."""
    return paginate(view.conversation.dropped(ask.compaction), ask, lambda one: one.seq)


class Compact(OperationRequest, frozen=True):
    """`summary`: the text that replaces the messages; without it, an extract is made."""

    keep_last: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20
    summary: str | None = None


class Compacted(msgspec.Struct, frozen=True):
    """The event of the compaction. It is null if no message could be removed from context."""

    compaction: Compaction | None


@operation("POST", "/sessions/{session}/compact")
def compact(session: Session, ask: Compact) -> Compacted:
    """Replace all but the newest messages in context by a summary. No message is deleted from the
    journal.
    """
    text = ask.summary
    return Compacted(session.compact(ask.keep_last, None if text is None else lambda _: text))
