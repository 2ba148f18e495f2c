"""Tools that move a session: restore, rewind, undo, redo.

Each one first returns a preview, and moves the session after a confirmation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ortet.cli.terminal import output
from ortet.errors import NotFound
from ortet.ids import Oid, from_hex
from ortet.mcp_server.context import McpContext
from ortet.mcp_server.tool import (
    CONFIRMED,
    MOVES,
    Change,
    CommitItem,
    Confirmation,
    Deed,
    LossItem,
    ToolResult,
    changes_of,
    commit_of,
    effect_of,
    join_lines,
    limit_lines,
    losses_of,
    tool,
)
from ortet.mcp_server.tools.history import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ortet.sessions.history.preview import RestorePreview
    from ortet.sessions.session import Session
    from ortet.workspaces.results import RestoreResult
    from ortet.workspaces.undo import UndoStep

Confirm = Annotated[
    str,
    Meta(
        description="Leave it out in the first call: the answer says what would happen, and which "
        "id to give here to confirm it. Show the answer to the user before you confirm."
    ),
]
Parts = Annotated[
    list[Literal["files", "mind", "processes"]] | None,
    Meta(description="Only these parts; by default all."),
]


class RestoreToolResult(ToolResult, frozen=True):
    """The result of a restore, or its preview if `done` is false. A preview changes nothing:
    `changes` are the changes of the present files, and `confirm` is the value to call again with.
    Uncommitted changes are committed first. `deeds`: effects since the commit, which stay done.
    `forgotten`: the number of events that the session state no longer includes. `lost`: parts that
    cannot be restored.
    """

    done: bool
    to: CommitItem
    head: str
    changed: int
    changes: list[Change]
    forgotten: int
    written: int
    removed: int
    lost: list[LossItem]
    deeds: list[Deed]
    notes: list[str]
    confirm: str

    def __str__(self) -> str:
        done = output.plural(len(self.deeds), "effect")
        effects = f"not undone, {done} since then:" if self.deeds else ""
        left = output.plural(self.forgotten, "event")
        before = [
            f"would go to {self.to}",
            f"{output.plural(self.changed, 'change')} of files:" if self.changed else "files stay",
            *limit_lines(self.changes, self.changed),
            f"{left} of the journal would be left behind" if self.forgotten else "",
        ]
        after = [f"at {self.to}: {self.written} written, {self.removed} removed"]
        lines = [
            *(f"not back: {loss}" for loss in self.lost),
            effects,
            *limit_lines(self.deeds),
            *map(output.safe, self.notes),
        ]
        if self.done:
            return join_lines(
                *after, *lines, "undo goes back to before this (after an undo, redo does)"
            )
        return join_lines(
            *before,
            *lines,
            "nothing was done. What is uncommitted would be committed first, so nothing would be "
            f"lost. To do it, call again with confirm={self.confirm}",
        )


@tool(CONFIRMED)
def restore(
    context: McpContext,
    *,
    agreed: Confirmation,
    ref: Ref,
    only: Parts = None,
    confirm: Confirm = "",
) -> RestoreToolResult:
    """Restore the state and files of a commit. The present files are committed first, then
    overwritten. Needs confirmation: the first call only reports what would change and what cannot
    be restored.
    """
    del confirm
    branch = _require_branch(context)
    target = context.call.resolve(ref, branch)

    def go(session: Session) -> RestoreResult:
        return session.restore(target.hex(), only=only)

    return _restore_if_confirmed(context, target, go, agreed, only)


@tool(MOVES)
def rewind(
    context: McpContext,
    *,
    agreed: Confirmation,
    n: Annotated[int, Meta(description="The number of commits to go back.", ge=1)] = 1,
    confirm: Confirm = "",
) -> RestoreToolResult:
    """Restore the n-th commit before the head of this branch, state and files together. Needs
    confirmation, as restore does.
    """
    del confirm
    target = context.call.resolve(f"HEAD~{n}", _require_branch(context))
    return _restore_if_confirmed(
        context, target, lambda session: session.restore(target.hex()), agreed, None
    )


Count = Annotated[int, Meta(description="The number of moves.", ge=1)]


@tool(MOVES)
def undo(
    context: McpContext, *, agreed: Confirmation, n: Count = 1, confirm: Confirm = ""
) -> RestoreToolResult:
    """Undo the last move of this branch: first uncommitted changes, then commits, restores and
    rewinds, one at a time. Nothing is lost, because redo takes an undo back. Needs confirmation, as
    restore does.
    """
    del confirm
    return _undo_or_redo(context, "undo", n, agreed)


@tool(MOVES)
def redo(
    context: McpContext, *, agreed: Confirmation, n: Count = 1, confirm: Confirm = ""
) -> RestoreToolResult:
    """Redo what undo took back, unless the branch has moved since. Needs confirmation, as restore
    does.
    """
    del confirm
    return _undo_or_redo(context, "redo", n, agreed)


def _undo_or_redo(
    context: McpContext, verb: Literal["undo", "redo"], n: int, confirmation: Confirmation
) -> RestoreToolResult:
    from ortet.sessions.history.preview import preview_undo

    _require_branch(context)
    preview = preview_undo(context.hub.get(context.require_session().id), verb, n)
    if not confirmation.allows(preview.to):
        return _preview(context, preview, verb)
    with context.open_session() as session:
        result = session.undo(n) if verb == "undo" else session.redo(n)
        back, head = result.restored, session.head
        return RestoreToolResult(
            done=True,
            to=commit_of(context.hub.history.info(from_hex(back.to))),
            head=head.oid if head else "",
            changed=len(result.changes),
            changes=changes_of(result.changes),
            forgotten=result.events,
            written=back.files.written,
            removed=back.files.removed,
            lost=losses_of(back.files.losses),
            deeds=[effect_of(effect) for effect in back.deeds],
            notes=[*_step_notes(verb, result.steps), *map(str, back.secrets)],
            confirm="",
        )


def _step_notes(verb: str, steps: list[UndoStep]) -> list[str]:
    return [f"{verb}: {output.single_line(f'{one.verb} {one.detail}')}" for one in steps]


def _require_branch(context: McpContext) -> str:
    branch = context.require_session().branch
    if context.hub.refs.get(branch) is None:
        raise NotFound("no_commit", "there is no commit yet to go back to: commit first")
    return branch


def _restore_if_confirmed(
    context: McpContext,
    target: Oid,
    move: Callable[[Session], RestoreResult],
    confirmation: Confirmation,
    only: Collection[str] | None,
) -> RestoreToolResult:
    """Move the session if exactly this commit was confirmed, else return a preview."""
    from ortet.sessions.history.preview import preview_restore

    preview = preview_restore(context.hub.get(context.require_session().id), target, only)
    if not confirmation.allows(target.hex()):
        return _preview(context, preview)
    with context.open_session() as session:
        done = move(session)
        head = session.head
        return RestoreToolResult(
            done=True,
            to=commit_of(context.hub.history.info(target)),
            head=head.oid if head else "",
            changed=done.files.written + done.files.removed,
            changes=[],
            forgotten=preview.forgotten,
            written=done.files.written,
            removed=done.files.removed,
            lost=losses_of(done.files.losses),
            deeds=[effect_of(effect) for effect in done.deeds],
            notes=[*map(str, done.secrets), *map(str, done.environment)],
            confirm="",
        )


def _preview(context: McpContext, preview: RestorePreview, verb: str = "") -> RestoreToolResult:
    """Return what a move would do. Opens nothing."""
    return RestoreToolResult(
        done=False,
        to=commit_of(context.hub.history.info(from_hex(preview.to))),
        head=preview.head,
        changed=len(preview.changes),
        changes=changes_of(preview.changes),
        forgotten=preview.forgotten,
        written=0,
        removed=0,
        lost=losses_of(preview.lost),
        deeds=[effect_of(effect) for effect in preview.deeds],
        notes=[*_step_notes(verb, preview.steps), *map(str, preview.secrets)],
        confirm=preview.to,
    )
