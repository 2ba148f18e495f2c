"""A thread whose records somebody else wrote: no code is run, and nothing goes on for ever."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import ortet
from ortet.errors import Corrupt, Refused
from ortet.integrations.langgraph import OrtetSaver

OF: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def test_forged_records_run_no_code_and_are_bounded(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub:
        with OrtetSaver(hub) as saver:
            saver.put(OF, empty_checkpoint(), {"step": 0}, {})
        (put,) = hub.get("t").records("langgraph.put")

        def found(id_: str, tree: Any) -> Any:
            with hub.session("t") as session:
                session.record(put.kind, {**put.data, "id": id_, "values": {"k": tree}})
            with OrtetSaver(hub) as saver:
                read = saver.get_tuple(OF)
                assert read is not None
                return read.checkpoint["channel_values"]["k"]

        assert found("1", {"$l": [[0, 1 << 60]]}) == []
        evil = base64.b64encode(pickle.dumps(print)).decode()
        with pytest.raises(Refused, match="pickle"):
            found("2", {"$b": ["pickle", evil]})


@pytest.mark.parametrize(
    "tree",
    [["msgpack", "wf8="], ["msgpack", ""], ["msgpack", "not base64"], ["json", "ew=="], []],
    ids=["reserved", "empty", "text", "json", "nothing"],
)
def test_damaged_bytes_are_reported_with_thread_and_key(tmp_path: Path, tree: Any) -> None:
    damaged = {"$b": tree}
    with ortet.open(tmp_path / "store") as hub:
        with OrtetSaver(hub) as saver:
            first = saver.put(OF, empty_checkpoint(), {"step": 0}, {})
            saver.put_writes(first, [("w", 1)], "task")
        (put,) = hub.get("t").records("langgraph.put")
        (wrote,) = hub.get("t").records("langgraph.writes")

        def told(kind: str, data: dict[str, Any]) -> Corrupt:
            with hub.session("t") as session:
                session.record(kind, {**data, "id": "other"})
            with OrtetSaver(hub) as saver, pytest.raises(Corrupt, match="'t'") as found:
                saver.get_tuple(OF)
            return found.value

        for key, field in (("k", "values"), ("v", "rest")):
            error = told(put.kind, {**put.data, field: {key: damaged}})
            assert (error.kind, error.details) == ("bad_value", {"thread": "t", "key": key})
        assert told(put.kind, {**put.data, "meta": damaged}).details["key"] == "metadata"
        with OrtetSaver(hub) as saver, pytest.raises(Corrupt, match="metadata"):
            list(saver.list(OF, filter={"step": 0}))
        with hub.session("t") as session:
            session.record(put.kind, {**put.data, "id": "other"})
        writes = {**wrote.data, "writes": [[0, "w", damaged]]}
        assert told(wrote.kind, writes).details["key"] == "w"
