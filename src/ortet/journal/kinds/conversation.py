"""Event kinds of the conversation: messages, thoughts, notes, questions and compactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.superseded import SUPERSEDED_KIND, apply_superseded, ranges_of
from ortet.journal.conversation.text import clip, message_text, one_line, text_of
from ortet.journal.conversation.tool_calls import unanswered_calls
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import (
    LONG_CHARS,
    SHORT_CHARS,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    ReasonText,
    always,
    progress_text,
    text_field,
)
from ortet.journal.state.records import Message, NoteRecord, Question, message_of
from ortet.journal.state.state import SessionState


class _MessageData(msgspec.Struct):
    role: str = ""
    extra: dict[str, Any] = {}


class _TextData(msgspec.Struct):
    text: str = ""


class _NoteData(msgspec.Struct):
    key: str = ""
    expires: int = 0


class _QuestionData(msgspec.Struct):
    id: str = ""
    text: str = ""


class _AnswerData(msgspec.Struct):
    id: str = ""


class _SupersededData(msgspec.Struct):
    out: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []


# reducers


def _fold_message(state: SessionState, event: Event, data: EventData) -> None:
    before = state.core.calling
    if not before and (data.get("role") != "assistant" or _has_no_tool_calls(data)):
        return  # no call waits for a result, and this message makes none
    calling = unanswered_calls(before, message_of(event))
    if calling != before:
        state.change_core(calling=calling)


def _has_no_tool_calls(data: EventData) -> bool:
    """Return True for a plain text message: the common case, without a search for calls."""
    return "extra" not in data and type(data.get("content")) is str


def _fold_note(state: SessionState, event: Event, data: EventData) -> None:
    key = data["key"]
    if data.get("value") is None:
        state.notes.drop(key)
    else:
        state.notes.set(key, NoteRecord(key, data["value"], data.get("expires", 0), event.seq))


def _fold_question(state: SessionState, event: Event, data: EventData) -> None:
    state.questions.set(data["id"], Question(data["id"], data["text"], seq=event.seq))


def _fold_answer(state: SessionState, event: Event, data: EventData) -> None:
    del event
    question = state.questions.get(data["id"])
    if question is not None:
        answered = msgspec.structs.replace(question, answer=data.get("answer"), answered=True)
        state.questions.set(question.id, answered)


def _fold_compaction(state: SessionState, event: Event, data: EventData) -> None:
    state.change_core(since=data["last"], summary=event.seq)


def _fold_superseded(state: SessionState, event: Event, data: EventData) -> None:
    """Mark messages as superseded. Calls without a result are no longer known after that."""
    del event
    state.change_core(aside=apply_superseded(state.core.aside, data), calling=[])


# lines


def _message_line(data: EventData) -> str:
    text = message_text(data.get("content"), data.get("extra")) or "(no text)"
    return f"{data.get('role', '')}: {text}"


def _message_words(data: EventData) -> str:
    return text_of(data.get("content"))


def _is_user_message(data: Mapping[str, Any]) -> bool:
    return bool(data.get("role") == "user")


def _note_line(data: EventData) -> str:
    return f"{data.get('key', '')} = {data.get('value')!r}"


def _question_progress(data: EventData) -> str:
    return f"asked: {progress_text(text_of(data.get('text', '')))}"


def _answer_text(data: EventData) -> str:
    return text_of(data.get("answer"))


def _answer_progress(data: EventData) -> str:
    return f"was answered: {progress_text(_answer_text(data))}"


def _compaction_line(data: EventData) -> str:
    first, last = data.get("first"), data.get("last")
    return f"left out {data.get('count')} messages, events {first} to {last}"


def _superseded_line(data: EventData) -> str:
    return "; ".join(_superseded_spans(data))


def _superseded_spans(data: EventData) -> Iterator[str]:
    """Describe the message ranges that an event marks as superseded or restores."""
    for field, label in (("out", "set aside"), ("back", "back again")):
        if spans := ranges_of(data, field):
            ranges = ", ".join(f"{first} to {last}" for first, last in spans)
            yield f"{label}: messages of events {ranges}"


# briefing


def _messages(items: BriefingItems) -> Sequence[Message]:
    return items.messages


def _describe_message(message: Message) -> tuple[str, Any]:
    text = message_text(message.content, message.extra)
    line = f"{message.role}: {one_line(text, LONG_CHARS)}"
    return line, {"seq": message.seq, "role": message.role, "content": clip(text, LONG_CHARS)}


def _notes(items: BriefingItems) -> Sequence[tuple[str, Any]]:
    return list(items.notes.items())


def _describe_note(note: tuple[str, Any]) -> tuple[str, Any]:
    key, value = note
    text = one_line(text_of(value), SHORT_CHARS)
    return f"{key} = {text}", {"key": key, "value": text}


def _questions(items: BriefingItems) -> Sequence[Question]:
    return items.questions


def _describe_question(question: Question) -> tuple[str, Any]:
    text = clip(question.text, LONG_CHARS)
    return one_line(question.text, LONG_CHARS), {"id": question.id, "text": text}


def _summaries(items: BriefingItems) -> Sequence[str]:
    return [items.summary] if items.summary else []


def _describe_summary(text: str) -> tuple[str, Any]:
    return one_line(text, LONG_CHARS * 3), clip(text, LONG_CHARS * 3)


KINDS = (
    EventKind(
        name="message",
        schema=_MessageData,
        reducer=_fold_message,
        ends_wait=_is_user_message,
        indexed=True,
        words=_message_words,
        expires_as_message=True,
        line=_message_line,
        group="said",
        briefing=(
            BriefingSectionSpec(190, "messages", "Last messages", 42, _messages, _describe_message),
        ),
    ),
    EventKind(
        name="thought",
        schema=_TextData,
        survives_rewind=True,
        expires_as_message=True,
        group="reasoning",
        reason=ReasonText("thought", text_field),
    ),
    EventKind(
        name="note",
        schema=_NoteData,
        reducer=_fold_note,
        survives_rewind=True,
        line=_note_line,
        group="known",
        briefing=(BriefingSectionSpec(170, "notes", "Notes", 10, _notes, _describe_note),),
    ),
    EventKind(
        name="question",
        schema=_QuestionData,
        reducer=_fold_question,
        survives_rewind=True,
        group="reasoning",
        progress=_question_progress,
        reason=ReasonText("question", text_field),
        briefing=(
            BriefingSectionSpec(
                50, "questions", "Open questions", 60, _questions, _describe_question
            ),
        ),
    ),
    EventKind(
        name="answer",
        schema=_AnswerData,
        reducer=_fold_answer,
        survives_rewind=True,
        ends_wait=always,
        importance=0.05,
        group="reasoning",
        progress=_answer_progress,
        reason=ReasonText("answer", _answer_text),
    ),
    EventKind(
        name="comment",
        schema=_TextData,
        survives_rewind=True,
        replay="never_requested",
        from_others=True,
        group="said",
    ),
    EventKind(
        name="compaction",
        automatic=True,
        reducer=_fold_compaction,
        seq_fields=("before",),
        survives_rewind=True,
        replay="skipped",
        quotes_messages=True,
        expires_as_message=True,
        line=_compaction_line,
        briefing=(
            BriefingSectionSpec(180, "summary", "Earlier", 35, _summaries, _describe_summary),
        ),
    ),
    EventKind(
        name=SUPERSEDED_KIND,
        schema=_SupersededData,
        reducer=_fold_superseded,
        replay="skipped",
        in_episodes=False,
        line=_superseded_line,
    ),
)
