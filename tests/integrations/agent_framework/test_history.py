from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, Content, Message
from tests.integrations.agent_framework.flow import Scripted

import ortet
from ortet.errors import Invalid, Refused
from ortet.hub.hub import Hub
from ortet.integrations.agent_framework import OrtetHistoryProvider
from ortet.integrations.agent_framework.messages import message_of, to_framework_message
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT
from ortet.journal.state.records import Message as Said

MESSAGES = [
    Message("user", ["hi"]),
    Message("system", [""], author_name="x", message_id="m"),
    Message("user", ["a", "b"], additional_properties={"_excluded": True, "deep": {"er": [1]}}),
    Message("assistant", []),
    Message("user", ["see", Content.from_uri("https://x/y.png", media_type="image/png")]),
    Message("user", [Content.from_data(b"bytes", media_type="image/png")]),
    Message(
        "assistant",
        [
            "let me see",
            Content.from_text_reasoning(text="hm"),
            Content.from_function_call(call_id="1", name="f", arguments='{"a": 1}'),
            Content.from_function_call(call_id="2", name="g", arguments={"a": 1}),
            Content.from_function_call(call_id="3", name="h"),
        ],
    ),
    Message("tool", [Content.from_function_result(call_id="1", result="one")]),
    Message("tool", [Content.from_function_result(call_id="1", result={"a": 1})]),
    Message("tool", [Content.from_function_result(call_id="1", result=None)]),
    Message("tool", [Content.from_function_result(call_id="1", exception="no")]),
    Message(
        "tool",
        [
            Content.from_function_result(call_id="2", result="two"),
            "between",
            Content.from_function_result(call_id="3", result="three"),
        ],
    ),
    Message("assistant", [Content.from_error(message="failed", error_code="9")]),
]


def run(call: Any) -> Any:
    return asyncio.run(call)


@pytest.mark.parametrize("foreign", MESSAGES)
def test_messages_come_back_as_they_were(foreign: Message) -> None:
    data = message_of(foreign)
    extra = {key: value for key, value in data.items() if key not in ("role", "content")}
    again = to_framework_message(Said(1, data["role"], data["content"], extra=extra))
    assert again.to_dict() == foreign.to_dict()


def test_every_message_survives_a_store_and_another_hub(hub: Hub, store: Path) -> None:
    run(OrtetHistoryProvider(hub).save_messages("a b", MESSAGES))
    with ortet.open(store) as other:
        provider = OrtetHistoryProvider(other)
        found = run(provider.get_messages("a b"))
        assert [one.to_dict() for one in found] == [one.to_dict() for one in MESSAGES]
        assert len(run(OrtetHistoryProvider(other, skip_excluded=True).get_messages("a b"))) == 12
        (told,) = other.get(provider.name_of("a b")).records("agent-framework.session")
        assert told.data == {"session_id": "a b"}
        assert run(provider.get_messages("another")) == []


def answer(messages: Sequence[Message]) -> list[Any]:
    last = messages[-1]
    if last.role == "user":
        number = len(messages)
        return [
            Content.from_function_call(call_id=f"{city}{number}", name="look", arguments=given)
            for city, given in (("A", '{"city": "A"}'), ("B", '{"city": "B"}'))
        ]
    return [f"it is {last.contents[0].result}"]


def look(city: str) -> str:
    """The weather."""
    return f"sun in {city}"


def test_an_agent_continues_its_conversation_in_another_hub(hub: Hub, store: Path) -> None:
    client = Scripted(answer)
    provider = OrtetHistoryProvider(hub, budget={"tokens": 100})
    agent = Agent(client=client, tools=[look], context_providers=[provider])
    session = agent.create_session(session_id="chat")
    for number in range(2):
        said = run(agent.run(f"question {number}", session=session))
        assert said.text == "it is sun in A"
    assert len(client.asked[-1]) == 7
    view = hub.get("chat")
    roles = [message.role for message in view.messages()]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    assert view.accounting.spent()["tokens"] == 60
    assert not view.internals.state.core.calling
    with ortet.open(store) as other:  # another process would go on so
        client = Scripted(answer)
        again = Agent(client=client, tools=[look], context_providers=[OrtetHistoryProvider(other)])
        run(again.run("question 2", session=again.create_session(session_id="chat")))
        assert len(client.asked[-1]) == 11
        with pytest.raises(Refused, match="budget"):
            run(again.run("question 3", session=again.create_session(session_id="chat")))
        assert other.verify().problems == []


def test_messages_saved_again_are_stored_once(hub: Hub) -> None:
    provider = OrtetHistoryProvider(hub)
    messages = [Message("user", [str(n)], message_id=str(n)) for n in range(6)]
    run(provider.save_messages("x", messages[:3]))
    run(provider.save_messages("x", messages[:5]))  # all of it again
    run(provider.save_messages("x", messages[3:]))
    run(provider.save_messages("x", []))
    assert [one.text for one in run(provider.get_messages("x"))] == [str(n) for n in range(6)]


def test_a_tool_call_cut_off_by_a_crash_is_answered_as_lost(hub: Hub, store: Path) -> None:
    call = Message("assistant", [Content.from_function_call(call_id="c", name="f")])
    with ortet.open(store) as gone:
        provider = OrtetHistoryProvider(gone)
        run(provider.save_messages("x", [Message("user", ["go"]), call]))
        assert len(run(provider.get_messages("x"))) == 2  # its result may still come
    provider = OrtetHistoryProvider(hub)
    last = run(provider.get_messages("x"))[-1]
    assert (last.role, last.contents[0].call_id, last.contents[0].result) == (
        "tool",
        "c",
        LOST_RESULT_TEXT,
    )
    run(provider.save_messages("x", [Message("user", ["on"])]))
    found = run(provider.get_messages("x"))
    assert [one.role for one in found] == ["user", "assistant", "tool", "user"]
    assert found[2].contents[0].result == LOST_RESULT_TEXT


def test_compacted_messages_are_replaced_by_their_summary(hub: Hub) -> None:
    provider = OrtetHistoryProvider(hub)
    run(provider.save_messages("x", [Message("user", [str(n)]) for n in range(9)]))
    with hub.session("x") as s:
        s.compact(keep_last=2, summarise=lambda messages: "seven numbers")
    first, *rest = run(provider.get_messages("x"))
    assert first.text.endswith("seven numbers")
    assert [one.text for one in rest] == ["7", "8"]


def test_a_message_that_cannot_be_stored_is_named_with_its_path(hub: Hub) -> None:
    provider = OrtetHistoryProvider(hub)
    bad = Message("user", ["x"], additional_properties={"lock": {"of": [1, 2.0, {3}]}})
    with pytest.raises(Invalid, match=r"message 0, at .*lock\.of\[2\]"):
        run(provider.save_messages("x", [bad]))
    large = Message("user", ["y" * 3_000_000])
    run(provider.save_messages("x", [large]))
    assert run(provider.get_messages("x"))[0].text == large.text


def test_runs_at_once_lose_nothing(hub: Hub) -> None:
    provider = OrtetHistoryProvider(hub)

    async def go() -> None:
        several = [
            provider.save_messages("x", [Message("user", [f"{n}.{m}"]) for m in range(3)])
            for n in range(30)
        ]
        await asyncio.gather(*several)

    run(go())
    said = [one.text for one in run(provider.get_messages("x"))]
    groups = [said[at : at + 3] for at in range(0, len(said), 3)]
    assert sorted(groups) == sorted([[f"{n}.{m}" for m in range(3)] for n in range(30)])
