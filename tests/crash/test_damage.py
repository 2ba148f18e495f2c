"""Random damage to every kind of file of a store is noticed, or it changes nothing.

Each round copies a prepared store, damages one file, and then does what a user does: open, verify,
read all sessions, restore files, unarchive, search, repeat a payment, import a bundle. The answers
must be those of the undamaged store, or one of our errors must say that something is wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.crash import damage
from tests.fixtures import forked, tally
from tests.fixtures.prepared import Prepared

from ortet.errors import OrtetError

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
PARTS = 10
ROUNDS = 10 * SOAK
"""Rounds of each part. All parts of both states together are 200, or 2 000 in `scripts/soak`."""

STATES = ("killed", "closed")


class Ready(NamedTuple):
    """A prepared store, and what a user sees of it when nothing is damaged."""

    store: Prepared
    truth: dict[str, Any]


@pytest.fixture(scope="session")
def ready() -> Iterator[Callable[[str], Ready]]:
    """Return the prepared store of a state, in memory if the host allows: nothing is synced."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))

    @cache
    def of(state: str) -> Ready:
        def build(base: Path) -> None:
            forked.run([sys.executable, "-m", damage.__name__, str(base), state], check=True)

        store = Prepared(place / state, build)
        truth = damage.observe(store.put_back())
        assert damage.observe(store.put_back()) == truth
        return Ready(store, truth)

    yield of
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("part", range(PARTS))
def test_damage_is_detected_or_harmless(
    ready: Callable[[str], Ready], state: str, part: int
) -> None:
    store, truth = ready(state)
    for number in range(ROUNDS):
        rng = random.Random(f"{state} {part} {number}")
        base = store.put_back()
        kinds = [kind for kind in damage.KINDS if list(damage.files_of(base, kind))]
        kind = kinds[(part * ROUNDS + number) % len(kinds)]
        file = rng.choice(list(damage.files_of(base, kind)))
        how = rng.choice(damage.DAMAGES)
        what = how(file, base, rng)
        tally.count(tally.DAMAGES)
        try:
            seen = damage.observe(base)
        except OrtetError:
            tally.count(tally.DETECTED)
            continue
        where = f"{kind}: {how.__name__} {file.relative_to(base)}, {what}"
        assert {name: seen.get(name) for name in truth} == truth, where


@pytest.mark.parametrize("state", STATES)
def test_the_prepared_store_has_every_kind_of_file(
    ready: Callable[[str], Ready], state: str
) -> None:
    base = ready(state).store.put_back()
    missing = {kind for kind in damage.KINDS if not list(damage.files_of(base, kind))}
    assert missing == (set() if state == "killed" else {"catalog log", "catalog log index"})
