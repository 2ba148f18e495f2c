"""Long lists of messages, which are known by what they begin with: what is stored and given is what
it would be if each message was looked at, whatever was done to them meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from tests.fixtures.checkpoints import OF, put, whole

from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver
from ortet.integrations.langgraph.messages import snapshot
from ortet.integrations.langgraph.values.rows import (
    MIN_CACHED_LENGTH,
    MessageList,
    MessageListCache,
)

SIZE = 2 * MIN_CACHED_LENGTH
Change = Callable[[list[AnyMessage], random.Random], list[AnyMessage]]


def row(messages: list[AnyMessage]) -> MessageList:
    numbers, then = list(range(len(messages))), [snapshot(one) for one in messages]
    return MessageList([*messages], numbers, then)


def said(size: int = SIZE, word: str = "said") -> list[AnyMessage]:
    return [
        HumanMessage(f"{word} {n}", id=f"{word}-{n}")
        if n % 2
        else AIMessage(word, id=f"{word}-{n}")
        for n in range(size)
    ]


def given(saver: OrtetSaver, **more: str) -> list[AnyMessage]:
    found = saver.get_tuple({"configurable": {**OF["configurable"], **more}})
    assert found is not None
    messages: list[AnyMessage] = found.checkpoint["channel_values"]["messages"]
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
    chance, messages = random.Random(seed), said()
    others, past = said(word="other"), list[tuple[str, list[AnyMessage]]]()
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": messages, "others": others})
        for step in range(2, 60):
            if chance.random() < 0.3:
                messages = given(saver)
            for _ in range(chance.randrange(1, 3)):
                messages = chance.choice(CHANGES)(messages, chance)
            values = {"messages": messages, "others": others[: chance.randrange(1, len(others))]}
            on = put(saver, on, values, version=step)
            assert given(saver) == messages
            id_ = on["configurable"]["checkpoint_id"]
            past.append((id_, [one.model_copy(deep=True) for one in messages]))
        found = saver.get_tuple(OF)
        assert found == whole(hub)
        for id_, then in past:
            assert given(saver, checkpoint_id=id_) == then


def test_changing_a_returned_list_does_not_change_the_stored_one(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": said()})
        for _ in range(2):
            found = given(saver)
            assert found == said()
            found.append(HumanMessage("nobody put this", id="x"))
            found[3].content = "nor this"
            found[4].additional_kwargs["nor"] = "this"
        assert given(saver) == said()
        mine = said()
        put(saver, on, {"messages": mine}, version=2)
        mine.append(HumanMessage("after it was put", id="y"))
        assert given(saver) == said()


def test_a_refused_checkpoint_leaves_no_messages_behind(hub: Hub) -> None:
    messages = said()
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": messages})
        messages = [*messages, HumanMessage("not stored with what cannot be", id="z")]
        with pytest.raises(Exception, match="cannot be stored"):
            put(saver, on, {"messages": messages, "note": object()}, version=2)
        put(saver, on, {"messages": messages}, version=3)
        assert given(saver) == messages
        assert whole(hub).checkpoint["channel_values"]["messages"] == messages


def test_unchanged_messages_are_returned_as_the_same_objects(hub: Hub) -> None:
    """So that what a graph adds to them is all that is looked at."""
    with OrtetSaver(hub) as saver:
        on = put(saver, OF, {"messages": said()})
        first = given(saver)
        more = [*first, HumanMessage("more", id="more")]
        put(saver, on, {"messages": more}, version=2)
        assert all(one is other for one, other in zip(given(saver), more, strict=True))


def test_an_endless_range_of_numbers_is_not_expanded() -> None:
    rows, messages = MessageListCache(), said()
    rows.add(row(messages))
    assert rows.find([[0, SIZE]]) == messages
    assert rows.find([[0, MIN_CACHED_LENGTH], [MIN_CACHED_LENGTH, SIZE - 1]]) == messages[:-1]
    for spans in ([[0, 1 << 62]], [[0, 1 << 62], [1 << 62, SIZE]], [[1, SIZE]], [[5, 2]]):
        assert rows.find(spans) is None


def test_only_the_last_few_lists_are_remembered() -> None:
    rows = MessageListCache()
    several = [said(word=f"list {n}") for n in range(20)]
    for one in several:
        rows.add(row(one))
    assert [rows.longest_prefix(one) is not None for one in several] == [False] * 16 + [True] * 4
