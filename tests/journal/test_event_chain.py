"""Events: chained, checked, plain data only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.base import EventRow
from ortet.errors import Corrupt, Invalid
from ortet.history.records import EventHeader
from ortet.journal.event_chain import EventChain
from ortet.journal.events import MAX_BODY_BYTES, Draft, EventBody, Tip
from ortet.objects.base import Kind

CHAIN = EventChain(Hasher(), lambda count: b"s" * count)


def chained(count: int) -> list[EventRow]:
    rows, tip = [], Tip()
    for number in range(count):
        row, event = CHAIN.make(tip, Draft("note", {"key": "n", "value": number}, "me"), number)
        tip = Tip(event.seq, event.hash, event.time)
        rows.append(row)
    return rows


def test_a_made_event_reads_back_with_all_fields() -> None:
    oid = Hasher().oid(b"artifact")
    draft = Draft("artifact", {"name": "a"}, "me", refs=[(oid, Kind.BLOB)], version=3)
    row, made = CHAIN.make(Tip(4, b"h" * 32, 50), draft, 100)
    assert CHAIN.read(row) == made
    assert (made.seq, made.kind, made.time, made.actor) == (5, "artifact", 100, "me")
    assert (made.refs, made.version) == ([(oid, int(Kind.BLOB))], 3)


def test_time_does_not_go_backwards() -> None:
    _, event = CHAIN.make(Tip(1, b"h", 1000), Draft("thought", {}), 900)
    assert event.time == 1000


def test_an_intact_event_chain_passes_the_check() -> None:
    rows = chained(5)
    assert CHAIN.check(Tip(), rows) == CHAIN.tip(rows[-1])


@pytest.mark.parametrize("broken", ["order", "gap", "body", "head", "salt", "first"])
def test_a_broken_chain_is_noticed(broken: str) -> None:
    rows = chained(5)
    if broken == "order":
        rows[1], rows[2] = rows[2], rows[1]
    elif broken == "gap":
        del rows[2]
    elif broken == "first":
        del rows[0]
    elif broken == "body":
        rows[2] = msgspec.structs.replace(
            rows[2], body=encode(EventBody({"key": "n", "value": 99}))
        )
    elif broken == "salt":
        rows[2] = msgspec.structs.replace(rows[2], salt=b"t" * 16)
    else:
        header = msgspec.structs.replace(decode(EventHeader, rows[2].head), actor="someone else")
        rows[2] = msgspec.structs.replace(rows[2], head=encode(header))
    with pytest.raises(Corrupt):
        CHAIN.check(Tip(), rows)


def test_an_erased_body_leaves_the_chain_whole() -> None:
    rows = chained(5)
    rows[2] = EventRow(3, rows[2].head, b"", b"")
    assert CHAIN.check(Tip(), rows).seq == 5
    event = CHAIN.read(rows[2])
    assert event.erased
    assert event.data == {}


@pytest.mark.parametrize(
    "value",
    [object(), b"bytes", {1, 2}, float("nan"), float("inf"), {1: "a"}, {"a": [b""]}, 1 << 70],
)
def test_event_data_that_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        CHAIN.make(Tip(), Draft("note", {"value": value}), 0)
    assert caught.value.kind == "not_json"


def test_nesting_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Invalid) as caught:
        CHAIN.make(Tip(), Draft("note", {"value": value}), 0)
    assert caught.value.kind == "not_json"


def test_a_lone_surrogate_in_event_data_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        CHAIN.make(Tip(), Draft("note", {"value": "\ud800"}), 0)
    assert caught.value.kind == "not_json"


def test_a_body_has_a_limit() -> None:
    with pytest.raises(Invalid) as caught:
        CHAIN.make(Tip(), Draft("message", {"content": "x" * MAX_BODY_BYTES}), 0)
    assert caught.value.kind == "payload_too_large"
