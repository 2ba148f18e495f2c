"""restore, rewind, undo, redo: go back and forth. What would happen is told first, and done when
that is agreed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ortet.cli import output
from ortet.errors import NotFound
from ortet.ids import Oid, from_hex
from ortet.mcp_server.answers import (
    Change,
    Commit,
    Deed,
    Loss,
    changes_of,
    commit_of,
    deed_of,
    joined,
    losses_of,
    some,
)
from ortet.mcp_server.context import Desk
from ortet.mcp_server.tool import CONFIRMED, MOVES, Agreed, Answer, tool
from ortet.mcp_server.tools.history import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ortet.sessions.history.preview import Foreseen
    from ortet.sessions.results import Restored
    from ortet.sessions.session import Session
    from ortet.workspaces.undo import Step

Confirm = Annotated[
    str,
    Meta(
        description="Leave it out at first: the answer says what would happen and which id to give "
        "here to have it done. Show that to the user before."
    ),
]
Parts = Annotated[
    list[Literal["files", "mind", "processes"]] | None,
    Meta(description="Only these parts; all of them unless given."),
]


class Gone(Answer, frozen=True):
    """Where a restore leads. Until `done`, nothing was touched: `changes` are what it would do to
    the present files, and `confirm` is what to give to have it done. What is not committed is
    committed first. `deeds` were done since and stay done; `forgotten` counts the events, such as
    messages, that the mind will not know of; `lost` cannot be brought back."""

    done: bool
    to: Commit
    head: str
    changed: int
    changes: list[Change]
    forgotten: int
    written: int
    removed: int
    lost: list[Loss]
    deeds: list[Deed]
    notes: list[str]
    confirm: str

    def __str__(self) -> str:
        done = output.plural(len(self.deeds), "deed")
        deeds = f"not undone, {done} since then:" if self.deeds else ""
        left = output.plural(self.forgotten, "event")
        before = [
            f"would go to {self.to}",
            f"{output.plural(self.changed, 'change')} of files:" if self.changed else "files stay",
            *some(self.changes, self.changed),
            f"{left} of the journal would be left behind" if self.forgotten else "",
        ]
        after = [f"at {self.to}: {self.written} written, {self.removed} removed"]
        told = [
            *(f"not back: {loss}" for loss in self.lost),
            deeds,
            *some(self.deeds),
            *map(output.safe, self.notes),
        ]
        if self.done:
            return joined(*after, *told, "undo goes back to before this (after an undo, redo does)")
        return joined(
            *before,
            *told,
            "nothing was done. What is uncommitted would be committed first, so nothing would be "
            f"lost. To do it, call again with confirm={self.confirm}",
        )


@tool(CONFIRMED)
def restore(
    desk: Desk, *, agreed: Agreed, ref: Ref, only: Parts = None, confirm: Confirm = ""
) -> Gone:
    """Make mind and files those of a commit. Overwrites the present files, after it has committed
    them. Needs confirmation: the first call only reports what would change and what will not come
    back."""
    del confirm
    branch = _branch(desk)
    target = desk.resolve(ref, branch)

    def go(session: Session) -> Restored:
        return session.restore(target.hex(), only=only)

    return _go(desk, target, go, agreed, only)


@tool(MOVES)
def rewind(
    desk: Desk,
    *,
    agreed: Agreed,
    n: Annotated[int, Meta(description="How many commits back.", ge=1)] = 1,
    confirm: Confirm = "",
) -> Gone:
    """Go to the n-th commit back on this branch, mind and files together. Needs confirmation, as
    restore does."""
    del confirm
    target = desk.resolve(f"HEAD~{n}", _branch(desk))
    return _go(desk, target, lambda session: session.restore(target.hex()), agreed, None)


Count = Annotated[int, Meta(description="How many at once.", ge=1)]


@tool(MOVES)
def undo(desk: Desk, *, agreed: Agreed, n: Count = 1, confirm: Confirm = "") -> Gone:
    """Go back to before the last thing that moved this branch: files that are not committed first,
    then commits, restores, rewinds, one by one. Nothing is lost: redo goes forth again. Needs
    confirmation, as restore does."""
    del confirm
    return _travel(desk, "undo", n, agreed)


@tool(MOVES)
def redo(desk: Desk, *, agreed: Agreed, n: Count = 1, confirm: Confirm = "") -> Gone:
    """Do again what undo took back, as long as nothing else was done since. Needs confirmation, as
    restore does."""
    del confirm
    return _travel(desk, "redo", n, agreed)


def _travel(desk: Desk, way: Literal["undo", "redo"], n: int, agreed: Agreed) -> Gone:
    from ortet.sessions.history.preview import foresee_undo

    _branch(desk)
    told = foresee_undo(desk.hub.get(desk.need().id), way, n)
    if not agreed.to(told.to):
        return _told(desk, told, way)
    with desk.writing() as session:
        found = session.undo(n) if way == "undo" else session.redo(n)
        back, head = found.restored, session.head
        return Gone(
            done=True,
            to=commit_of(desk.hub.history.info(from_hex(back.to))),
            head=head.oid if head else "",
            changed=len(found.changes),
            changes=changes_of(found.changes),
            forgotten=found.events,
            written=back.files.written,
            removed=back.files.removed,
            lost=losses_of(back.files.losses),
            deeds=[deed_of(deed) for deed in back.deeds],
            notes=[*_steps(way, found.steps), *map(str, back.secrets)],
            confirm="",
        )


def _steps(way: str, steps: list[Step]) -> list[str]:
    return [f"{way}: {output.line(f'{one.verb} {one.detail}')}" for one in steps]


def _branch(desk: Desk) -> str:
    branch = desk.need().branch
    if desk.hub.refs.get(branch) is None:
        raise NotFound("no_commit", "there is no commit yet to go back to: commit first")
    return branch


def _go(
    desk: Desk,
    target: Oid,
    go: Callable[[Session], Restored],
    agreed: Agreed,
    only: Collection[str] | None,
) -> Gone:
    """Done where it was agreed to exactly this commit, else told."""
    from ortet.sessions.history.preview import foresee

    told = foresee(desk.hub.get(desk.need().id), target, only)
    if not agreed.to(target.hex()):
        return _told(desk, told)
    with desk.writing() as session:
        done = go(session)
        head = session.head
        return Gone(
            done=True,
            to=commit_of(desk.hub.history.info(target)),
            head=head.oid if head else "",
            changed=done.files.written + done.files.removed,
            changes=[],
            forgotten=told.forgotten,
            written=done.files.written,
            removed=done.files.removed,
            lost=losses_of(done.files.losses),
            deeds=[deed_of(deed) for deed in done.deeds],
            notes=[*map(str, done.secrets), *map(str, done.environment)],
            confirm="",
        )


def _told(desk: Desk, found: Foreseen, way: str = "") -> Gone:
    """What would be done, before it is: nothing is opened for it."""
    return Gone(
        done=False,
        to=commit_of(desk.hub.history.info(from_hex(found.to))),
        head=found.head,
        changed=len(found.changes),
        changes=changes_of(found.changes),
        forgotten=found.forgotten,
        written=0,
        removed=0,
        lost=losses_of(found.lost),
        deeds=[deed_of(deed) for deed in found.deeds],
        notes=[*_steps(way, found.steps), *map(str, found.secrets)],
        confirm=found.to,
    )
