"""Payloads of an older schema are read as the present one; a newer one is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ortet._util.codec import Hasher
from ortet.errors import Invalid
from ortet.journal import upcasts
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.state.state import SessionState
from ortet.journal.upcasts import UpcastRegistry

if TYPE_CHECKING:
    from tests.fixtures.journals import Bench


@pytest.fixture
def registered() -> Iterator[None]:
    upcasts.register("ticket", 1, lambda data: {"title": data["name"]})
    upcasts.register("ticket", 2, lambda data: {**data, "open": True})
    yield
    upcasts.unregister("ticket", 1)
    upcasts.unregister("ticket", 2)


def read_back(kind: str, data: dict[str, Any], version: int) -> tuple[Event, Event]:
    chain = EventChain(Hasher(), os.urandom)
    row, made = chain.make(Tip(), Draft(kind, data, version=version), 1)
    return made, chain.read(row)


@pytest.mark.usefixtures("registered")
def test_an_old_payload_version_is_upcast_to_the_newest() -> None:
    wanted = (3, {"title": "a", "open": True})
    for version, data in ((1, {"name": "a"}), (2, {"title": "a"}), (3, wanted[1])):
        for event in read_back("ticket", data, version):
            assert (event.version, event.data) == wanted
        assert data == {1: {"name": "a"}, 2: {"title": "a"}, 3: wanted[1]}[version]


@pytest.mark.usefixtures("registered")
def test_a_newer_version_is_shown_as_it_is() -> None:
    for event in read_back("ticket", {"heading": "a"}, 9):
        assert (event.version, event.data) == (9, {"heading": "a"})


def test_a_later_schema_of_a_known_kind_changes_nothing(bench: Bench) -> None:
    newer, same = read_back("plan", {"graph": {"a": "b"}}, 2)
    mind = fold(SessionState(bench.maps), [newer, same])
    assert mind.core.plan == []
    assert newer.data == {"graph": {"a": "b"}}


def test_an_invalid_upcast_registration_is_refused() -> None:
    steps = UpcastRegistry()
    for wrong in (
        lambda: steps.register("", 1, dict),
        lambda: steps.register("k", 0, dict),
        lambda: steps.register("k", True, dict),
        lambda: steps.register("k", 1, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(Invalid):
            wrong()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("function", [lambda data: data["gone"], lambda _: [1]])
def test_a_function_that_fails_is_named(function: Any) -> None:
    steps = UpcastRegistry()
    steps.register("k", 1, function)
    with pytest.raises(Invalid) as caught:
        steps.apply("k", 1, {})
    assert caught.value.kind == "bad_upcast"
