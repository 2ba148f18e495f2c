"""What touches the server's host, outside of the store, and who may do that: one rule for all that
moves a session."""

from __future__ import annotations

from collections.abc import Collection

from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.server.auth.tokens import Caller
from ortet.sessions.table import SessionRow

ALL = ("files", "processes")
COPIES = ("processes",)
"""What forks touch: their files are private."""


def need_here(
    caller: Caller,
    row: SessionRow,
    *,
    hub: Hub,
    parts: Collection[str] | None = None,
    at: Oid | None = None,
) -> None:
    """Refused("token_host") to those who may run nothing on this host, where moving these parts
    (all, unless told) of a session would write to a directory of it that is a workspace in place,
    or have programs go on: those of a machine that carries them, or of the commit `at`."""
    if caller.runs or not row.has_files:
        return
    touched = ALL if parts is None else parts
    if "files" in touched and _is_in_place(hub, row):
        caller.need_host()
    if "processes" in touched and _carries(hub, row, at):
        caller.need_host()


def _is_in_place(hub: Hub, row: SessionRow) -> bool:
    """A directory of this host; that of another is not touched by anybody here."""
    place = hub.registry.get(row.branch)
    if place is None:
        return bool(row.path) and row.files != "private" and hub.is_here(row.host)
    return place.files == "inplace" and hub.is_here(place.host)


def _carries(hub: Hub, row: SessionRow, at: Oid | None) -> bool:
    place = hub.registry.get(row.branch)
    if place is not None and "criu" in (place.engine, place.forks):
        return True
    machine = hub.history.state(at).machine if at is not None else b""
    return bool(machine and hub.read_image(Oid(machine)).processes)
