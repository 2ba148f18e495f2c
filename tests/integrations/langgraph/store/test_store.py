"""OrtetStore does what LangGraph's stores do: values, namespaces, filters, queries, graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from tests.fixtures.waiting import loop_turns

import ortet
from ortet.integrations.langgraph import OrtetStore

DATED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(hub: ortet.Hub) -> Any:
    return OrtetStore(hub)


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def test_an_item_is_put_read_replaced_and_deleted(store: Any) -> None:
    before = datetime.now(UTC)
    store.put(("users", "1"), "prefs", {"theme": "dark", "sizes": [1, 2.5, None, True]})
    first = store.get(("users", "1"), "prefs")
    assert first.value == {"theme": "dark", "sizes": [1, 2.5, None, True]}
    assert (first.namespace, first.key) == (("users", "1"), "prefs")
    assert before.replace(microsecond=0) <= first.created_at == first.updated_at
    first.value["theme"] = "mine alone"
    store.put(("users", "1"), "prefs", {"theme": "light"})
    second = store.get(("users", "1"), "prefs")
    assert second.value == {"theme": "light"}
    assert second.created_at == first.created_at
    assert second.updated_at >= first.updated_at
    assert store.get(("users", "2"), "prefs") is None
    store.delete(("users", "1"), "prefs")
    store.delete(("users", "1"), "prefs")
    assert store.get(("users", "1"), "prefs") is None
    assert store.search(()) == []


def test_history_returns_every_value_of_a_key(hub: ortet.Hub, store: Any) -> None:
    space = ("users", "1")
    for value in ({"n": 1}, {"n": 2}, {"n": 2}, {"n": True}):
        store.put(space, "k", value)
    store.put(space, "other", {"n": 0})
    store.delete(space, "k")
    past = store.history(space, "k")
    assert [one.value for one in past] == [{"n": 1}, {"n": 2}, {"n": 2}, {"n": True}, None]
    assert past[3].value["n"] is True
    told = hub.get("langgraph-store").records("langgraph.item")
    assert [("value" in one.data, "same" in one.data) for one in told[1:3]] == [
        (True, False),
        (False, True),
    ]
    assert hub.audit("langgraph-store").events >= 6
    hub.verify()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"when": DATED}, "when"),
        ({"a": {"b": [1, {"c": {1, 2}}]}}, "a.b[1].c"),
        ({"n": float("nan")}, "n"),
        ({"n": 2**70}, "n"),
        ({"a": {1: "x"}}, "a[1]"),
        ({"text": "\ud800"}, "text"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named(store: Any, value: Any, field: str) -> None:
    with pytest.raises(ortet.Invalid) as caught:
        store.batch([PutOp(("a",), "fine", {"n": 1}), PutOp(("a",), "bad", value)])
    assert caught.value.kind == "not_json"
    assert "'bad'" in caught.value.message
    assert field in caught.value.message
    assert caught.value.details["field"] == field
    assert store.get(("a",), "fine") is None  # nothing of the batch


@pytest.mark.parametrize(
    "key", ["", ".", "..", "a..b", "a\0b", "\x02x", "é漢🙂", "x" * 5000, "x" * 4999 + "y", " ", "/"]
)
def test_any_text_is_accepted_as_a_key(store: Any, key: str) -> None:
    store.put(("a", "b"), "beside", {"n": 0})
    store.put(("a", "b"), key, {"n": 1})
    assert store.get(("a", "b"), key).key == key
    assert keys(store.search(("a",))) == ["beside", key]
    store.delete(("a", "b"), key)
    assert store.get(("a", "b"), key) is None


def test_bad_namespaces_and_keys_are_refused(store: Any) -> None:
    for namespace in ((), ("a.b",), ("",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})
    for op in (GetOp(("a.b",), "k"), SearchOp(("",)), PutOp(("a\0",), "k", {})):
        with pytest.raises(InvalidNamespaceError):
            store.batch([op])
    for op in (
        PutOp(("a",), "\ud800", {}),
        PutOp(("\ud800",), "k", {}),
        PutOp(("x" * 3000,), "k", {}),
    ):
        with pytest.raises(ortet.Invalid):
            store.batch([op])
    assert store.list_namespaces() == []


def test_a_batch_reads_the_state_before_it_and_the_last_put_wins(store: Any) -> None:
    store.put(("a",), "k", {"n": 1})
    found = store.batch(
        [
            PutOp(("a",), "k", {"n": 2}),
            GetOp(("a",), "k"),
            SearchOp(("a",)),
            PutOp(("a",), "k", {"n": 3}),
            PutOp(("b",), "gone", {"n": 1}),
            PutOp(("b",), "gone", None),
            ListNamespacesOp(),
        ]
    )
    assert found[0] is None
    assert found[1].value == {"n": 1}
    assert [item.value for item in found[2]] == [{"n": 1}]
    assert found[6] == [("a",)]
    assert store.get(("a",), "k").value == {"n": 3}
    assert store.get(("b",), "gone") is None


def test_long_values_are_kept_in_parts(store: Any) -> None:
    value = {"text": "é🙂x" * 700_000, "n": [1.5, None]}
    store.put(("a",), "long", value)
    store.put(("a",), "short", {"n": 1})
    store.put(("a",), "long", value)  # the same is not stored twice
    assert store.get(("a",), "long").value == value
    assert store.search(("a",), filter={"n": [1.5, None]})[0].value == value
    assert [one.value for one in store.history(("a",), "long")] == [value, value]


def test_namespaces_are_listed(store: Any) -> None:
    spaces = [
        ("a", "b", "c"),
        ("a", "b", "d", "e"),
        ("a", "b", "d", "i"),
        ("a", "b", "f"),
        ("a", "c", "f"),
    ]
    for space in spaces:
        store.put(space, "k", {})
    assert store.list_namespaces() == sorted(spaces)
    assert store.list_namespaces(prefix=("a", "b"), max_depth=3) == [
        ("a", "b", "c"),
        ("a", "b", "d"),
        ("a", "b", "f"),
    ]
    assert store.list_namespaces(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f")]
    assert store.list_namespaces(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
    assert store.list_namespaces(suffix=("d", "*")) == spaces[1:3]
    assert store.list_namespaces(limit=2, offset=1) == sorted(spaces)[1:3]
    store.delete(("a", "b", "c"), "k")
    assert ("a", "b", "c") not in store.list_namespaces()
    both = (MatchCondition("prefix", ("a", "b")), MatchCondition("suffix", ("e",)))
    assert store.batch([ListNamespacesOp(both)]) == [[("a", "b", "d", "e")]]


def test_fields_are_filtered(store: Any) -> None:
    for number in range(5):
        value = {"n": number, "who": {"name": "ab"[number % 2]}, "day": f"2026-01-0{number + 1}"}
        store.put(("a",), str(number), value)
    store.put(("a",), "bare", {"tags": ["x", "y"]})

    def found(**wanted: Any) -> list[str]:
        return keys(store.search((), filter=wanted))

    assert found(n=3) == ["3"]
    assert found(n={"$gte": 3}) == ["3", "4"]
    assert found(n={"$gt": 0, "$lte": 2}) == ["1", "2"]
    assert found(n={"$ne": 0}) == ["1", "2", "3", "4", "bare"]
    assert found(who={"name": "b"}, n={"$lt": 3}) == ["1"]
    assert found(tags=["x", "y"]) == ["bare"]
    assert found(day={"$gte": "2026-01-04"}) == ["3", "4"]
    assert found(nowhere=1) == []
    with pytest.raises(ortet.Invalid, match=r"\$in"):
        found(n={"$in": [1]})


def test_a_query_without_an_index_is_answered_by_word_search(store: Any) -> None:
    store.put(("m",), "1", {"text": "the cat sleeps on the sofa"})
    store.put(("m",), "2", {"text": "deployment of the billing service failed"})
    store.put(("m",), "3", {"nested": {"list": ["billing invoices", 7]}})
    found = store.search(("m",), query="billing failed")
    assert keys(found) == ["2", "3", "1"]
    assert found[0].score > found[1].score > 0
    assert found[2].score is None
    assert keys(store.search(("m",), query="nothing has these")) == ["1", "2", "3"]
    store.put(("m",), "1", {"text": "billing billing billing failed"})
    assert keys(store.search(("m",), query="billing failed", limit=1)) == ["1"]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """So many of each letter: as good as any for a test."""
    return [[float(text.lower().count(letter)) for letter in "abcdefgh"] for text in texts]


def test_items_are_found_by_meaning(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub, index={"dims": 8, "embed": embed, "fields": ["text", "tags[*]"]})
    store.put(("m",), "a", {"text": "aaaa"})
    store.put(("m",), "ab", {"text": "aabb"})
    store.put(("m",), "tagged", {"text": "hhhh", "tags": ["b", "c"]})
    store.put(("m",), "hidden", {"text": "bbbb"}, index=False)
    store.put(("m",), "by-title", {"title": "bb", "text": "h"}, index=["title"])
    found = store.search(("m",), query="b")
    assert keys(found) == ["tagged", "by-title", "ab", "a", "hidden"]
    assert [round(item.score or 0, 4) for item in found] == [1, 1, 0.7071, 0, 0]
    assert found[-1].score is None
    store.put(("m",), "by-title", {"title": "aa"}, index=["title"])
    store.delete(("m",), "tagged")
    assert keys(store.search(("m",), query="b", limit=2)) == ["ab", "a"]
    assert keys(store.search(("m",), query="b", filter={"text": "aaaa"})) == ["a"]
    again = OrtetStore(hub, index={"dims": 8, "embed": embed})
    assert keys(again.search(("m",), query="b", limit=1)) == ["ab"]


def test_vectors_that_do_not_fit_are_refused_before_anything_is_written(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub, index={"dims": 9, "embed": embed})
    with pytest.raises(ortet.Invalid, match="dims"):
        store.put(("m",), "a", {"text": "a"})
    assert store.get(("m",), "a") is None


def test_async_calls_do_the_same(hub: ortet.Hub) -> None:
    async def aembed(texts: Sequence[str]) -> list[list[float]]:
        await loop_turns()
        return embed(texts)

    store: Any = OrtetStore(hub, index={"dims": 8, "embed": aembed, "fields": ["text"]})

    async def work() -> None:
        many = (store.aput(("m",), str(n), {"text": "a" * n + "b" * (5 - n)}) for n in range(6))
        await asyncio.gather(*many)
        assert (await store.aget(("m",), "3")).value == {"text": "aaabb"}
        found = await store.asearch(("m",), query="a", limit=2)
        assert keys(found) == ["5", "4"]
        await store.adelete(("m",), "5")
        assert await store.aget(("m",), "5") is None
        assert await store.alist_namespaces() == [("m",)]

    asyncio.run(work())


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def test_a_node_asks_for_the_store(store: Any) -> None:
    def remember(state: State) -> dict[str, Any]:
        memory = get_store()
        assert memory is not None
        text = state["messages"][-1].content
        memory.put(("memories", "ann"), str(len(memory.search(("memories",)))), {"text": text})
        known = [item.value["text"] for item in memory.search(("memories", "ann"), query="likes")]
        return {"messages": [AIMessage(f"I know {len(known)} things: {known[0]}")]}

    graph = StateGraph(State).add_node("remember", remember).add_edge(START, "remember")
    app: Any = graph.compile(store=store)
    app.invoke({"messages": [("user", "my name is Ann")]})
    said = app.invoke({"messages": [("user", "Ann likes tea")]})
    assert said["messages"][-1].content == "I know 2 things: Ann likes tea"


class Model(GenericFakeChatModel):
    """Says what it is told to, whatever tools it is given."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_an_agent_s_tools_remember(store: Any) -> None:
    from langgraph.prebuilt import create_react_agent

    def save_memory(text: str) -> str:
        """As langmem's tools do it."""
        memory = get_store()
        assert memory is not None
        memory.put(("memories", "{user}"), "1", {"kind": "Memory", "content": text})
        return "saved"

    call = ToolCall(name="save_memory", args={"text": "likes tea"}, id="1")
    model = Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("noted")]))
    agent = create_react_agent(model, [save_memory], store=store)
    said = agent.invoke({"messages": [("user", "remember that I like tea")]})
    assert said["messages"][-1].content == "noted"
    (item,) = store.search(("memories",), query="tea", filter={"kind": "Memory"})
    assert item.value["content"] == "likes tea"
