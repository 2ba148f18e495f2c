"""Operations at random on OrtetStore and on LangGraph's InMemoryStore: the same answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchItem
from langgraph.store.memory import InMemoryStore

import ortet
from ortet.integrations.langgraph import OrtetStore

LABELS = ("a", "b", "users", "é", "x y", "*")
KEYS = ("1", "2", "prefs", "a.b", "..", "ключ")
DEPTHS = (1, 1, 2, 2, 3)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """No two texts of this test are equally near to a third."""
    return [
        [float(part) for part in random.Random(text).sample(range(-99, 99), 6)] for text in texts
    ]


class Both:
    """Does everything twice. Times are not compared, nor the order of namespaces in a search."""

    def __init__(self, hub: ortet.Hub, seed: int, *, index: Any) -> None:
        self.dice = random.Random(seed)
        self.index = index
        self.hub = hub
        self.ours: Any = OrtetStore(hub, index=index)
        self.theirs = InMemoryStore(index=index)

    def namespace(self) -> tuple[str, ...]:
        return tuple(self.dice.choice(LABELS) for _ in range(self.dice.choice(DEPTHS)))

    def value(self) -> dict[str, Any]:
        dice = self.dice
        kind = dice.choice(["note", "task", None, 3])
        who = {"name": dice.choice("ab"), "age": dice.randint(1, 3)}
        value = {"n": dice.randint(0, 9), "kind": kind, "who": who, "tags": dice.sample("xyz", 2)}
        return {**value, "text": f"text {dice.random()}"}

    def wanted(self) -> dict[str, Any] | None:
        dice = self.dice
        return dice.choice(
            [
                None,
                {"n": dice.randint(0, 9)},
                {
                    "n": {
                        dice.choice(["$gt", "$gte", "$lt", "$lte", "$ne", "$eq"]): dice.randint(
                            0, 9
                        )
                    }
                },
                {"kind": dice.choice(["note", None]), "n": {"$gt": 2, "$lt": 8}},
                {"who": {"name": "a", "age": {"$gte": 2}}},
                {"tags": ["x", "y"]},
            ]
        )

    def step(self) -> None:
        verb = self.dice.choice(
            ["put"] * 5 + ["get"] * 2 + ["delete", "batch", "search", "search", "list"]
        )
        getattr(self, verb)()

    def put(self) -> None:
        given = (self.namespace(), self.dice.choice(KEYS), self.value())
        self.ours.put(*given)
        self.theirs.put(*given)

    def delete(self) -> None:
        given = (self.namespace(), self.dice.choice(KEYS))
        self.ours.delete(*given)
        self.theirs.delete(*given)

    def batch(self) -> None:
        ops = [
            PutOp(self.namespace(), self.dice.choice(KEYS), self.dice.choice([None, self.value()]))
            for _ in range(self.dice.randint(0, 6))
        ]
        assert self.ours.batch(ops) == self.theirs.batch(ops)

    def get(self) -> None:
        given = (self.namespace(), self.dice.choice(KEYS))
        ours, theirs = self.ours.get(*given), self.theirs.get(*given)
        assert (ours and ours.value) == (theirs and theirs.value)
        assert (ours is None) == (theirs is None)

    def search(self) -> None:
        prefix, wanted = self.namespace()[: self.dice.randint(0, 2)], self.wanted()
        query = f"asked {self.dice.random()}" if self.index and self.dice.random() < 0.7 else None
        ours = self.ours.search(prefix, filter=wanted, query=query, limit=1000)
        theirs = self.theirs.search(prefix, filter=wanted, query=query, limit=1000)
        if query:
            assert [shown(one) for one in ours] == [shown(one) for one in theirs]
        spaces = dict.fromkeys(one.namespace for one in theirs)
        for space in spaces:  # within one, in the order in which they came
            assert [shown(one) for one in ours if one.namespace == space] == [
                shown(one) for one in theirs if one.namespace == space
            ]
        assert len(ours) == len(theirs)
        offset, limit = self.dice.randint(0, 4), self.dice.randint(1, 5)
        page = self.ours.search(prefix, filter=wanted, query=query, limit=limit, offset=offset)
        assert page == ours[offset : offset + limit]

    def list(self) -> None:
        def path() -> tuple[str, ...]:
            return self.namespace()[: self.dice.randint(1, 2)]

        given: dict[str, Any] = {
            "prefix": self.dice.choice([None, path()]),
            "suffix": self.dice.choice([None, path()]),
            "max_depth": self.dice.choice([None, 1, 2]),
            "limit": self.dice.choice([100, 3]),
            "offset": self.dice.choice([0, 1]),
        }
        for space in [space for space, items in self.theirs._data.items() if not items]:
            del self.theirs._data[space]  # it also lists what was only asked for, or is empty now
        assert self.ours.list_namespaces(**given) == self.theirs.list_namespaces(**given)


def shown(item: SearchItem) -> Any:
    score = None if item.score is None else round(item.score, 4)
    return item.namespace, item.key, item.value, score


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_answer_like_the_in_memory_store(tmp_path: Path, seed: int) -> None:
    with ortet.open(tmp_path / "store") as hub:
        both = Both(hub, seed, index=None)
        for number in range(300):
            both.step()
            if number % 100 == 60:  # as another process sees it
                both.ours = OrtetStore(hub)
        hub.verify()


@pytest.mark.parametrize("seed", range(2))
def test_random_semantic_searches_answer_like_the_in_memory_store(
    tmp_path: Path, seed: int
) -> None:
    with ortet.open(tmp_path / "store") as hub:
        both = Both(hub, seed, index={"dims": 6, "embed": embed, "fields": ["text"]})
        for number in range(150):
            both.step()
            if number % 70 == 60:
                both.ours = OrtetStore(hub, index=both.index)


def test_random_namespace_listings_answer_like_the_in_memory_store(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub:
        both = Both(hub, 7, index=None)
        for _ in range(60):
            both.put()
        for _ in range(100):
            both.list()
