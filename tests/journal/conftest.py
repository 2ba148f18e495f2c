"""A real catalog, a real store, and a line of events on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures.journals import Bench

from ortet.journal.events import Draft


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.start()
    yield bench
    bench.close()


@pytest.fixture
def say() -> Callable[[str], Draft]:
    return lambda text: Draft("message", {"role": "user", "content": text}, "tester")
