"""Decides who may change directories or resume programs on the server's host.

A module of its own, so that every operation that moves a session applies the same rule.
"""

from __future__ import annotations

from collections.abc import Collection

from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.server.auth.tokens import Caller
from ortet.sessions.table import SessionRow

ALL_PARTS = ("files", "processes")
FORK_PARTS = ("processes",)
"""The parts of the host that a fork touches. Its files are private, so they do not count."""


def check_move_access(
    caller: Caller,
    row: SessionRow,
    *,
    hub: Hub,
    parts: Collection[str] | None = None,
    commit: Oid | None = None,
) -> None:
    """Refuse a move that would touch the server's host, unless the caller may run commands.

    A move touches the host if it writes to an in-place workspace on this host, or if it resumes
    programs. Programs resume if the machine uses CRIU, or if the commit has saved processes.

    Args:
        caller: The caller of the request.
        row: The session to move.
        hub: The hub of the session.
        parts: The parts to move ("files", "processes"); all by default.
        commit: The commit to move to.

    Raises:
        Refused: `token_host`, if the move would touch the host.
    """
    if caller.runs or not row.has_files:
        return
    touched = ALL_PARTS if parts is None else parts
    if "files" in touched and _is_in_place(hub, row):
        caller.need_host()
    if "processes" in touched and _resumes_processes(hub, row, commit):
        caller.need_host()


def _is_in_place(hub: Hub, row: SessionRow) -> bool:
    """Return True if the workspace is a directory of this host, used in place."""
    place = hub.workspaces.table.get(row.branch)
    if place is None:
        return bool(row.path) and row.files != "private" and hub.store.is_local_host(row.host)
    return place.files == "inplace" and hub.store.is_local_host(place.host)


def _resumes_processes(hub: Hub, row: SessionRow, commit: Oid | None) -> bool:
    place = hub.workspaces.table.get(row.branch)
    if place is not None and "criu" in (place.engine, place.forks):
        return True
    machine = hub.history.state(commit).machine if commit is not None else b""
    return bool(machine and hub.store.read_image(Oid(machine)).processes)
