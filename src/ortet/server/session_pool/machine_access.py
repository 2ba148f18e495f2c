"""Queries to the machine of a session, without taking the session's lock.

A command that runs for an hour holds the lock. These queries still work, so others can look at
running programs and stop them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortet.errors import OrtetError
from ortet.machines.control.client import InitClient
from ortet.machines.jobs import Job
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.workspaces.workspace import Workspace

_Found = TypeVar("_Found")


def ask_machine(
    pool: SessionPool, row: SessionRow, query: Callable[[InitClient], _Found]
) -> _Found:
    """Return the answer of the init process of a session's machine.

    Raises:
        NotFound: `not_live`, if no machine of the session runs in this server.
    """
    try:
        return _ask_machine_once(pool, row, query)
    except OrtetError as error:
        if error.kind not in ("machine_gone", "machine_silent"):
            raise
        return _ask_machine_once(
            pool, row, query, refresh=True
        )  # the machine was restored: reconnect to the new one


def _ask_machine_once(
    pool: SessionPool,
    row: SessionRow,
    query: Callable[[InitClient], _Found],
    *,
    refresh: bool = False,
) -> _Found:
    control = pool.control_socket(row, refresh=refresh)
    client = InitClient(control.pid, path=control.path, lock_path=control.lock)
    try:
        return query(client)
    finally:
        client.close()


def ask_job(
    pool: SessionPool, row: SessionRow, name: str, query: Callable[[Job], _Found]
) -> _Found:
    """Return the answer of one service or shell of a session's machine."""
    return ask_machine(pool, row, lambda indoors: query(indoors.job(name)))


def find_open_session(pool: SessionPool, id_: str) -> tuple[Session | None, Workspace | None]:
    """Return a session and its machine if they are open in this server.

    The caller does not hold the session's lock, so it may only use what is safe for any thread.
    """
    for slot in pool.open_slots():
        if slot.id == id_:
            return slot.session, slot.workspace
    return None, None
