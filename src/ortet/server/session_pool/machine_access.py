"""The machine of a session, asked beside whatever else is done with it: no turn in its room, so a
command that takes an hour keeps nobody from looking at, or ending, what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortet.errors import OrtetError
from ortet.machines.control.client import InitClient
from ortet.machines.control.jobs import Job
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.workspaces.workspace import Workspace

_Found = TypeVar("_Found")


def ask_machine(
    pool: SessionPool, row: SessionRow, query: Callable[[InitClient], _Found]
) -> _Found:
    """What the keeper of its programs answers; NotFound("not_live") when none lives here."""
    try:
        return _ask_machine_once(pool, row, query)
    except OrtetError as error:
        if error.kind not in ("machine_gone", "machine_silent"):
            raise
        return _ask_machine_once(
            pool, row, query, refresh=True
        )  # it was restored: another stands there


def _ask_machine_once(
    pool: SessionPool,
    row: SessionRow,
    query: Callable[[InitClient], _Found],
    *,
    refresh: bool = False,
) -> _Found:
    door = pool.control_socket(row, refresh=refresh)
    indoors = InitClient(door.pid, path=door.path, lock_path=door.lock)
    try:
        return query(indoors)
    finally:
        indoors.close()


def ask_job(
    pool: SessionPool, row: SessionRow, name: str, query: Callable[[Job], _Found]
) -> _Found:
    """The same of one service or shell."""
    return ask_machine(pool, row, lambda indoors: query(indoors.job(name)))


def find_open_session(pool: SessionPool, id_: str) -> tuple[Session | None, Workspace | None]:
    """A session as it is open in this server, and its machine: only for what any thread may ask."""
    for room in pool.open_slots():
        if room.id == id_:
            return room.session, room.workspace
    return None, None
