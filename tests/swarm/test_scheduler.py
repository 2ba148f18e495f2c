"""A driver takes over what another left: no process goes on that a dead driver had asked for."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace
from tests.swarm import tasks

from ortet.backends.base import Catalog
from ortet.errors import Unavailable
from ortet.hub.hub import Hub
from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE
from ortet.sessions.session import Session
from ortet.sessions.swarm_api import SwarmRequest, SwarmResult, SwarmStopSignal
from ortet.swarm.plan import make_plan
from ortet.swarm.records import AttemptRow, SwarmRecords, find_swarm
from ortet.swarm.scheduler import SwarmScheduler


class LateProcess(SwarmRecords):
    """Records of a swarm to which a process of the dead driver writes at a bad moment.

    It is forked after the new driver has looked for it, and writes after the driver has read.
    """

    def __init__(self, catalog: Catalog, session: str, swarm: str) -> None:
        super().__init__(catalog, session, swarm)
        self.process: subprocess.Popen[bytes] | None = None

    def attempt(self, i: int) -> AttemptRow:
        row = super().attempt(i)
        if i == 1 and self.process is None:
            environ = {**os.environ, RUN_MARK_VARIABLE: row.mark}
            self.process = subprocess.Popen(["sleep", "1000"], env=environ)
            self.write_attempt(replace(row, state="running"))
        return row


@pytest.mark.parametrize(
    ("interrupted", "state", "reason"),
    [("again", "waiting", ""), ("count", "failed", "interrupted")],
)
def test_a_process_that_is_forked_late_is_killed_and_does_not_keep_the_attempt(
    hub: Hub, mind: Session, interrupted: Any, state: str, reason: str
) -> None:
    def leave(_: SwarmResult) -> None:
        halt.detach()

    with SwarmStopSignal() as halt, pytest.raises(Unavailable):
        mind.swarm(tasks.block, 2, name="cut", halt=halt, progress=leave)
    row = find_swarm(hub.catalog, mind.id, "cut")
    assert row is not None
    records = LateProcess(hub.catalog, mind.id, row.id)
    left = SwarmRecords.attempt(records, 1)
    records.write_attempt(replace(left, state="waiting", mark="late", tries=1))
    plan = make_plan(SwarmRequest(tasks.block, 2, name="cut", interrupted=interrupted))
    SwarmScheduler(mind, plan, row, records).recover_attempts()
    process = records.process
    assert process is not None
    try:
        assert process.wait(timeout=60) == -9
    finally:
        process.kill()
    after = SwarmRecords.attempt(records, 1)
    assert (after.state, after.reason) == (state, reason)
