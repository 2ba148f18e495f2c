"""Schedules the attempts of a swarm: starts them as slots become free, and enforces the timeout."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Unavailable
from ortet.hub.hub import drop_fork, hub_of
from ortet.machines.standalone.process_tree import kill_run
from ortet.sessions.swarm_api import SwarmResult, swarm_topic
from ortet.store.lease import live_owner_pid
from ortet.swarm.attempt import AttemptJob
from ortet.swarm.budget import is_affordable, return_reservation
from ortet.swarm.plan import SwarmPlan
from ortet.swarm.records import UNFINISHED, AttemptRow, SwarmRecords, SwarmRow, swarm_result
from ortet.swarm.workers.client import AttemptExit, SwarmWorkerClient

if TYPE_CHECKING:
    from ortet.sessions.session import Session


_MAX_LOST_TRIES = 4
"""The maximum number of lost tries of an attempt. The attempt itself may kill its node."""


class _RunningAttempt(msgspec.Struct):
    """A running attempt. `why` is set once it was told to stop."""

    slot: int
    began: float
    why: str = ""


class SwarmScheduler:
    """Schedules the attempts of one swarm while this process drives it."""

    def __init__(
        self, session: Session, plan: SwarmPlan, row: SwarmRow, records: SwarmRecords
    ) -> None:
        self._session = session
        self._hub = hub_of(session)
        self._plan = plan
        self._row = row
        self._records = records
        self._rows = records.attempts()
        self._running: dict[int, _RunningAttempt] = {}
        self._slots = list(range(plan.parallel))
        self._todo: deque[int] = deque()
        self._lost_tries: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._has_seen_stop = False  # the stop request was received

    @property
    def result(self) -> SwarmResult:
        """The result of the swarm so far."""
        return swarm_result(self._row, self._rows, self._session.name)

    # attempts that a previous driver left unfinished

    def recover_attempts(self) -> None:
        """Clean up attempts whose driver was killed.

        Their processes are killed. Then they are retried, or recorded as failed. Must be called
        while this process holds the driver lease.
        """
        for i, row in enumerate(self._rows):
            if row.state not in UNFINISHED or not row.tries:
                continue
            now = self._rows[i] = self._take_over(row)
            failpoint("swarm.taken-over")
            if now.state == "waiting":
                for fork in now.forks:
                    drop_fork(self._hub, fork.id, fork.branch)

    def _take_over(self, row: AttemptRow) -> AttemptRow:
        """Kill the processes of an interrupted try, and return the row that says what follows.

        The former driver may have asked for a process that is forked only now. If that process
        writes to the row first, it is found and killed in the next round. If this process writes
        first, that one sees another version of the row and ends by itself.
        """
        while True:
            self._kill_attempt(row)
            row = self._records.attempt(row.i)
            if row.state not in UNFINISHED:  # it finished before it was killed
                return row
            if row.state == "running" and self._plan.interrupted == "count":
                lost = "its driver was killed while it ran"
                new = replace(row, state="failed", reason="interrupted", error=lost)
            else:
                new = replace(row, state="waiting")
            with suppress(Conflict):
                return self._records.write_attempt(new)

    def _kill_attempt(self, row: AttemptRow) -> None:
        """Kill the processes of a try, if there are any."""
        leader = -1
        held = self._hub.catalog.lease(f"session:{row.fork.id}") if row.fork else None
        if held is not None:
            leader = live_owner_pid(held.owner, self._hub.store.host) or -1
        kill_run(row.mark, leader)
        self._seize_lease(row)

    def _seize_lease(self, row: AttemptRow) -> None:
        """End the lease of a finished try's fork, so that leftover processes can no longer write.

        On another host, the lease would otherwise last until it expires.
        """
        held = self._hub.catalog.lease(f"session:{row.fork.id}") if row.fork else None
        if held is not None:
            self._hub.catalog.seize(held)

    # attempts of this driver

    def run(self, start_workers: Callable[[], SwarmWorkerClient]) -> None:
        """Run until every attempt has ended or the stop condition holds."""
        todo = self._todo
        todo.extend(row.i for row in self._rows if row.state == "waiting")
        if not todo or self._is_enough():
            self._stop_waiting(todo)
            return
        workers = start_workers()
        try:
            workers.wait_ready()
            while todo or self._running:
                self._start_affordable(workers, todo)
                if not self._running:
                    break
                self._drop_loser()
                self._wait_for_end(workers)
                if self._is_enough():
                    self._stop_waiting(todo)
                    for i in self._running:
                        self._stop(workers, i, "stopped")
        finally:
            workers.close()

    def _start_affordable(self, workers: SwarmWorkerClient, todo: deque[int]) -> None:
        """Start attempts while there are free slots and enough budget."""
        budget = self._row.terms.budget
        while todo and self._slots:
            if budget and not is_affordable(
                self._hub.catalog, self._session.internals.row, self._required_budget()
            ):
                if self._running:
                    return  # running attempts will return what they do not spend
                why = "nothing is left of the family's budget for its share"
                while todo:
                    row = self._rows[todo.popleft()]
                    self._write(replace(row, state="failed", reason="budget", error=why))
                return
            self._start(workers, todo.popleft())

    def _required_budget(self) -> dict[str, float]:
        """Return one more share, plus the shares that started attempts have not reserved yet."""
        waiting = [i for i in self._running if self._records.attempt(i).state == "waiting"]
        return {name: x * (1 + len(waiting)) for name, x in self._row.terms.budget.items()}

    def _start(self, workers: SwarmWorkerClient, i: int) -> None:
        row, hub = self._rows[i], self._hub
        mark, tries = hub.random(8).hex(), row.tries + 1
        row = self._write(replace(row, mark=mark, tries=tries))
        failpoint("swarm.starting")
        name = self._row.name
        job = AttemptJob(
            root=hub.url,
            session=self._session.id,
            swarm=self._row.id,
            name=name,
            point=self._row.point.hex(),
            i=i,
            version=row.version,
            tail=f"{name}-{i}" if tries == 1 else f"{name}-{i}.{tries}",
            mark=mark,
            slot=self._slots.pop(0),
            scored=self._row.terms.keep.most != 0,
            budget=self._row.terms.budget,
        )
        workers.start(job)
        self._running[i] = _RunningAttempt(job.slot, time.monotonic())
        self._rows[i] = replace(row, state="running")  # its process writes this shortly
        self._report_progress()

    def _wait_for_end(self, workers: SwarmWorkerClient) -> None:
        """Wait until an attempt ends or exceeds the timeout."""
        timeout, now = None if workers.has_own_timeout else self._plan.timeout, time.monotonic()
        left = None
        if timeout is not None:
            ends = [
                attempt.began + timeout for attempt in self._running.values() if not attempt.why
            ]
            left = max(0.0, min(ends) - now) if ends else None
        ended = workers.wait(left, None if self._has_seen_stop else self._plan.halt)
        self._raise_if_left()
        if ended is not None:
            self._record_end(ended)
            return
        for i, attempt in self._running.items():
            if timeout is not None and time.monotonic() - attempt.began >= timeout:
                self._stop(workers, i, "timeout")

    def _raise_if_left(self) -> None:
        if self._plan.halt is not None and self._plan.halt.request == "leave":
            raise Unavailable(
                "swarm_left",
                f"swarm {self._row.name!r} was left before its end: run it again by its name",
            )

    def _stop(self, workers: SwarmWorkerClient, i: int, why: str) -> None:
        if not self._running[i].why:
            self._running[i].why = why
            workers.stop(i)

    def _record_end(self, ended: AttemptExit) -> None:
        """Record the end of a process. If the process recorded no result, it crashed."""
        i, running = ended.i, self._running.pop(ended.i)
        self._slots.append(running.slot)
        failpoint("swarm.ended")
        row = self._records.attempt(i)
        if row.state in UNFINISHED:
            seconds = time.monotonic() - running.began
            row = self._write(replace(row, seconds=seconds, **self._end_fields(running.why, ended)))
            self._seize_lease(row)
            if row.fork is not None and self._row.terms.budget:
                return_reservation(self._hub.catalog, self._session.internals.row, row.fork.id)
            if row.state == "waiting":
                for fork in row.forks:
                    drop_fork(self._hub, fork.id, fork.branch)
                self._todo.append(i)
        self._rows[i] = row
        failpoint("swarm.recorded")
        self._report_progress()

    def _report_progress(self) -> None:
        self._hub.store.notify(swarm_topic(self._session.id))
        if self._plan.progress is not None:
            self._plan.progress(self.result)

    def _end_fields(self, why: str, ended: AttemptExit) -> dict[str, Any]:
        if why == "stopped":
            return {"state": "stopped", "reason": why, "error": self._stop_reason()}
        if "timeout" in (why, ended.why):
            error = f"it took longer than {self._plan.timeout:g} s"
            return {"state": "failed", "reason": "timeout", "error": error}
        if ended.why == "lost":
            return self._lost_fields(ended)
        if ended.why:
            return {"state": "failed", "reason": ended.why, "error": ended.error}
        code = ended.code
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"state": "failed", "reason": "crash", "error": f"its process ended with {how}"}

    def _lost_fields(self, ended: AttemptExit) -> dict[str, Any]:
        """Return the fields of a lost try: it is retried unless it counts or was lost too often."""
        self._lost_tries[ended.i] += 1
        times = self._lost_tries[ended.i]
        if self._plan.interrupted == "again" and times < _MAX_LOST_TRIES:
            return {"state": "waiting"}
        often = f", for the {times}. time" if times > 1 else ""
        return {"state": "failed", "reason": "lost", "error": f"{ended.error}{often}"}

    def _stop_reason(self) -> str:
        was_requested = self._plan.halt is not None and self._plan.halt.request
        return "the swarm was stopped" if was_requested else "enough was found"

    def _is_enough(self) -> bool:
        stop, halt = self._plan.stop_when, self._plan.halt
        if halt is not None and halt.request == "stop":
            self._has_seen_stop = True
            return True
        if stop is None:
            return False
        result = self.result
        return result.best is not None and bool(stop(result))

    def _drop_loser(self) -> None:
        """Drop the forks of one attempt that can no longer win, while others run."""
        terms = self._row.terms
        if terms.losers != "drop" or terms.keep.most < 0:
            return
        scored = sorted((-row.score, row.i) for row in self._rows if row.score is not None)
        stay = {i for _, i in scored[: terms.keep.most]}
        for row in self._rows:
            if row.state in ("done", "failed") and row.i not in stay | self._dropped:
                self._dropped.add(row.i)
                for fork in row.forks:
                    drop_fork(self._hub, fork.id, fork.branch)
                return

    def _stop_waiting(self, todo: deque[int]) -> None:
        """Record all waiting attempts as stopped."""
        while todo:
            row = self._rows[todo.popleft()]
            self._write(replace(row, state="stopped", reason="stopped", error=self._stop_reason()))

    def _write(self, row: AttemptRow) -> AttemptRow:
        with suppress(Conflict):
            row = self._records.write_attempt(row)
            self._rows[row.i] = row
            return row
        self._rows[row.i] = self._records.attempt(row.i)  # its process has written in the meantime
        return self._rows[row.i]
