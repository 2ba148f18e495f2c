from __future__ import annotations

import asyncio
import base64
import pickle
import signal
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from agent_framework import Content, Message, WorkflowCheckpoint
from agent_framework._workflows._checkpoint_encoding import encode_checkpoint_value
from agent_framework.exceptions import WorkflowCheckpointException
from pydantic import BaseModel
from tests.fixtures.waiting import WAIT
from tests.fixtures.workers import StartScript as Start
from tests.integrations.agent_framework.flow import Order, workflow
from tests.integrations.agent_framework.worker import ALLOWED

import ortet
from ortet.errors import Invalid, Refused
from ortet.hub.hub import Hub
from ortet.integrations.agent_framework import OrtetCheckpointStorage
from ortet.integrations.agent_framework.values import CheckpointValueCodec


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


class Model(BaseModel):
    name: str
    when: datetime
    deep: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


@dataclass
class Later:
    a: int
    new: list[int] = field(default_factory=list)
    newer: str = "default"


OURS = [f"{cls.__module__}:{cls.__qualname__}" for cls in (Colour, Point, Model, Frozen, Later)]

VALUES: list[Any] = [
    *(None, True, 5, -(2**70), 2**64, 1.5, "text", b"bytes", bytearray(b"x"), 1 + 2j),
    [1, [2, {"a": None}]],
    {"!": "own mark", "v": 1},
    {1: "one", "1": "text", (1, 2): "pair", None: 0},
    (1, (2, "x")),
    {1, 2},
    frozenset({"a"}),
    deque([1, 2]),
    OrderedDict([("b", 1), ("a", 2)]),
    Counter("hello"),
    defaultdict(list, {"a": [1]}),
    datetime(2026, 1, 2, 3, tzinfo=UTC),
    date(2026, 1, 2),
    time(1, 2, 3),
    timedelta(days=-1, seconds=5),
    UUID(int=5),
    Decimal("1.10"),
    Colour.RED,
    Point(1, 2),
    Frozen(1, (2, 3)),
    Model(name="n", when=datetime(2026, 1, 2, tzinfo=UTC), deep={"a": [1]}),
    [Later(1, [2], "3")],
    Colour,
]


def run(call: Any) -> Any:
    return asyncio.run(call)


def storage(hub: Hub, **options: Any) -> OrtetCheckpointStorage:
    return OrtetCheckpointStorage(hub, "order 17", allowed_checkpoint_types=ALLOWED, **options)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_as_they_were(value: Any) -> None:
    values = CheckpointValueCodec(OURS)
    again = values.decode(values.encode(value))
    assert again == value
    assert type(again) is type(value)
    if isinstance(value, OrderedDict):
        assert list(again) == list(value)


def test_types_of_the_framework_are_stored_and_loaded() -> None:
    values = CheckpointValueCodec()
    message = Message("assistant", ["x", Content.from_function_call(call_id="1", name="f")])
    again = values.decode(values.encode({"cache": [message]}))
    assert again["cache"][0].to_dict() == message.to_dict()
    assert values.decode(values.encode(float("inf"))) == float("inf")


def test_a_field_added_by_a_later_release_gets_its_default() -> None:
    values = CheckpointValueCodec(OURS)
    plain = values.encode(Later(5))
    del plain["v"]["new"], plain["v"]["newer"]
    assert values.decode(plain) == Later(5)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"state": {"lock": threading.Lock()}}, "state.lock: _thread:lock"),
        ({"state": {"call": [lambda: 0]}}, r"state.call\[0\]: builtins:function"),
        ({"a": Order(1)}, "a: tests.integrations.agent_framework.flow:Order"),
        ({"a": Order}, "a: tests.integrations.agent_framework.flow:Order"),
        ({"a": ValueError("x")}, "a: builtins:ValueError"),
        ({"a": defaultdict(lambda: 1)}, "a: defaultdict cannot be stored"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_with_its_path(value: Any, place: str) -> None:
    with pytest.raises(Invalid, match=place):
        CheckpointValueCodec().encode(value)


def test_circular_state_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Invalid, match="deep"):
        CheckpointValueCodec().encode({"state": ring})


def test_a_workflow_that_was_killed_goes_on_elsewhere(hub: Hub, start: Start) -> None:
    worker = start()
    assert worker.stdout is not None
    assert worker.stdout.readline() == "at second\n"
    worker.send_signal(signal.SIGKILL)
    worker.wait(WAIT)
    kept = storage(hub)
    latest = run(kept.get_latest(workflow_name="orders"))
    assert latest.messages["first"][0].data == Order(17, ("first",))
    assert latest.state["last"] == {"at": "first", "when": {1, 2}}
    flow = workflow(kept)
    result = run(flow.run(checkpoint_id=latest.checkpoint_id))
    assert result.get_outputs() == [Order(17, ("first", "second", "third"))]
    found = run(kept.list_checkpoints(workflow_name="orders"))
    ids = [one.checkpoint_id for one in found]
    assert [one.previous_checkpoint_id for one in found] == [None, *ids[:-1]]
    assert found[-1].state["_executor_state"]["first"] == {"count": 1}  # which did not run again
    assert hub.verify().problems == []


def test_save_load_list_latest_and_delete_work_across_hubs(hub: Hub, store: Path) -> None:
    kept = storage(hub)
    assert run(kept.get_latest(workflow_name="w")) is None
    assert run(kept.list_checkpoint_ids(workflow_name="w")) == []
    assert run(kept.delete("x")) is False
    for number in range(4):
        name = "v" if number == 1 else "w"
        made = WorkflowCheckpoint(
            name, "hash", checkpoint_id=f"id/{number}", state={"n": number, "set": {number}}
        )
        assert run(kept.save(made)) == f"id/{number}"
        assert run(kept.load(f"id/{number}")) == made
    assert run(kept.list_checkpoint_ids(workflow_name="w")) == ["id/0", "id/2", "id/3"]
    assert [one.state["n"] for one in run(kept.list_checkpoints(workflow_name="v"))] == [1]
    assert run(kept.get_latest(workflow_name="w")).state["n"] == 3
    assert run(kept.delete("id/3")) is True
    assert run(kept.delete("id/3")) is False
    with pytest.raises(WorkflowCheckpointException, match="id/3"):
        run(kept.load("id/3"))
    with ortet.open(store) as other:
        again = storage(other)
        assert run(again.get_latest(workflow_name="w")).state == {"n": 2, "set": {2}}
        run(again.save(WorkflowCheckpoint("w", "hash", checkpoint_id="id/0", state={"n": 9})))
        assert run(again.list_checkpoint_ids(workflow_name="w")) == ["id/2", "id/0"]
    assert run(kept.load("id/0")).state == {"n": 9}
    assert run(OrtetCheckpointStorage(hub, "other").list_checkpoint_ids(workflow_name="w")) == []


def test_a_list_that_grows_is_stored_once(hub: Hub, store: Path) -> None:
    kept = storage(hub)
    said: list[Message] = []
    for turn in range(60):
        said += [Message("user", [f"{turn} " + "q" * 400]), Message("assistant", ["a" * 400])]
        made = WorkflowCheckpoint("w", "h", checkpoint_id=str(turn), state={"said": list(said)})
        run(kept.save(made))
    again = run(kept.load("59")).state["said"]
    assert [one.text for one in again] == [one.text for one in said]
    assert [len(run(kept.load(str(turn))).state["said"]) for turn in (0, 30)] == [2, 62]
    kept._pool.close()
    hub.sweep()
    with ortet.open(store) as other:
        assert len(run(storage(other).load("40")).state["said"]) == 82
        assert other.verify().problems == []
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    assert size < 3_000_000  # each of them whole would be 60 * 60 messages: 3.5 MB, pickled more


def test_a_state_of_several_megabytes_is_stored(hub: Hub) -> None:
    kept = storage(hub)
    state = {
        "text": "x" * 3_000_000,
        "blob": b"y" * 2_000_000,
        "many": {str(n): n for n in range(99999)},
    }
    run(kept.save(WorkflowCheckpoint("w", "h", checkpoint_id="1", state=state)))
    assert run(kept.load("1")).state == state


class Evil:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


def test_pickles_are_refused_unless_enabled(hub: Hub) -> None:
    kept, asked = storage(hub), storage(hub, pickle=True)
    value = {"odd": range(3)}
    with pytest.raises(Invalid, match=r"state\.odd"):
        run(kept.save(WorkflowCheckpoint("w", "h", checkpoint_id="1", state=value)))
    run(asked.save(WorkflowCheckpoint("w", "h", checkpoint_id="1", state=value)))
    with pytest.raises(Refused, match="pickle=True"):
        run(kept.load("1"))
    assert run(asked.load("1")).state == value
    evil = {"__pickled__": base64.b64encode(pickle.dumps(Evil())).decode(), "__type__": "x:y"}
    with pytest.raises(Refused, match="pickle=True"):
        CheckpointValueCodec().decode({"!": "pickle", "v": evil})
    assert CheckpointValueCodec().decode(evil) == evil  # only data
    with pytest.raises(WorkflowCheckpointException):
        CheckpointValueCodec(allow_pickle=True).decode({"!": "pickle", "v": evil})
    assert "__pickled__" in encode_checkpoint_value(range(3))


@pytest.mark.parametrize(
    "key", ["os:system", "subprocess:Popen", "builtins:eval", "agent_framework._agents:logger"]
)
def test_types_that_are_not_allowed_are_not_made(key: str) -> None:
    for mark in ("object", "told", "named", "enum", "type"):
        with pytest.raises(Refused):
            CheckpointValueCodec().decode({"!": mark, "t": key, "v": {}})


def test_the_latest_checkpoint_is_right_after_a_clock_was_set_back(hub: Hub) -> None:
    kept = OrtetCheckpointStorage(hub)
    times = ["2026-01-02T00:00:00+00:00", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"]
    for number, at in enumerate(times):
        before = str(number - 1) if number else None
        run(
            kept.save(
                WorkflowCheckpoint(
                    "w",
                    "hash",
                    checkpoint_id=str(number),
                    timestamp=at,
                    previous_checkpoint_id=before,
                )
            )
        )
    assert run(kept.get_latest(workflow_name="w")).checkpoint_id == "2"
