"""Writes of a task that the disk had no room for are not told to be stored, also when repeated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.fixtures import forked

import ortet
from ortet.integrations.langgraph import OrtetSaver

_PROGRAM = """
import os, resource, signal, sys
import ortet
from langgraph.checkpoint.base import empty_checkpoint
from ortet.integrations.langgraph import OrtetSaver

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hub = ortet.open(sys.argv[1])
saver = OrtetSaver(hub)
of = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
config = saver.put(of, empty_checkpoint(), {"step": 0}, {})
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))  # no file may become longer
try:
    saver.put_writes(config, [("c", "said " * 1000)], "task")
    sys.exit("it was told to be stored")
except ortet.Unavailable:
    pass
assert not saver.get_tuple(of).pending_writes
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
saver.put_writes(config, [("c", "said " * 1000)], "task")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writes_that_did_not_fit_are_stored_when_repeated(tmp_path: Path) -> None:
    store, of = tmp_path / "store", {"configurable": {"thread_id": "t"}}
    done = forked.run(
        [sys.executable, "-c", _PROGRAM, str(store)], check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (-9, b"")
    with ortet.open(store) as hub:
        config: Any = of
        found = OrtetSaver(hub).get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "c", "said " * 1000)]
        assert hub.verify().problems == []
