"""Runs swarms: creates or continues one, schedules attempts, keeps the best, drops the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.backends.base import Lease
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.history.refs import check_ref_name
from ortet.hub.hub import drop_fork, hub_of
from ortet.ids import Oid, from_hex
from ortet.sessions.history.swarm_results import adopt_with, harvest, merge_with
from ortet.sessions.swarm_api import SwarmRequest, SwarmResult, swarm_topic
from ortet.store.lease import LEASE_TTL_NS, HeldLease, LeaseRenewer, acquire_lease
from ortet.swarm import records as books
from ortet.swarm.budget import check_share
from ortet.swarm.plan import SwarmPlan, differing_fields, make_plan
from ortet.swarm.records import (
    CHOSEN,
    FINISHED,
    HARVESTED,
    KEPT,
    RUNNING,
    SwarmRecords,
    SwarmRow,
    swarm_result,
)
from ortet.swarm.scheduler import SwarmScheduler
from ortet.swarm.task_transport import pack_task
from ortet.swarm.workers.client import FORK_SERVER, RAY_SERVER, SwarmWorkerClient, worker_config
from ortet.swarm.workers.placement import ray_worker_config
from ortet.workspaces.table import fork_taken

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session

_MAX_UNNAMED_SWARMS = 100


class LocalSwarms:
    """Runs swarms from this host, wherever their attempts run.

    `opener` opens the store in the process of an attempt. It must be an importable function.
    """

    def __init__(self, opener: Callable[..., Any]) -> None:
        self._opener = opener

    def run(self, session: Session, request: SwarmRequest) -> SwarmResult:
        """Run a swarm to its end, or continue the one of that name, and return its result.

        Raises:
            Invalid: If a parameter is not valid, or the task cannot be loaded elsewhere.
            Conflict: "swarm_differs" if the swarm was started with other parameters.
            Refused: "swarm_driven" if another process or thread runs a swarm of this session.
        """
        plan = make_plan(request)
        row = self._find_existing(session, plan)
        if row is not None and row.state == FINISHED:
            return self._result(session, row)
        with _driver_lease(session) as lease, ExitStack() as last:
            if row is None:
                workers = self._start_workers(session, plan)
                last.callback(workers.close)
                row = self._create_swarm(session, plan, request, lease, workers)
                return _SwarmRun(session, plan, row, lease).run(lambda: workers)
            row = books.find_swarm(session.internals.store.catalog, session.id, row.name) or row
            plan = _with_stored_commands(plan, row)
            return _SwarmRun(session, plan, row, lease).run(
                lambda: self._start_workers(session, plan)
            )

    def all(self, session: SessionReader) -> list[SwarmResult]:
        """Return all swarms of a session, oldest first."""
        rows = sorted(
            books.list_swarms(session.internals.store.catalog, session.id), key=lambda row: row.made
        )
        return [self._result(session, row) for row in rows]

    def get(self, session: SessionReader, name: str) -> SwarmResult:
        """Return one swarm of a session by name. Raise NotFound("no_swarm")."""
        row = books.find_swarm(session.internals.store.catalog, session.id, name)
        if row is None:
            raise _no_swarm(session, name)
        return self._result(session, row)

    def _result(self, session: SessionReader, row: SwarmRow) -> SwarmResult:
        attempts = SwarmRecords(session.internals.store.catalog, session.id, row.id).attempts()
        return swarm_result(row, attempts, session.name)

    def _find_existing(self, session: Session, plan: SwarmPlan) -> SwarmRow | None:
        """Return the swarm of that name, or None.

        Raise Conflict if the swarm was started with other parameters.
        """
        row = (
            books.find_swarm(session.internals.store.catalog, session.id, plan.name)
            if plan.name
            else None
        )
        if row is None and plan.task is None:
            raise _no_swarm(session, plan.name)
        has_task = row is not None and plan.task is not None
        if has_task and row and (differ := differing_fields(plan.terms, row.terms)):
            raise Conflict(
                "swarm_differs",
                f"swarm {plan.name!r} was begun with another {', '.join(differ)}: give the same "
                "to go on with it, or another name",
            )
        return row

    def _start_workers(self, session: Session, plan: SwarmPlan) -> SwarmWorkerClient:
        if plan.task is None:
            raise Invalid(
                "bad_task", f"the task of swarm {plan.name!r} is a function: give it again"
            )
        config = worker_config(self._opener, plan.task, plan.score)
        if plan.on is None:
            return SwarmWorkerClient(
                FORK_SERVER, {**config, "lends": _shares_zygotes(session, plan)}
            )
        return SwarmWorkerClient(
            RAY_SERVER, {**config, **ray_worker_config(hub_of(session), plan.on, plan.timeout)}
        )

    def _create_swarm(
        self,
        session: Session,
        plan: SwarmPlan,
        request: SwarmRequest,
        lease: Lease,
        workers: SwarmWorkerClient,
    ) -> SwarmRow:
        hub = hub_of(session)
        if plan.terms.budget:
            session.internals.pipeline.budget.return_unspent()  # so that attempts can reserve it
            check_share(hub.catalog, session.internals.row, plan.terms.budget)
        if request.at is None:
            point = from_hex(session.commit("swarm point").oid)
        else:
            point = hub.refs.resolve(request.at, default_branch=session.internals.row.branch)
        if session.internals.row.has_files:
            hub.store.image_oid(
                point, hub.workspaces.table.need(session.internals.row.branch).empty_image
            )
        workers.wait_ready()
        for number in range(1, _MAX_UNNAMED_SWARMS):
            name = plan.name or f"swarm-{number}"
            if not plan.name and books.find_swarm(hub.catalog, session.id, name):
                continue
            _check_names(session, name, plan.terms.n)
            works = [plan.task, plan.score]
            row = SwarmRow(
                id=hub.store.new_id(),
                name=name,
                point=point,
                made=hub.clock.now_ns(),
                terms=plan.terms,
                commands=[work.command if work else None for work in works],
            )
            try:
                row = books.create_swarm(hub.catalog, session.id, row, lease)
            except Conflict:
                if plan.name:
                    raise
                continue
            failpoint("swarm.begun")
            return row
        raise Conflict("name_taken", "too many swarms have no name of their own: give name=")


class _SwarmRun:
    """One swarm that this process runs to its end."""

    def __init__(self, session: Session, plan: SwarmPlan, row: SwarmRow, lease: Lease) -> None:
        self._session = session
        self._hub = hub_of(session)
        self._plan = plan
        self._row = row
        self._lease = lease
        self._records = SwarmRecords(session.internals.store.catalog, session.id, row.id)

    def run(self, start_workers: Callable[[], SwarmWorkerClient]) -> SwarmResult:
        if self._row.state == RUNNING:
            self._run_attempts(start_workers)
        if self._row.state == CHOSEN:
            self._keep()
        if self._row.state == KEPT:
            self._harvest()
        if self._row.state == HARVESTED:
            self._drop_forks()
        result = swarm_result(self._row, self._records.attempts(), self._session.name)
        if self._plan.progress is not None:
            self._plan.progress(result)
        return result

    def _run_attempts(self, start_workers: Callable[[], SwarmWorkerClient]) -> None:
        scheduler = SwarmScheduler(self._session, self._plan, self._row, self._records)
        scheduler.recover_attempts()
        scheduler.run(start_workers)
        keep = self._row.terms.keep
        ranked = [one.i for one in scheduler.result.ranked]
        chosen = ranked if keep.most < 0 else ranked[: keep.most]
        failpoint("swarm.choosing")
        self._write(state=CHOSEN, kept=chosen)

    def _keep(self) -> None:
        """Adopt or merge the chosen attempts, each exactly once."""
        how = self._row.terms.keep.how
        while how == "merge" and self._row.merged < len(self._row.kept):
            self._merge(self._row.merged)
        if how == "adopt" and self._row.kept:
            _, change = self._records.swarm_change(self._row, state=KEPT)
            adopt_with(self._session, self._commit_of(self._row.kept[0]), change)
            self._row = self._records.reload(self._row)
        failpoint("swarm.adopted")
        if self._row.state != KEPT:  # the head was already there, so no transaction was written
            self._write(state=KEPT)

    def _merge(self, number: int) -> None:
        i = self._row.kept[number]
        _, change = self._records.swarm_change(self._row, merged=number + 1)
        message = f"swarm {self._row.name}: merge attempt {i}"
        merged = merge_with(self._session, self._commit_of(i), change, message)
        failpoint("swarm.merged")
        self._row = self._records.reload(self._row)
        paths = sorted({*self._row.conflicts, *(one.path for one in merged.conflicts)})
        contradictions = [*self._row.contradictions, *merged.contradictions]
        self._write(merged=number + 1, conflicts=paths, contradictions=contradictions)

    def _harvest(self) -> None:
        """Take facts over from the attempts that were not kept."""
        if not self._row.terms.harvest:
            self._write(state=HARVESTED)
            return
        others = [
            (row.fork.name, Oid(bytes.fromhex(row.commit)))
            for row in self._records.attempts()
            if row.i not in self._row.kept and row.commit and row.fork is not None
        ]
        before = self._row.contradictions
        harvest(
            self._session,
            Oid(self._row.point),
            others,
            lambda facts, found: self._records.swarm_change(
                self._row, state=HARVESTED, harvested=facts, contradictions=[*before, *found]
            )[1],
        )
        failpoint("swarm.harvested")
        self._row = self._records.reload(self._row)

    def _drop_forks(self) -> None:
        """Drop forks that are no longer needed.

        Adopted and merged work is in the session by now.
        """
        if self._row.harvested:
            self._session.commit(f"swarm {self._row.name}: learned from other attempts")
        terms = self._row.terms
        stay = set(self._row.kept) if terms.keep.how == "leave" else set()
        for row in self._records.attempts():
            all_of_it = terms.losers == "drop" and row.i not in stay
            for fork in row.forks if all_of_it else row.forks[:-1]:
                drop_fork(self._hub, fork.id, fork.branch)
                failpoint("swarm.dropped")
        self._write(state=FINISHED)

    def _commit_of(self, i: int) -> Oid:
        return Oid(bytes.fromhex(self._records.attempt(i).commit))

    def _write(self, **fields: Any) -> None:
        self._row = self._records.write_swarm(self._row, self._lease, **fields)
        self._hub.store.notify(swarm_topic(self._session.id))


@contextmanager
def _driver_lease(session: Session) -> Iterator[Lease]:
    """Hold the lease to run swarms of this session: one process and one thread at a time."""
    hub = hub_of(session)
    topic = f"swarm:{session.id}"
    try:
        lease = acquire_lease(hub.catalog, topic, session.internals.manager.owner(), hub.store.host)
    except Refused as error:
        if error.kind != "lease_held":
            raise
        raise Refused(
            "swarm_driven",
            f"a swarm of session {session.name!r} is being driven already: wait until it has "
            "ended, or take a fork of the session for another",
            **error.details,
        ) from error
    renewer, held = LeaseRenewer(), HeldLease(hub.catalog, hub.clock, lease, LEASE_TTL_NS)
    renewer.add(held)
    try:
        yield lease
    finally:
        renewer.close()
        held.release()


def _with_stored_commands(plan: SwarmPlan, row: SwarmRow) -> SwarmPlan:
    """Fill in the stored terms and commands if the caller gave only the name of the swarm."""
    if plan.task is not None:
        return plan
    task, score = (
        None if x is None else pack_task(x, "task") for x in (*row.commands, None, None)[:2]
    )
    if row.terms.score and score is None:
        task = None  # a function, which only the caller can provide
    return replace(plan, terms=row.terms, task=task, score=score)


def _shares_zygotes(session: Session, plan: SwarmPlan) -> bool:
    """Return True if attempts use overlay machines, whose zygote process can be shared."""
    hub, files = hub_of(session), session.internals.files.workspace()
    if files is not None:
        return (files.row.forks or hub.workspaces.engines.strongest()) == "overlay"
    works = [work for work in (plan.task, plan.score) if work is not None and work.command]
    return (
        bool(works)
        and hub.workspaces.resolve_files_and_engine(session.internals.row.engine, "private")[1]
        == "overlay"
    )


def _check_names(session: Session, name: str, n: int) -> None:
    """Raise a conflict if a fork already has the name of a planned attempt."""
    hub, table = hub_of(session), session.internals.manager.services.table
    for i in range(n):
        tail = f"/{name}-{i}"
        branch = check_ref_name(session.internals.row.branch + tail)
        taken = hub.workspaces.table.get(branch) or hub.refs.get(branch)
        if taken or table.is_taken(session.agent, session.name + tail):
            raise fork_taken(session.name + tail)


def _no_swarm(session: SessionReader, name: str) -> NotFound:
    return NotFound(
        "no_swarm",
        f"session {session.name!r} has no swarm {name!r}: `ortet swarm ls` lists them, or give a "
        "task to begin one",
    )
