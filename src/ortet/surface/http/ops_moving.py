"""What leads a session to another state: commit, fork, restore, undo, merge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Invalid, NotFound
from ortet.graph.commits import CommitInfo
from ortet.graph.merge import FileConflict
from ortet.ids import to_hex
from ortet.journal.around import Collaboration
from ortet.journal.environment import Difference
from ortet.journal.things import Artifact, Decision, Effect, Fact
from ortet.journal.union import Contradiction
from ortet.machine.abc import Loss, Report
from ortet.session.foreseeing import Foreseen, foresee, foresee_rewind
from ortet.session.forking import fork_at
from ortet.session.lifecycle import ARCHIVED, CLOSED, SessionRow
from ortet.session.outcome import Lapsed, Restored
from ortet.session.session import Session
from ortet.session.undoing import Step, Undone
from ortet.session.view import View
from ortet.surface.http.operations import operation
from ortet.surface.http.ops_history import FileChanges, file_changes, resolved
from ortet.surface.http.ops_sessions import Listed, listed
from ortet.surface.http.rooms import Rooms
from ortet.surface.http.shapes import Ask, Ref
from ortet.surface.http.tokens import Caller

_SHOWN = 1000
"""Files that an answer names; all are counted."""

Part = Literal["files", "mind", "processes"]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Favor = Literal["ours", "theirs"]
Tail = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"),
]


class Commit(Ask, frozen=True):
    """`allow_secrets`: also if it would hold a secret that is known."""

    message: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    allow_secrets: bool = False


@operation("POST", "/sessions/{session}/commits", status=201, moves=True)
def commit(session: Session, ask: Commit) -> CommitInfo:
    """Record mind and files together; with nothing new, it is the head."""
    return session.commit(ask.message, allow_secrets=ask.allow_secrets)


class Fork(Ask, frozen=True):
    """`n` of them, or one for each of `names`, which follow the session's own: NAME/name. `at`:
    from that commit, not from here. `machine`: with files and processes, where it has some."""

    n: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    names: Annotated[list[Tail], msgspec.Meta(max_length=1000)] = []
    machine: bool = True
    at: Ref | None = None


class Forks(msgspec.Struct, frozen=True):
    """Sessions of their own, which anybody may go on with."""

    forks: list[Listed]


@operation("POST", "/sessions/{session}/forks", status=201, moves=True)
def fork(session: Session, ask: Fork) -> Forks:
    """Make sessions that go on from here, or from a commit; all or none."""
    if ask.names and ask.n not in (1, len(ask.names)):
        raise Invalid("bad_count", f"{ask.n} forks, {len(ask.names)} names: leave one of them out")
    if ask.names or ask.at is not None:
        at = resolved(session, ask.at) if ask.at is not None else None
        made = fork_at(session, at, n=ask.n, names=ask.names, machine=ask.machine)
    else:
        made = session.fork(ask.n, machine=ask.machine)
    return Forks([listed(one.row) for one in made])


class Gone(msgspec.Struct, frozen=True):
    """Where a session went, or would go: not `done`, nothing was moved. `head` is its newest commit
    now; `was`, the one that holds what was there before. What was not committed is committed first
    (`kept`). `files` are the changes, where they are known: before it is done. `forgotten` counts
    events that its mind does not know of any more. `lost` did not, or will not, come back; `ends`
    are programs that run and will not then. `deeds` were done since and stay done, and others see
    `collaborations` that they made; `secrets` are named there and cannot be had here now;
    `environment` is what surrounds it now and did not then."""

    done: bool
    to: str
    head: str
    was: str
    kept: bool
    files: FileChanges | None
    written: int
    removed: int
    forgotten: int
    started: list[str]
    ends: list[str]
    lost: list[Loss]
    deeds: list[Effect]
    collaborations: list[Collaboration]
    secrets: list[Lapsed]
    environment: list[Difference]
    steps: list[Step]
    text: str


class Restore(Ask, frozen=True):
    """`only` some parts; `restart`: start services that ran then and do not run now. `dry_run`:
    tell what would change and what will not come back, and do nothing."""

    ref: Ref
    only: Annotated[list[Part], msgspec.Meta(min_length=1)] | None = None
    restart: bool = False
    dry_run: bool = False


@operation("POST", "/sessions/{session}/restore", moves=True)
def restore(session: Session, ask: Restore) -> Gone:
    """Go to a commit: mind, files and processes. What is not committed is committed first."""
    target = resolved(session, ask.ref)
    if ask.dry_run:
        return _foreseen(session, foresee(session, target, ask.only))
    return _gone(session, session.restore(to_hex(target), only=ask.only, restart=ask.restart))


class Back(Ask, frozen=True):
    """`n` steps; `dry_run`: only tell."""

    n: Times = 1
    dry_run: bool = False


@operation("POST", "/sessions/{session}/rewind", moves=True)
def rewind(session: Session, ask: Back) -> Gone:
    """Go to the n-th commit back on its branch."""
    if ask.dry_run:
        return _foreseen(session, foresee_rewind(session, ask.n))
    return _gone(session, session.rewind(ask.n))


@operation("POST", "/sessions/{session}/undo", moves=True)
def undo(session: Session, ask: Back) -> Gone:
    """Go back to before the last n things that moved its branch; what is not committed is the
    first of them."""
    return _undone(session, session.undo(ask.n, dry_run=ask.dry_run), done=not ask.dry_run)


@operation("POST", "/sessions/{session}/redo", moves=True)
def redo(session: Session, ask: Back) -> Gone:
    """Do the last n things again that were undone, unless something else was done since."""
    return _undone(session, session.redo(ask.n, dry_run=ask.dry_run), done=not ask.dry_run)


class Merge(Ask, frozen=True):
    """`other`: a session, by id or name, a branch or a commit. `favor`: who wins where both changed
    the same; without it, a conflict changes nothing."""

    other: Ref
    message: Annotated[str, msgspec.Meta(max_length=1 << 16)] = ""
    favor: Favor | None = None


class MergedInfo(msgspec.Struct, frozen=True):
    """One commit of both. `contradictions`: both facts are known now. `conflicts` are those that
    `favor` settled. `up_to_date`: all was here already."""

    commit: CommitInfo
    up_to_date: bool
    facts: list[Fact]
    lessons: list[Fact]
    decisions: list[Decision]
    artifacts: list[Artifact]
    contradictions: list[Contradiction]
    conflicts: list[FileConflict]
    files: Report


@operation("POST", "/sessions/{session}/merge", moves=True)
def merge(session: Session, ask: Merge, caller: Caller, rooms: Rooms) -> MergedInfo:
    """Bring in what another session, branch or commit knows and changed."""
    with _other(session, ask.other, caller, rooms) as other:
        found = session.merge(other, message=ask.message, favor=ask.favor)
    return MergedInfo(
        **{name: getattr(found, name) for name in MergedInfo.__struct_fields__},
    )


class Adopt(Ask, frozen=True):
    """`other`: a session, by id or name, a branch or a commit."""

    other: Ref


@operation("POST", "/sessions/{session}/adopt", moves=True)
def adopt(session: Session, ask: Adopt, caller: Caller, rooms: Rooms) -> Gone:
    """Take the state of another, mind and files; what was here stays in the reflog."""
    with _other(session, ask.other, caller, rooms) as other:
        return _gone(session, session.adopt(other))


class Land(Ask, frozen=True):
    favor: Favor | None = None


@operation("POST", "/sessions/{session}/land")
def land(session: Session, ask: Land, caller: Caller) -> Report:
    """Apply what a session with private files changed to the directory that it is of, on the
    server's host: all or nothing."""
    caller.need_host()
    return session.land(favor=ask.favor)


class WhatIf(Ask, frozen=True):
    """`at` is the number of an event; one change: another content of that `message`, or another
    `result` or `error` of that action."""

    session: str
    at: Times
    message: Any = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    machine: bool = True


@operation("POST", "/sessions/{session}/whatif", status=201, filtered=True)
def whatif(rooms: Rooms, ask: WhatIf, caller: Caller) -> Listed:
    """A fork at one event, as if that had been another; the session itself is left alone."""
    row = rooms.row(ask.session, caller.sees)
    given = {"message": ask.message, "result": ask.result, "error": ask.error}
    change = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    with rooms.hub() as hub:
        return listed(hub.whatif(row.id, ask.at, machine=ask.machine, **change).row)


# inside


@contextmanager
def _other(session: Session, text: str, caller: Caller, rooms: Rooms) -> Iterator[View | str]:
    """The session that is meant, ours alone meanwhile, or a commit."""
    row = _meant(session, text, caller, rooms)
    if row is None:
        yield to_hex(resolved(session, text)) if caller.agents else text
    elif row.status in (CLOSED, ARCHIVED):  # nobody has it open
        yield session.hub.get(row.id)
    else:
        with rooms.enter(row) as other:
            yield other


def _meant(session: Session, text: str, caller: Caller, rooms: Rooms) -> SessionRow | None:
    """By its branch, id or name; None for what is no session. One of an agent that the caller may
    not see is none, whatever it is called."""
    row = session.hub._minds().roll.of_branch(text)
    if row is None or not caller.sees(row.agent):
        try:
            row = rooms.row(text, caller.sees)
        except NotFound:
            return None
    if row.id == session.id:
        raise Invalid("bad_ref", f"{text!r} is this session: give another, or a commit")
    return row


def _head(session: Session) -> str:
    head = session.head
    return head.oid if head is not None else ""


def _gone(session: Session, found: Restored, undone: Undone | None = None) -> Gone:
    return Gone(
        done=True,
        to=found.to,
        head=_head(session),
        was=undone.was if undone is not None else "",
        kept=undone is not None and undone.kept,
        files=_files(session, undone) if undone is not None else None,
        written=found.files.written,
        removed=found.files.removed,
        forgotten=max(undone.events, 0) if undone is not None else 0,
        started=found.files.started,
        ends=[],
        lost=found.files.losses,
        deeds=found.deeds,
        collaborations=found.collaborations,
        secrets=found.secrets,
        environment=found.environment,
        steps=undone.steps if undone is not None else [],
        text=str(found),
    )


def _undone(session: Session, found: Undone, *, done: bool) -> Gone:
    return msgspec.structs.replace(_gone(session, found.restored, found), done=done)


def _files(session: Session, found: Undone | Foreseen) -> FileChanges:
    return file_changes(session.hub, found.changes, limit=_SHOWN)


def _foreseen(session: Session, found: Foreseen) -> Gone:
    return Gone(
        done=False,
        to=found.to,
        head=found.head,
        was=found.head,
        kept=found.uncommitted,
        files=_files(session, found),
        written=0,
        removed=0,
        forgotten=found.forgotten,
        started=found.starts,
        ends=found.ends,
        lost=found.lost,
        deeds=found.deeds,
        collaborations=found.collaborations,
        secrets=found.secrets,
        environment=[],
        steps=[],
        text=str(Restored(found.to, Report(losses=found.lost), found.deeds, secrets=found.secrets)),
    )
