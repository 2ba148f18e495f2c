"""A thread whose records somebody else wrote: no code is run, and nothing goes on for ever."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import ortet
from ortet.errors import Refused
from ortet.surface.langgraph import OrtetSaver

OF: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def test_records_that_nobody_put(tmp_path: Path) -> None:
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
