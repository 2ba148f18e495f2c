"""Long lists of messages are recognised by how they begin. What is stored and returned is what it
would be if each message was looked up, whatever was done to the messages in between."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from weakref import ref

import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from tests.fixtures.checkpoints import OF, put, whole

from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver
from ortet.integrations.langgraph.messages import data_of, snapshot
from ortet.integrations.langgraph.values.message_lists import (
    MIN_CACHED_LENGTH,
    MessageList,
    MessageListCache,
)
from ortet.integrations.langgraph.values.parts import PartStore

SIZE = 2 * MIN_CACHED_LENGTH
Change = Callable[[list[AnyMessage], random.Random], list[AnyMessage]]


def message_list(messages: list[AnyMessage]) -> MessageList:
    snapshots = [snapshot(message) for message in messages]
    references: list[ref[BaseMessage]] = [ref(message) for message in messages]
    return MessageList(references, list(range(len(messages))), snapshots)


def conversation(size: int = SIZE, word: str = "said") -> list[AnyMessage]:
    return [
        HumanMessage(f"{word} {n}", id=f"{word}-{n}")
        if n % 2
        else AIMessage(word, id=f"{word}-{n}")
        for n in range(size)
    ]


def read(saver: OrtetSaver, **more: str) -> list[AnyMessage]:
    checkpoint = saver.get_tuple({"configurable": {**OF["configurable"], **more}})
    assert checkpoint is not None
    messages: list[AnyMessage] = checkpoint.checkpoint["channel_values"]["messages"]
    return messages


def longer(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    return [*value, HumanMessage("more", id=f"more-{chance.random()}")]


def shorter(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    return (
        value[: chance.randrange(MIN_CACHED_LENGTH, len(value))]
        if len(value) > MIN_CACHED_LENGTH
        else value
    )


def behind(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    """As a graph does that keeps the last few."""
    return value[chance.randrange(3) :] or value


def within(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    at = chance.randrange(len(value))
    return [*value[:at], HumanMessage("within", id=f"within-{chance.random()}"), *value[at:]]


def moved(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    return chance.sample(value, len(value))


def rewritten(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    chance.choice(value).content = f"rewritten {chance.random()}"
    return value


def marked(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    """Deep in a message, whose own fields stay what they are."""
    chance.choice(value).additional_kwargs.setdefault("marks", []).append(chance.randrange(9))
    return value


def copied(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    at = chance.randrange(len(value))
    return [*value[:at], value[at].model_copy(deep=True), *value[at + 1 :]]


def twice(value: list[AnyMessage], chance: random.Random) -> list[AnyMessage]:
    return [*value, chance.choice(value)]


CHANGES: list[Change] = [
    *(longer, longer, longer, shorter, behind, within, moved),
    *(rewritten, marked, copied, twice),
]


@pytest.mark.parametrize("seed", range(4))
def test_randomly_changed_message_lists_are_stored_exactly(hub: Hub, seed: int) -> None:
    chance, messages = random.Random(seed), conversation()
    others, past = conversation(word="other"), list[tuple[str, list[AnyMessage]]]()
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": messages, "others": others})
        for step in range(2, 60):
            if chance.random() < 0.3:
                messages = read(saver)
            for _ in range(chance.randrange(1, 3)):
                messages = chance.choice(CHANGES)(messages, chance)
            values = {"messages": messages, "others": others[: chance.randrange(1, len(others))]}
            on = put(saver, on, values, version=step)
            assert read(saver) == messages
            id_ = on["configurable"]["checkpoint_id"]
            past.append((id_, [one.model_copy(deep=True) for one in messages]))
        assert saver.get_tuple(OF) == whole(hub)
        for id_, then in past:
            assert read(saver, checkpoint_id=id_) == then


def test_changing_a_returned_list_does_not_change_the_stored_one(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": conversation()})
        for _ in range(2):
            messages = read(saver)
            assert messages == conversation()
            messages.append(HumanMessage("nobody put this", id="x"))
            messages[3].content = "nor this"
            messages[4].additional_kwargs["nor"] = "this"
        assert read(saver) == conversation()
        mine = conversation()
        put(saver, on, {"messages": mine}, version=2)
        mine.append(HumanMessage("after it was put", id="y"))
        assert read(saver) == conversation()


def test_a_refused_checkpoint_leaves_no_messages_behind(hub: Hub) -> None:
    messages = conversation()
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": messages})
        messages = [*messages, HumanMessage("not stored with what cannot be", id="z")]
        with pytest.raises(Exception, match="cannot be stored"):
            put(saver, on, {"messages": messages, "note": object()}, version=2)
        put(saver, on, {"messages": messages}, version=3)
        assert read(saver) == messages
        assert whole(hub).checkpoint["channel_values"]["messages"] == messages


def test_messages_of_one_read_are_not_those_of_another(hub: Hub) -> None:
    written = conversation()
    with OrtetSaver(hub) as saver:
        put(saver, OF, {"messages": written, "others": written[:3]})
        first, second = read(saver), read(saver)
        for messages in (first, second, written):
            assert messages == conversation()
        first[1].content = "changed"
        first[2].additional_kwargs["marks"] = ["changed"]
        assert second == written == read(saver) == conversation()
        checkpoint = saver.get_tuple(OF)
        assert checkpoint is not None
        values = checkpoint.checkpoint["channel_values"]
        values["others"][1].content = "changed"
        assert values["messages"] == conversation()


def test_messages_of_one_snapshot_are_not_those_of_a_run_or_another_snapshot(hub: Hub) -> None:
    builder = StateGraph(MessagesState)
    answer = AIMessage("hello", id="2", additional_kwargs={"marks": ["made"]})
    builder.add_node("bot", lambda state: {"messages": [answer.model_copy(deep=True)]})
    builder.add_edge(START, "bot")
    with OrtetSaver(hub) as saver:
        graph = builder.compile(checkpointer=saver)
        result = graph.invoke({"messages": [HumanMessage("hi", id="1")]}, OF)
        first, second = (graph.get_state(OF).values["messages"] for _ in range(2))
        first[0].content = "changed"
        first[1].additional_kwargs["marks"].append("changed")
        expected = [HumanMessage("hi", id="1"), answer]
        assert result["messages"] == second == expected
        assert graph.get_state(OF).values["messages"] == expected
        result["messages"][0].content = "changed"
        history = [state.values.get("messages") for state in graph.get_state_history(OF)]
        assert history == [expected, expected[:1], []]


def test_a_returned_list_is_recognised_when_it_is_put_again(hub: Hub) -> None:
    """Otherwise each message of a long thread would be encoded again in each run."""
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": conversation()})
        messages = read(saver)
        for _ in range(10):  # A program that only reads does not displace the list.
            read(saver)
        parts = saver._threads._threads["t"].part_store
        assert [parts.find_number_by_object(message) for message in messages[5:8]] == [5, 6, 7]
        prefix = parts.message_lists.longest_prefix([*messages, HumanMessage("more")])
        assert prefix is not None and prefix.numbers == list(range(SIZE))
        messages[6].content = "changed"
        assert parts.find_number_by_object(messages[6]) is None
        put(saver, on, {"messages": messages}, version=2)
        assert read(saver) == messages
    assert len(hub.get("t").messages()) == SIZE + 1


def test_a_message_that_gets_its_id_after_it_was_read_is_stored_once(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": [HumanMessage("hello")]})
        (message,) = read(saver)
        read(saver)  # by another, who does not go on
        message.id = "1"
        on = put(saver, on, {"messages": [message]}, version=2)
        assert read(saver) == [HumanMessage("hello", id="1")]
    assert [one.content for one in hub.get("t").messages()] == ["hello"]


def test_the_objects_of_a_returned_list_are_freed_with_it(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        put(saver, OF, {"messages": conversation()})
        references = [ref(message) for message in read(saver)]
        gc.collect()
        assert [reference() for reference in references] == [None] * SIZE
        assert read(saver) == conversation()


def test_an_endless_range_of_numbers_is_not_expanded() -> None:
    parts = PartStore(lambda oid, size: b"")
    for number, message in enumerate(conversation()):
        data = data_of(message)
        assert data is not None
        data["extra"]["langgraph"]["n"] = number
        parts.add_message(data, number)
    serde = JsonPlusSerializer()
    for spans in ([[0, 1 << 62]], [[0, 1 << 62], [1 << 62, SIZE]], [[0, SIZE], [5, 2]]):
        assert parts.decode({"$l": spans}, serde) == conversation()


def test_only_the_last_few_put_lists_are_remembered() -> None:
    cache = MessageListCache()
    several = [conversation(word=f"list {number}") for number in range(20)]
    for messages in several:
        cache.add_put(message_list(messages))
    recognised = [cache.longest_prefix(messages) is not None for messages in several]
    assert recognised == [False] * 16 + [True] * 4
