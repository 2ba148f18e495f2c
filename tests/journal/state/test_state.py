"""A mind is what its events add up to, whether folded at once, in parts, or from a stored fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.dict_objects import DictObjects

from ortet.history.tree.tree import Maps
from ortet.journal.events import Event
from ortet.journal.kinds.registry import fold
from ortet.journal.state.state import SessionState

if TYPE_CHECKING:
    from tests.fixtures.journals import Bench

NAMES = st.sampled_from("abcdef")
TEXTS = st.text(max_size=20)


def event(seq: int, kind: str, **data: object) -> Event:
    return Event(seq, kind, seq, "me", dict(data), b"")


STEPS = st.one_of(
    st.tuples(st.just("note"), st.fixed_dictionaries({"key": NAMES, "value": st.none() | TEXTS})),
    st.tuples(st.just("fact"), st.fixed_dictionaries({"id": NAMES, "text": TEXTS})),
    st.tuples(st.just("fact"), st.fixed_dictionaries({"id": NAMES, "gone": st.just(True)})),
    st.tuples(st.just("lesson"), st.fixed_dictionaries({"id": NAMES, "text": TEXTS})),
    st.tuples(st.just("decision"), st.fixed_dictionaries({"id": NAMES, "text": TEXTS})),
    st.tuples(st.just("question"), st.fixed_dictionaries({"id": NAMES, "text": TEXTS})),
    st.tuples(st.just("answer"), st.fixed_dictionaries({"id": NAMES, "answer": TEXTS})),
    st.tuples(st.just("plan"), st.fixed_dictionaries({"steps": st.lists(TEXTS)})),
    st.tuples(st.just("step"), st.fixed_dictionaries({"step": st.integers(0, 9)})),
    st.tuples(
        st.just("spend"),
        st.fixed_dictionaries({"amounts": st.dictionaries(NAMES, st.integers(0, 9))}),
    ),
    st.tuples(st.just("of a later release"), st.just({"anything": 1})),
)


def as_data(mind: SessionState) -> object:
    tables = (mind.notes, mind.facts, mind.decisions, mind.questions, mind.effects, mind.artifacts)
    return mind.core, [list(table) for table in tables]


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=30), cut=st.integers(0, 30))
def test_folding_continues_from_a_stored_session_state(
    steps: list[tuple[str, dict[str, object]]], cut: int
) -> None:
    objects = DictObjects()
    maps = Maps(objects)
    events = [event(seq, kind, **data) for seq, (kind, data) in enumerate(steps, 1)]
    whole = fold(SessionState(maps), events)
    part = fold(SessionState(maps), events[:cut])
    stored = part.save(objects)
    again = fold(SessionState.load(maps, objects, stored), events[cut:])
    assert as_data(again) == as_data(whole)
    assert again.save(objects) == whole.save(objects)


def test_one_changed_fact_writes_few_bytes(bench: Bench) -> None:
    facts = [event(seq, "fact", id=f"{seq:05d}", text="known " * 5) for seq in range(1, 5001)]
    mind = fold(SessionState(bench.maps), facts)
    mind.save(bench.objects)
    bench.objects.flush()
    before = bench.objects.stats().tail_bytes
    fold(mind, [event(5001, "fact", id="00042", text="known better")]).save(bench.objects)
    bench.objects.flush()
    assert bench.objects.stats().tail_bytes - before < 10_000
