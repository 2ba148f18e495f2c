"""Commands undo and redo: undo the last move of a branch, and redo it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from ortet.cli.call import CliCall, verb, workspace_option
from ortet.cli.session_args import session_option
from ortet.cli.terminal import output
from ortet.errors import Invalid
from ortet.ids import OID_BYTES
from ortet.workspaces.undo import UNCOMMITTED_MESSAGE

if TYPE_CHECKING:
    from ortet.sessions.session import Session
    from ortet.workspaces.undo import UndoDirection, UndoResult, UndoStep, UndoUnit
    from ortet.workspaces.workspace import Workspace

_MAX_CHANGES_SHOWN = 20
"""The maximum number of changed files shown. `ortet diff` lists all."""

_F = Callable[..., Any]


def _options(function: _F) -> _F:
    options = [
        click.argument("count", metavar="[N]", type=int, default=1),
        click.option("--dry-run", is_flag=True, help="Only report what would change."),
        session_option,
        workspace_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@verb()
@click.option("--turn", is_flag=True, help="Go back to before the last message of the user.")
@_options
def undo(
    call: CliCall, count: int, *, turn: bool, dry_run: bool, session: str | None, name: str | None
) -> None:
    """Undo the last move of this branch, files and state together.

    The moves are commit, restore, rewind, merge, land and adopt. A move that changed neither files
    nor conversation is not counted. Uncommitted changes count as the first move. Give N to undo
    several at once; `ortet undo` twice undoes two. With --turn, N counts messages of the user.
    Nothing is lost: uncommitted changes are committed first, and `ortet redo` takes an undo back.
    Effects of actions stay, and the command lists them.

    \b
    Example:
      ortet undo
      ortet undo 3 --dry-run
      ortet undo --turn
      ortet undo -s fix-42
    """
    unit: UndoUnit = "turn" if turn else "move"
    if turn and session is None:
        session, name = _session_with_turns(call, name), None
    _undo_or_redo(call, "undo", count, unit, dry_run=dry_run, session=session, name=name)


@verb()
@_options
def redo(
    call: CliCall, count: int, *, dry_run: bool, session: str | None, name: str | None
) -> None:
    """Redo what `ortet undo` took back.

    This is not possible after a new move of the branch.

    \b
    Example:
      ortet redo
      ortet redo 2
    """
    _undo_or_redo(call, "redo", count, "move", dry_run=dry_run, session=session, name=name)


def _session_with_turns(call: CliCall, name: str | None) -> str:
    from ortet.cli.session_args import session_of_workspace

    row = session_of_workspace(call, name)
    if row is None:
        raise Invalid(
            "no_turn", "no session works in this workspace, so it has no turns: leave --turn out"
        )
    return row.id


def _undo_or_redo(
    call: CliCall,
    direction: UndoDirection,
    count: int,
    unit: UndoUnit,
    *,
    dry_run: bool,
    session: str | None,
    name: str | None,
) -> None:
    if count < 1:
        raise Invalid("bad_count", f"cannot {direction} {count} things: give a number from 1")
    if session is not None and name is not None:
        raise Invalid("bad_usage", "a session and a workspace are given: leave -s or -w out")
    result: UndoResult
    if dry_run and session is not None:  # a dry run does not open the session
        where, result = _preview_undo(call, session, direction, count, unit)
        took = 0.0
    else:
        target = _open_target(call, session, name)
        where, began = target.name, time.perf_counter()
        with call.output.progress(direction):
            if unit == "turn":
                result = cast("Session", target).undo(count, by="turn", dry_run=dry_run)
            else:
                result = getattr(target, direction)(count, dry_run=dry_run)
        took = time.perf_counter() - began
    data = {"name": where, "dry_run": dry_run, **_data(result)}
    head = call.output.paint(f"[{where} {output.short_id(result.restored.to)}]", fg="yellow")
    steps_text = "; ".join(map(_step_text, result.steps))
    if dry_run:
        first = f"{head} would {direction} {steps_text}: {_change_counts(result)}"
    else:
        report = output.report_text(result.restored.files)
        did = "undid" if direction == "undo" else "did again"
        first = f"{head} {did} {steps_text}: {report}  ({output.format_duration(took)})"
    call.output.emit(data, [first, *_lines(call, direction, result, dry_run=dry_run)])
    call.output.print_losses(result.restored.files.losses)


def _open_target(call: CliCall, session: str | None, name: str | None) -> Workspace | Session:
    if session is None:
        return call.workspace(name)
    from ortet.cli.session_args import open_session

    return open_session(call, session)


def _preview_undo(
    call: CliCall, session: str, direction: UndoDirection, count: int, unit: UndoUnit
) -> tuple[str, UndoResult]:
    from ortet.cli.session_args import read_session
    from ortet.machines.base import Report
    from ortet.sessions.history.preview import preview_undo
    from ortet.workspaces.results import RestoreResult
    from ortet.workspaces.undo import UndoResult

    view = read_session(call, session)
    preview = preview_undo(view, direction, count, by=unit)
    lost = Report(losses=preview.lost)
    restored = RestoreResult(
        preview.to, lost, preview.deeds, preview.collaborations, [], preview.secrets
    )
    result = UndoResult(
        preview.steps,
        preview.changes,
        restored,
        preview.head,
        preview.uncommitted,
        preview.forgotten,
    )
    return view.name, result


def _data(undone: UndoResult) -> dict[str, Any]:
    restored = output.fields(undone.restored)
    return {
        "oid": restored.pop("to"),
        "was": undone.was,
        "kept": undone.kept,
        "events": undone.events,
        "steps": undone.steps,
        "changes": list(map(output.change_data, undone.changes)),
        **output.fields(restored.pop("files")),
        **restored,
    }


def _change_counts(undone: UndoResult) -> str:
    return output.change_counts(undone.changes)[0]


def _step_text(step: UndoStep) -> str:
    """Return a step in the words of the reflog. A commit id in its detail is shortened."""
    if step.detail == UNCOMMITTED_MESSAGE:
        return UNCOMMITTED_MESSAGE
    detail = output.title(step.detail)
    is_id = len(detail) == 2 * OID_BYTES and not detail.strip("0123456789abcdef")
    return f"{step.verb} {output.short_id(detail)}" if is_id else f"{step.verb} {detail!r}"


def _lines(call: CliCall, direction: str, undone: UndoResult, *, dry_run: bool) -> Iterator[str]:
    yield from output.change_lines(undone.changes[:_MAX_CHANGES_SHOWN], call.output.paint)
    if len(undone.changes) > _MAX_CHANGES_SHOWN:
        was, to = output.short_id(undone.was), output.short_id(undone.restored.to)
        yield (
            f"  and {len(undone.changes) - _MAX_CHANGES_SHOWN} more: `ortet diff {was} {to}` "
            "lists them"
        )
    if undone.events > 0:
        yield f"the mind goes back by {output.plural(undone.events, 'event')}"
    if undone.kept and undone.steps[0].detail != UNCOMMITTED_MESSAGE:
        where = "would be kept in a commit" if dry_run else f"is in {output.short_id(undone.was)}"
        yield f"what was not committed {where}"
    effects = undone.restored.deeds
    if effects:
        names = ", ".join(sorted({output.safe(effect.name) for effect in effects}))
        stay = "stays" if len(effects) == 1 else "stay"
        yield f"{output.plural(len(effects), 'effect')} done since {stay} done: {names}"
    yield from (output.safe(str(one)) for one in undone.restored.secrets)
    if not dry_run and direction == "undo":
        yield "`ortet redo` goes forth again"
