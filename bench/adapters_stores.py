"""The stores of the adapters part, as its child drives them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from session_peer import Request, pragmas

SPACES = 10
DIMS = 384
_BATCH = 500


def embed(texts: list[str]) -> list[list[float]]:
    """Numbers made of the text: what a model would say does not change what a search costs."""
    found = []
    for text in texts:
        dice = random.Random(text)
        found.append([dice.random() - 0.5 for _ in range(DIMS)])
    return found


class Stores:
    """One store without vectors, and one with."""

    def __init__(
        self, kind: str, place: Path, stack: ExitStack, settle: Callable[[Path], None]
    ) -> None:
        self.kind, self.place, self.settle, self.stack = kind, place, settle, stack
        self.hub: Any = None
        self.plain = self.opened(None)
        try:
            self.meant = self.opened({"dims": DIMS, "embed": embed, "fields": ["text"]})
        except AttributeError:  # SqliteStore, with a Python whose SQLite loads no extensions
            self.meant = None

    def opened(self, index: Any) -> Any:
        name = "meant" if index else "plain"
        if self.kind.startswith("memory"):
            return import_module("langgraph.store.memory").InMemoryStore(index=index)
        if self.kind.startswith("ortet"):
            if self.hub is None:
                opened = import_module("ortet").open(self.place / "store")
                self.hub = self.stack.enter_context(opened)
            return import_module("ortet.integrations.langgraph").OrtetStore(
                self.hub, name=name, index=index
            )
        store_of = import_module("langgraph.store.sqlite").SqliteStore
        file = str(self.place / f"{name}.db")
        store = self.stack.enter_context(store_of.from_conn_string(file, index=index))
        store.setup()
        return store

    def do(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, request.pop("do"))(**request)
        return found

    def fill(self, texts: list[str], first: int) -> dict[str, Any]:
        """Not timed: many at once."""
        put = import_module("langgraph.store.base").PutOp
        for store in filter(None, (self.plain, self.meant)):
            for start in range(0, len(texts), _BATCH):
                ops = [
                    put(*_item(first + start + number, text))
                    for number, text in enumerate(texts[start : start + _BATCH])
                ]
                store.batch(ops)
        return {}

    def put(self, number: int, text: str) -> dict[str, Any]:
        return {"ms": _ms(lambda: self.plain.put(*_item(number, text)))}

    def get(self, number: int) -> dict[str, Any]:
        space, key, _ = _item(number, "")
        return {"ms": _ms(lambda: self.plain.get(space, key))}

    def search(self, number: int) -> dict[str, Any]:
        space = _item(number, "")[0]
        return {"ms": _ms(lambda: self.plain.search(space))}

    def filter(self, number: int) -> dict[str, Any]:
        wanted = {"number": {"$gte": number, "$lt": number + 10}}
        return {"ms": _ms(lambda: self.plain.search(("bench",), filter=wanted))}

    def words(self, text: str) -> dict[str, Any]:
        return {"ms": _ms(lambda: self.plain.search(("bench",), query=text))}

    def vector(self, text: str) -> dict[str, Any]:
        if self.meant is None:
            return {"ms": None}
        return {"ms": _ms(lambda: self.meant.search(("bench",), query=text))}

    def open(self) -> dict[str, Any]:
        """The first search of a store that knows nothing yet."""
        store = self.opened(None) if not self.kind.startswith("memory") else self.plain
        return {"ms": _ms(lambda: store.search(("bench",)))}

    def rest(self) -> dict[str, Any]:
        said = "keeps nothing"
        if self.kind.startswith("ortet"):
            said = "WAL, synchronous=FULL"
        elif self.kind.startswith("sqlite"):
            said = pragmas(self.plain.conn)
        self.settle(self.place)
        return {"pragmas": said}


def stores(kind: str, place: Path, stack: ExitStack, settle: Callable[[Path], None]) -> Stores:
    return Stores(kind, place, stack, settle)


def _item(number: int, text: str) -> tuple[tuple[str, str], str, dict[str, Any]]:
    return ("bench", str(number % SPACES)), f"key-{number}", {"text": text, "number": number}


def _ms(deed: Callable[[], object]) -> float:
    begin = time.perf_counter()
    deed()
    return (time.perf_counter() - begin) * 1000
