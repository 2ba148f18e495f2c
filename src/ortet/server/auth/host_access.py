"""What touches the server's host, outside of the store, and who may do that: one rule for all that
moves a session."""

from __future__ import annotations

from collections.abc import Collection

from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.server.auth.tokens import Caller
from ortet.sessions.table import SessionRow

ALL_PARTS = ("files", "processes")
FORK_PARTS = ("processes",)
"""What forks touch: their files are private."""


def check_move_access(
    caller: Caller,
    row: SessionRow,
    *,
    hub: Hub,
    parts: Collection[str] | None = None,
    commit: Oid | None = None,
) -> None:
    """Refused("token_host") to those who may run nothing on this host, where moving these parts
    (all, unless told) of a session would write to a directory of it that is a workspace in place,
    or have programs go on: those of a machine that carries them, or of the commit `at`."""
    if caller.runs or not row.has_files:
        return
    touched = ALL_PARTS if parts is None else parts
    if "files" in touched and _is_in_place(hub, row):
        caller.need_host()
    if "processes" in touched and _resumes_processes(hub, row, commit):
        caller.need_host()


def _is_in_place(hub: Hub, row: SessionRow) -> bool:
    """A directory of this host; that of another is not touched by anybody here."""
    place = hub.workspace_table.get(row.branch)
    if place is None:
        return bool(row.path) and row.files != "private" and hub.is_local_host(row.host)
    return place.files == "inplace" and hub.is_local_host(place.host)


def _resumes_processes(hub: Hub, row: SessionRow, commit: Oid | None) -> bool:
    place = hub.workspace_table.get(row.branch)
    if place is not None and "criu" in (place.engine, place.forks):
        return True
    machine = hub.history.state(commit).machine if commit is not None else b""
    return bool(machine and hub.read_image(Oid(machine)).processes)
