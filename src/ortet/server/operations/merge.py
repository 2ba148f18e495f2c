"""Merge, adopt and land sessions, and fork them with one event changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Invalid, NotFound
from ortet.history.commits import CommitInfo
from ortet.history.merge.tree_merge import FileConflict
from ortet.hub.hub import hub_of
from ortet.ids import to_hex
from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Artifact, Decision, Fact
from ortet.machines.base import Report
from ortet.server.auth.host_access import FORK_PARTS, check_move_access
from ortet.server.auth.tokens import Caller
from ortet.server.operations.history import resolve_ref
from ortet.server.operations.navigation import MoveOutcome, Times, restore_info
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Listed, session_summary
from ortet.server.schemas import OperationRequest, Ref
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import ARCHIVED, CLOSED, SessionRow

Favor = Literal["ours", "theirs"]


class Merge(OperationRequest, frozen=True):
    """`other`: a session by id or name, a branch, or a commit. `favor`: the side that wins if both
    sides changed the same thing. Without it, a conflict changes nothing.
    """

    other: Ref
    message: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    favor: Favor | None = None


class MergedInfo(msgspec.Struct, frozen=True):
    """The merge commit. `contradictions`: pairs of facts that are both believed now. `conflicts`:
    the conflicts that `favor` resolved. `up_to_date`: the session had all changes already.
    """

    commit: CommitInfo
    up_to_date: bool
    facts: list[Fact]
    lessons: list[Fact]
    decisions: list[Decision]
    artifacts: list[Artifact]
    contradictions: list[Contradiction]
    conflicts: list[FileConflict]
    files: Report


@operation("POST", "/sessions/{session}/merge", moves_head=True)
def merge(session: Session, ask: Merge, caller: Caller, pool: SessionPool) -> MergedInfo:
    """Merge another session, branch or commit into a session: facts, messages and files."""
    check_move_access(caller, session.internals.row, hub=hub_of(session), parts=("files",))
    with _open_other(session, ask.other, caller, pool) as other:
        merged = session.merge(other, message=ask.message, favor=ask.favor)
    return MergedInfo(
        **{name: getattr(merged, name) for name in MergedInfo.__struct_fields__},
    )


class Adopt(OperationRequest, frozen=True):
    """`other`: a session by id or name, a branch, or a commit."""

    other: Ref


@operation("POST", "/sessions/{session}/adopt", moves_head=True)
def adopt(session: Session, ask: Adopt, caller: Caller, pool: SessionPool) -> MoveOutcome:
    """Replace the state and files of a session by those of another. The previous head stays in the
    reflog.
    """
    check_move_access(caller, session.internals.row, hub=hub_of(session))
    with _open_other(session, ask.other, caller, pool) as other:
        return restore_info(session, session.adopt(other))


class Land(OperationRequest, frozen=True):
    favor: Favor | None = None


@operation("POST", "/sessions/{session}/land")
def land(session: Session, ask: Land, caller: Caller) -> Report:
    """Apply the changes of a session with private files to its original directory on the server's
    host, all or none.
    """
    caller.need_host()
    return session.land(favor=ask.favor)


class WhatIf(OperationRequest, frozen=True):
    """`at`: the number of the event to change. Give one change: other content for a `message`, or
    another `result` or `error` for an action.
    """

    session: str
    at: Times
    message: Any = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    machine: bool = True


@operation("POST", "/sessions/{session}/whatif", status=201, filtered=True)
def whatif(pool: SessionPool, ask: WhatIf, caller: Caller) -> Listed:
    """Fork a session at an event, with that event changed. The session itself is not changed."""
    row = pool.row(ask.session, caller.sees)
    changes = {"message": ask.message, "result": ask.result, "error": ask.error}
    change = {name: value for name, value in changes.items() if value is not msgspec.UNSET}
    with pool.hub() as hub:
        if ask.machine:
            check_move_access(caller, row, hub=hub, parts=FORK_PARTS)
        return session_summary(
            hub.whatif(row.id, ask.at, machine=ask.machine, **change).internals.row
        )


# Internal helpers


@contextmanager
def _open_other(
    session: Session, name: str, caller: Caller, pool: SessionPool
) -> Iterator[SessionReader | str]:
    """Yield the other session, opened for this thread alone, or a commit."""
    row = _find_session(session, name, caller, pool)
    if row is None:
        yield to_hex(resolve_ref(session, name)) if caller.agents else name
    elif row.status in (CLOSED, ARCHIVED):  # no process has it open
        yield hub_of(session).get(row.id)
    else:
        with pool.open_session(row) as other:
            yield other


def _find_session(
    session: Session, name: str, caller: Caller, pool: SessionPool
) -> SessionRow | None:
    """Return the session of a branch, id or name, or None if it is something else.

    A session of an agent that the caller may not see is treated as not existing.
    """
    row = hub_of(session).internals.session_manager.table.find_by_branch(name)
    if row is None or not caller.sees(row.agent):
        try:
            row = pool.row(name, caller.sees)
        except NotFound:
            return None
    if row.id == session.id:
        raise Invalid("bad_ref", f"{name!r} is this session: give another, or a commit")
    return row
