"""One system of the adapters part, ours or a peer's, alone in a process: for each line of JSON it
reads, one deed, and the answer with the milliseconds it took."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw

from adapters_stores import stores
from session_peer import THREAD, Request, Wire, pragmas

RECENT = 30
NOTHING = "keeps nothing"
OURS = "WAL, synchronous=FULL"


def milliseconds(deed: Callable[[], object]) -> float:
    begin = time.perf_counter()
    deed()
    return (time.perf_counter() - begin) * 1000


def settle(place: Path) -> None:
    """Move logs into their databases, so that sizes are those of what is kept. By the SQLite that
    has them open: when another one of this process closes a file, its locks are gone."""
    for file in place.rglob("*.db"):
        ours = file.parent.name != place.name
        connection = apsw.Connection(str(file)) if ours else sqlite3.connect(file)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()


class Graph:
    """A graph of one node that answers, with a saver."""

    def __init__(self, kind: str, place: Path, stack: ExitStack) -> None:
        self.kind, self.place, self.stack = kind, place, stack
        self.loop = asyncio.new_event_loop()
        stack.callback(self.loop.close)
        self.is_async = kind.endswith("async")
        self.saver = self.opened(stack)
        graph, message = import_module("langgraph.graph"), import_module("langgraph.graph.message")
        typed: Any = TypedDict
        state = typed("State", {"messages": Annotated[list, message.add_messages]})
        self.reply = ""
        builder = graph.StateGraph(state)
        builder.add_node("reply", self._aanswer if self.is_async else self._answer)
        builder.add_edge(graph.START, "reply")
        builder.add_edge("reply", graph.END)
        self.app = builder.compile(checkpointer=self.saver)
        self.marks: dict[int, Any] = {}
        self.config: Any = THREAD

    def opened(self, stack: ExitStack) -> Any:
        file = str(self.place / "peer.db")
        if self.kind.startswith("memory"):
            return import_module("langgraph.checkpoint.memory").InMemorySaver()
        if self.kind.startswith("ortet"):
            hub = stack.enter_context(import_module("ortet").open(self.place / "store"))
            saver = import_module("ortet.integrations.langgraph").OrtetSaver(hub)
            if hasattr(saver, "close"):
                stack.callback(saver.close)
            return saver
        if self.is_async:
            saver_of = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
            opening = saver_of.from_conn_string(file)
            saver = self.loop.run_until_complete(opening.__aenter__())
            stack.callback(
                lambda: self.loop.run_until_complete(opening.__aexit__(None, None, None))
            )
            return saver
        saver_of = import_module("langgraph.checkpoint.sqlite").SqliteSaver
        return stack.enter_context(saver_of.from_conn_string(file))

    def _answer(self, _: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": self.reply}]}

    async def _aanswer(self, state: Any) -> Any:
        return self._answer(state)

    def call(self, name: str, on: Any, *given: Any, **options: Any) -> Any:
        """The method, or the async one of the same name."""
        if self.is_async:
            return self.loop.run_until_complete(getattr(on, f"a{name}")(*given, **options))
        return getattr(on, name)(*given, **options)

    def do(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, request.pop("do"))(**request)
        return found

    def turn(self, user: str, assistant: str) -> dict[str, Any]:
        self.reply = assistant
        said = {"messages": [{"role": "user", "content": user}]}
        spent = milliseconds(lambda: self.call("invoke", self.app, said, self.config))
        self.config = THREAD
        if self.kind.startswith("memory"):
            self._thin()
        return {"ms": spent}

    def _thin(self) -> None:
        """Old copies of all messages, which nobody asks for, would take gigabytes."""
        kept = {mark.checkpoint["channel_versions"]["messages"] for mark in self.marks.values()}
        old = [key for key in self.saver.blobs if key[2] == "messages"][:-RECENT]
        for key in old:
            if key[3] not in kept:
                del self.saver.blobs[key]

    def mark(self, at: int) -> dict[str, Any]:
        """Remember a checkpoint to fork from."""
        self.marks[at] = self.call("get_tuple", self.saver, THREAD)
        return {}

    def get(self, count: int) -> dict[str, Any]:
        found: list[float] = []
        for _ in range(count):
            found.append(milliseconds(lambda: self.call("get_tuple", self.saver, THREAD)))
        return {"ms": found, "messages": len(self._latest())}

    def _latest(self) -> list[Any]:
        found = self.call("get_tuple", self.saver, THREAD)
        messages: list[Any] = found.checkpoint["channel_values"]["messages"]
        return messages

    def open(self, count: int) -> dict[str, Any]:
        """By another saver on the same data."""
        found = []
        for _ in range(count):
            with ExitStack() as stack:
                saver = self.opened(stack)
                found.append(milliseconds(lambda s=saver: self.call("get_tuple", s, THREAD)))  # type: ignore[misc]
        return {"ms": found}

    def fork(self, at: int, count: int, text: str) -> dict[str, Any]:
        """From a checkpoint that was marked; the next turn goes on where the last one ended."""
        main = self.call("get_tuple", self.saver, THREAD).config
        values = {"messages": [{"role": "user", "content": text}]}
        config = self.marks[at].config
        found = [
            milliseconds(lambda: self.call("update_state", self.app, config, values))
            for _ in range(count)
        ]
        self.config = main
        return {"ms": found}

    def rest(self) -> dict[str, Any]:
        settle(self.place)
        if self.kind.startswith("memory"):
            return {"pragmas": NOTHING}
        if self.kind.startswith("ortet"):
            return {"pragmas": OURS}
        if not self.is_async:
            return {"pragmas": pragmas(self.saver.conn)}
        told = []
        for name in ("journal_mode", "synchronous"):
            cursor = self.loop.run_until_complete(self.saver.conn.execute(f"PRAGMA {name}"))
            told.append(self.loop.run_until_complete(cursor.fetchone())[0])
        levels = ("OFF", "NORMAL", "FULL", "EXTRA")
        return {"pragmas": f"{str(told[0]).upper()}, synchronous={levels[told[1]]}"}


class Talk:
    """A session of the OpenAI Agents SDK."""

    def __init__(self, kind: str, place: Path, stack: ExitStack) -> None:
        self.kind, self.place = kind, place
        self.loop = asyncio.new_event_loop()
        stack.callback(self.loop.close)
        self.session: Any
        if kind.startswith("ortet"):
            hub = stack.enter_context(import_module("ortet").open(place / "store"))
            self.session = import_module("ortet.integrations.openai_agents").OrtetSession(
                "bench", hub
            )
        else:
            self.session = import_module("agents").SQLiteSession("bench", place / "peer.db")
        if hasattr(self.session, "close"):
            stack.callback(self.session.close)

    def do(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, request.pop("do"))(**request)
        return found

    def turn(self, user: str, assistant: str) -> dict[str, Any]:
        """Both messages of a turn in one `add_items`, as its runner does."""
        items = [
            {"role": "user", "content": user},
            {"role": "assistant", "content": assistant},
        ]
        add = self.session.add_items
        return {"ms": milliseconds(lambda: self.loop.run_until_complete(add(items)))}

    def get(self, count: int, limit: int | None = None) -> dict[str, Any]:
        get, run = self.session.get_items, self.loop.run_until_complete
        found = [milliseconds(lambda: run(get(limit))) for _ in range(count)]
        return {"ms": found, "messages": len(run(get()))}

    def rest(self) -> dict[str, Any]:
        said = OURS
        if not self.kind.startswith("ortet"):
            with self.session._locked_connection() as connection:
                said = pragmas(connection)
        settle(self.place)
        return {"pragmas": said}


def main() -> None:
    kind, place = sys.argv[1], Path(sys.argv[2])
    wire = Wire()
    if kind == "versions":
        wire.answer(**{package: version(package) for package in sys.argv[3:]})
        return
    with ExitStack() as stack:
        system: Any
        if "session" in kind:
            system = Talk(kind, place, stack)
        elif "store" in kind:
            system = stores(kind, place, stack, settle)
        else:
            system = Graph(kind, place, stack)
        for request in wire.requests():
            wire.answer(**system.do(request))


if __name__ == "__main__":
    main()
