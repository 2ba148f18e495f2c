"""The machine of a session, asked beside whatever else is done with it: no turn in its room, so a
command that takes an hour keeps nobody from looking at, or ending, what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortet.errors import OrtetError
from ortet.machines.control.client import Indoors
from ortet.machines.control.jobs import Job
from ortet.server.session_pool.pool import Rooms
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.workspaces.workspace import Workspace

_Found = TypeVar("_Found")


def asked(rooms: Rooms, row: SessionRow, ask: Callable[[Indoors], _Found]) -> _Found:
    """What the keeper of its programs answers; NotFound("not_live") when none lives here."""
    try:
        return _asked(rooms, row, ask)
    except OrtetError as error:
        if error.kind not in ("machine_gone", "machine_silent"):
            raise
        return _asked(rooms, row, ask, again=True)  # it was restored: another stands there


def _asked(
    rooms: Rooms, row: SessionRow, ask: Callable[[Indoors], _Found], *, again: bool = False
) -> _Found:
    door = rooms.machine_door(row, again=again)
    indoors = Indoors(door.pid, path=door.path, lock=door.lock)
    try:
        return ask(indoors)
    finally:
        indoors.close()


def of_job(rooms: Rooms, row: SessionRow, name: str, ask: Callable[[Job], _Found]) -> _Found:
    """The same of one service or shell."""
    return asked(rooms, row, lambda indoors: ask(indoors.job(name)))


def opened(rooms: Rooms, id_: str) -> tuple[Session | None, Workspace | None]:
    """A session as it is open in this server, and its machine: only for what any thread may ask."""
    for room in rooms.opened():
        if room.id == id_:
            return room.session, room.files
    return None, None
