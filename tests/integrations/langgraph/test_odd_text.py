"""Halves of characters, which JSON from elsewhere brings along, in names and in values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver

HALF = "\ud800"


def of(thread: str = "t", **conf: Any) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **conf}}


def checkpoint(**values: Any) -> Any:
    versions = dict.fromkeys(values, 1)
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}


def test_a_lone_surrogate_in_an_id_is_refused_and_the_field_is_named(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        known = saver.put(of(), checkpoint(), {}, {})
        plain = checkpoint()
        odd: Any = {**plain, "id": HALF}
        acts: list[tuple[str, Callable[[], Any]]] = [
            ("thread_id", lambda: saver.put(of(HALF), plain, {}, {})),
            ("checkpoint_ns", lambda: saver.put(of(checkpoint_ns=HALF), plain, {}, {})),
            ("checkpoint_id", lambda: saver.put(of(checkpoint_id=HALF), plain, {}, {})),
            ("id", lambda: saver.put(of(), odd, {}, {})),
            ("channel", lambda: saver.put(of(), checkpoint(**{HALF: 1}), {}, {HALF: 1})),
            ("channel", lambda: saver.put_writes(known, [(HALF, 1)], "task")),
            ("task_id", lambda: saver.put_writes(known, [("k", 1)], HALF)),
            ("task_path", lambda: saver.put_writes(known, [("k", 1)], "task", HALF)),
            ("target_thread_id", lambda: saver.copy_thread("t", HALF)),
        ]
        for key, act in acts:
            with pytest.raises(Invalid, match=f"^{key} ") as found:
                act()
            assert (found.value.kind, found.value.details) == ("bad_name", {"key": key})
        meta: Any = {HALF: 1}
        with pytest.raises(Invalid, match="'metadata' of a checkpoint cannot be stored"):
            saver.put(known, plain, meta, {})
        with pytest.raises(Invalid, match="channel 'k'"):
            saver.put(known, checkpoint(k={HALF: 1}), {}, {"k": 1})
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == ["t"]
    assert [row.name for row in hub.sessions()] == ["t"]


def test_lone_surrogates_in_values_are_stored_as_in_langgraph(hub: Hub) -> None:
    given = {"a": HALF, "b": {"x": [f"in {HALF} between"]}, "c": [HumanMessage(HALF, id="1")]}
    serde = JsonPlusSerializer()
    theirs = serde.loads_typed(serde.dumps_typed(given))
    with OrtetSaver(hub) as saver:
        saver.put_writes(saver.put(of(), checkpoint(**given), {}, {}), [("w", HALF)], "task")
    with OrtetSaver(hub) as saver:
        found = saver.get_tuple(of())
        assert found is not None and found.checkpoint["channel_values"] == theirs
        assert found.pending_writes == [("task", "w", theirs["a"])]
    assert hub.verify().problems == []
