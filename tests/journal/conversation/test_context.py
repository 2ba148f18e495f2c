"""A context fits its tokens, ends with the newest, and never parts a call from its result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Invalid
from ortet.journal.conversation.context import build_context, newest_first
from ortet.journal.conversation.text import clip, estimate_tokens, message_tokens, one_line, text_of
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.journal.events import Event
from ortet.journal.state.records import Message

TURN = st.sampled_from(["say", "call", "use"])


def said(seq: int, role: str, content: Any = "x", **extra: Any) -> Message:
    return Message(seq, role, content, extra=extra)


def call(seq: int, *ids: str) -> Message:
    calls = [{"id": id_, "type": "function", "function": {"name": f"f{id_}"}} for id_ in ids]
    return said(seq, "assistant", None, tool_calls=calls)


def result(seq: int, id_: str, **extra: Any) -> Message:
    return said(seq, "tool", "42", tool_call_id=id_, **extra)


def use(seq: int, *ids: str) -> Message:
    parts = [{"type": "tool_use", "id": id_, "name": f"f{id_}", "input": {}} for id_ in ids]
    return said(seq, "assistant", [{"type": "text", "text": "let me see"}, *parts])


def used(seq: int, *ids: str) -> Message:
    return said(seq, "user", [{"type": "tool_result", "tool_use_id": id_} for id_ in ids])


def conversation(turns: list[tuple[str, int]]) -> list[Message]:
    found: list[Message] = []
    for turn, size in turns:
        seq = len(found) + 1
        if turn == "say":
            found.append(said(seq, "user", "w" * size))
        elif turn == "call":
            found += [call(seq, f"{seq}"), result(seq + 1, f"{seq}")]
        else:
            found += [use(seq, f"{seq}"), used(seq + 1, f"{seq}")]
    return found


@given(st.lists(st.tuples(TURN, st.integers(0, 400)), min_size=1), st.integers(80, 600))
def test_a_context_fits_its_tokens_and_never_splits_call_and_result(
    turns: list[tuple[str, int]], tokens: int
) -> None:
    messages = conversation(turns)
    context = build_context(iter(reversed(messages)), tokens=tokens, count=estimate_tokens)
    assert (
        sum(message_tokens(message, estimate_tokens) for message in context)
        == context.tokens
        <= tokens
    )
    assert context.messages[-1].seq == messages[-1].seq
    assert [m.seq for m in context] == [m.seq for m in messages[-len(context) :]]
    called = {c.id for message in context for c in calls_of(message)}
    assert called == {id_ for message in context for id_ in results_of(message)}
    assert context.left_out == (len(context) < len(messages))


def test_rules_and_summary_come_first() -> None:
    rules, summary = [said(1, "system", "be kind")], said(9, "user", "so far " * 500)
    context = build_context(
        iter([said(10, "user", "go on")]),
        rules=rules,
        summary=summary,
        tokens=100,
        count=estimate_tokens,
    )
    assert [message.seq for message in context] == [1, 9, 10]
    assert context.messages[1].extra["clipped"] is True
    assert context.tokens <= 100


def test_a_result_that_is_too_large_is_cut_and_its_call_is_there() -> None:
    huge = said(2, "tool", "y" * 100_000, tool_call_id="a")
    context = build_context(iter([huge, call(1, "a")]), tokens=200, count=estimate_tokens)
    assert [message.seq for message in context] == [1, 2]
    assert context.tokens <= 200
    assert context.messages[1].content.endswith("…")
    parts = [{"type": "tool_result", "tool_use_id": "a", "content": "z" * 9000}]
    context = build_context(
        iter([said(2, "user", parts), use(1, "a")]), tokens=200, count=estimate_tokens
    )
    assert context.messages[1].content[0]["tool_use_id"] == "a"
    assert context.tokens <= 200


def test_a_message_larger_than_the_token_limit_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        build_context(iter([call(1, "a" * 4000)]), tokens=20, count=estimate_tokens)
    assert caught.value.kind == "too_few_tokens"
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(Invalid):
            build_context(iter([]), tokens=wrong, count=estimate_tokens)  # type: ignore[arg-type]


def test_a_context_uses_the_token_counter_of_the_caller() -> None:
    messages = [said(n, "user", "one two three") for n in range(1, 10)]
    context = build_context(iter(messages[::-1]), tokens=14, count=lambda text: len(text.split()))
    assert [message.seq for message in context] == [8, 9]


def test_a_context_reads_only_the_newest_events_it_needs() -> None:
    asked: list[tuple[int, int]] = []

    def read(after: int, upto: int) -> list[Event]:
        asked.append((after, upto))
        return [
            Event(seq, "message", 0, "", {"role": "user", "content": "w" * 400}, b"")
            for seq in range(after + 1, upto + 1)
        ]

    context = build_context(newest_first(read, 0, 100_000), tokens=1000, count=estimate_tokens)
    assert context.left_out
    assert len(asked) <= 2
    asked.clear()
    assert [m.seq for m in newest_first(read, 997, 1000)] == [1000, 999, 998]


def test_text_of_turns_every_content_shape_into_text() -> None:
    assert text_of([{"type": "text", "text": "a"}, "b", {"type": "image"}]) == "a\nb\n[image]"
    assert text_of([{"type": "tool_use", "name": "f", "input": {"x": 1}}]) == '[calls f {"x":1}]'
    assert text_of([{"type": "tool_result", "content": [{"text": "r"}]}]) == "r"
    assert (text_of(None), text_of({"a": 1}), text_of([{"a": 1}])) == ("", '{"a":1}', '{"a":1}')
    assert (clip("abc", 3), clip("abcd", 3), clip("abcd", 0)) == ("abc", "ab…", "")
    assert one_line("a\n  b\tc", 99) == "a b c"
