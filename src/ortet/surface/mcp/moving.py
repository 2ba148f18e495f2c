"""restore, rewind, undo, redo: go back and forth. What would happen is told first, and done when
that is agreed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ortet.errors import NotFound
from ortet.ids import Oid, from_hex
from ortet.surface import render
from ortet.surface.mcp.answers import (
    Change,
    Commit,
    Deed,
    Loss,
    changes_of,
    commit_of,
    deed_of,
    image_at,
    joined,
    losses_of,
    some,
)
from ortet.surface.mcp.desk import Desk
from ortet.surface.mcp.history import Ref
from ortet.surface.mcp.toolbox import CONFIRMED, MOVES, Agreed, Answer, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ortet.session.outcome import Restored
    from ortet.session.session import Session

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
        done = render.plural(len(self.deeds), "deed")
        deeds = f"not undone, {done} since then:" if self.deeds else ""
        left = render.plural(self.forgotten, "event")
        before = [
            f"would go to {self.to}",
            f"{render.plural(self.changed, 'change')} of files:" if self.changed else "files stay",
            *some(self.changes, self.changed),
            f"{left} of the journal would be left behind" if self.forgotten else "",
        ]
        after = [f"at {self.to}: {self.written} written, {self.removed} removed"]
        told = [
            *(f"not back: {loss}" for loss in self.lost),
            deeds,
            *some(self.deeds),
            *map(render.safe, self.notes),
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
    _branch(desk)
    with desk.writing() as session:
        go = session.undo if way == "undo" else session.redo
        found = go(n, dry_run=True)
        done = agreed.to(found.restored.to)
        if done:
            found = go(n)
        back, head = found.restored, session.head
        steps = [f"{way}: {render.line(f'{one.verb} {one.detail}')}" for one in found.steps]
        return Gone(
            done=done,
            to=commit_of(desk.hub.history.info(from_hex(back.to))),
            head=head.oid if head else "",
            changed=len(found.changes),
            changes=changes_of(found.changes),
            forgotten=max(0, found.events),
            written=back.files.written,
            removed=back.files.removed,
            lost=losses_of(back.files.losses),
            deeds=[deed_of(deed) for deed in back.deeds],
            notes=[*steps, *map(str, back.secrets)],
            confirm="" if done else back.to,
        )


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
    if not agreed.to(target.hex()):
        return _told(desk, target, only)
    with desk.writing() as session:
        done = go(session)
        head = session.head
        return Gone(
            done=True,
            to=commit_of(desk.hub.history.info(target)),
            head=head.oid if head else "",
            changed=done.files.written + done.files.removed,
            changes=[],
            forgotten=0,
            written=done.files.written,
            removed=done.files.removed,
            lost=losses_of(done.files.losses),
            deeds=[deed_of(deed) for deed in done.deeds],
            notes=[*map(str, done.secrets), *map(str, done.environment)],
            confirm="",
        )


def _told(desk: Desk, target: Oid, only: Collection[str] | None) -> Gone:
    from ortet.graph.diff import diff_images

    parts = {"files", "mind", "processes"} if only is None else set(only)
    row, hub = desk.need(), desk.hub
    view = hub.get(row.id)
    image = image_at(desk, target.hex()) if "files" in parts else None
    changes = []
    if image is not None:
        with desk.files() as files:
            if files is not None:
                changes = diff_images(hub.trees, files.image(), image)
    deeds, secrets = hub.since(row.branch, target)
    head = view.head
    return Gone(
        done=False,
        to=commit_of(hub.history.info(target)),
        head=head.oid if head else "",
        changed=len(changes),
        changes=changes_of(changes),
        forgotten=_events_since(desk, target) if "mind" in parts else 0,
        written=0,
        removed=0,
        lost=_lost(desk, target) if "processes" in parts else [],
        deeds=[deed_of(deed) for deed in deeds],
        notes=list(map(str, secrets)),
        confirm=target.hex(),
    )


def _events_since(desk: Desk, target: Oid) -> int:
    """How many events came after a commit, but for those of opening and letting go."""
    from ortet.codec import decode
    from ortet.graph.records import Journal

    hub = desk.hub
    state = hub.history.state(target)
    then = decode(Journal, hub.objects.get(Oid(state.journal))).seq if state.journal else 0
    view = hub.get(desk.need().id)
    return sum(event.kind != "lifecycle" for event in view.events(then))


def _lost(desk: Desk, target: Oid) -> list[Loss]:
    """Programs of the commit that cannot come back to files in place."""
    from ortet.machine.carried import left_behind

    hub = desk.hub
    row = hub.registry.get(desk.need().branch)
    image = image_at(desk, target.hex())
    if row is None or image is None or not image.processes:
        return []
    return losses_of(left_behind(hub.objects, image, row.engine))
