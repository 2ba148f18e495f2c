"""A real catalog, a real store, and a line of events on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ortet.backend.abc import Timeline
from ortet.backend.files import FileBucket
from ortet.backend.sqlite import SqliteCatalog
from ortet.codec import Hasher
from ortet.graph.maps import Maps
from ortet.graph.records import Journal
from ortet.journal.events import Chain, Draft, Event
from ortet.journal.line import NOTHING, Line
from ortet.store.objects import LocalObjects
from ortet.testing.clock import ManualClock

FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"


class Bench:
    """What a session would do, without one."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.catalog = SqliteCatalog(root / "catalog.db", self.clock)
        bucket = FileBucket(root / "bucket")
        hasher = Hasher()
        self.objects = LocalObjects(root, bucket, hasher=hasher, clock=self.clock)
        numbers = iter(range(1, 1 << 30))
        self.chain = Chain(hasher, lambda count: next(numbers).to_bytes(count, "big"))
        self.maps = Maps(self.objects)

    def start(self, timeline: str = FIRST, parent: str = "", at: int = 0) -> None:
        self.catalog.move([], verb="open", timelines=[Timeline(timeline, parent, at)])

    def line(self, timeline: str = FIRST, base: Journal = NOTHING) -> Line:
        return Line(self.catalog, self.objects, self.chain, timeline=timeline, base=base)

    def append(self, line: Line, *drafts: Draft) -> list[Event]:
        events = []
        for draft in drafts:
            row, event = self.chain.make(line.tip(), draft, self.clock.now_ns())
            self.catalog.append(line.timeline, [row])
            events.append(event)
        return events

    def commit(self, line: Line) -> Journal:
        tip = line.tip()
        line.base = Journal(line.seal(tip), tip.seq, tip.hash, b"")
        self.objects.flush()
        return line.base

    def close(self) -> None:
        self.objects.close()
        self.catalog.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.start()
    yield bench
    bench.close()


@pytest.fixture
def say() -> Callable[[str], Draft]:
    return lambda text: Draft("message", {"role": "user", "content": text}, "tester")
