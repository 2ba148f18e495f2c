"""undo and redo: take back the last thing that moved a branch, and do it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ortet.cli import output
from ortet.cli.call import Call, verb, which
from ortet.cli.session_args import session_option
from ortet.errors import Invalid
from ortet.ids import OID_BYTES
from ortet.workspaces.undo import WORK

if TYPE_CHECKING:
    from ortet.sessions.session import Session
    from ortet.workspaces.undo import Step, Undone, Way
    from ortet.workspaces.workspace import Workspace

_MOST = 20
"""Changes of files that are listed; `ortet diff` lists all."""

_F = Callable[..., Any]


def _options(function: _F) -> _F:
    options = [
        click.argument("count", metavar="[N]", type=int, default=1),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        session_option,
        which,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@verb()
@_options
def undo(call: Call, count: int, *, dry_run: bool, session: str | None, name: str | None) -> None:
    """Go back to before the last thing that moved this branch.

    Files and mind go together.

    A commit, restore, rewind, merge, land or adopt is undone; files that are not committed are the
    first thing to be. N of them at once; `ortet undo` twice undoes two. Nothing is lost: what was
    not committed is committed first, and `ortet redo` goes forth again. Deeds stay done, and it
    says which.

    \b
    Example:
      ortet undo
      ortet undo 3 --dry-run
      ortet undo -s fix-42
    """
    _travel(call, "undo", count, dry_run=dry_run, session=session, name=name)


@verb()
@_options
def redo(call: Call, count: int, *, dry_run: bool, session: str | None, name: str | None) -> None:
    """Do again what `ortet undo` took back.

    That can be done as long as nothing else was done since.

    \b
    Example:
      ortet redo
      ortet redo 2
    """
    _travel(call, "redo", count, dry_run=dry_run, session=session, name=name)


def _travel(
    call: Call, way: Way, count: int, *, dry_run: bool, session: str | None, name: str | None
) -> None:
    if count < 1:
        raise Invalid("bad_count", f"cannot {way} {count} things: give a number from 1")
    if session is not None and name is not None:
        raise Invalid("bad_usage", "a session or a workspace? leave -s or -w out")
    found: Undone
    if dry_run and session is not None:  # to tell, it is not opened
        where, found = _foreseen(call, session, way, count)
        took = 0.0
    else:
        place = _place(call, session, name)
        where, began = place.name, time.perf_counter()
        with call.progress(way):
            found = getattr(place, way)(count, dry_run=dry_run)
        took = time.perf_counter() - began
    data = {"name": where, "dry_run": dry_run, **_data(found)}
    head = call.paint(f"[{where} {output.short(found.restored.to)}]", fg="yellow")
    said = "; ".join(map(_told, found.steps))
    if dry_run:
        first = f"{head} would {way} {said}: {_tally(found)}"
    else:
        report = output.report(found.restored.files)
        did = "undid" if way == "undo" else "did again"
        first = f"{head} {did} {said}: {report}  ({output.seconds(took)})"
    call.emit(data, [first, *_lines(call, way, found, dry_run=dry_run)])
    call.losses(found.restored.files.losses)


def _place(call: Call, session: str | None, name: str | None) -> Workspace | Session:
    if session is None:
        return call.workspace(name)
    from ortet.cli.session_args import write

    return write(call, session)


def _foreseen(call: Call, session: str, way: Way, count: int) -> tuple[str, Undone]:
    from ortet.cli.session_args import read
    from ortet.machines.base import Report
    from ortet.sessions.history.preview import foresee_undo
    from ortet.sessions.results import Restored
    from ortet.workspaces.undo import Undone

    view = read(call, session)
    told = foresee_undo(view, way, count)
    lost = Report(losses=told.lost)
    restored = Restored(told.to, lost, told.deeds, told.collaborations, [], told.secrets)
    found = Undone(told.steps, told.changes, restored, told.head, told.uncommitted, told.forgotten)
    return view.name, found


def _data(found: Undone) -> dict[str, Any]:
    restored = output.fields(found.restored)
    return {
        "oid": restored.pop("to"),
        "was": found.was,
        "kept": found.kept,
        "events": found.events,
        "steps": found.steps,
        "changes": list(map(output.change, found.changes)),
        **output.fields(restored.pop("files")),
        **restored,
    }


def _tally(found: Undone) -> str:
    return output.tally(found.changes)[0]


def _told(step: Step) -> str:
    """A step in the words of the reflog; of one that says where it went, only the verb."""
    if step.detail == WORK:
        return WORK
    detail = output.title(step.detail)
    is_id = len(detail) == 2 * OID_BYTES and not detail.strip("0123456789abcdef")
    return f"{step.verb} {output.short(detail)}" if is_id else f"{step.verb} {detail!r}"


def _lines(call: Call, way: str, found: Undone, *, dry_run: bool) -> Iterator[str]:
    yield from output.change_lines(found.changes[:_MOST], call.paint)
    if len(found.changes) > _MOST:
        was, to = output.short(found.was), output.short(found.restored.to)
        yield f"  and {len(found.changes) - _MOST} more: `ortet diff {was} {to}` lists them"
    if found.events > 0:
        yield f"the mind goes back by {output.plural(found.events, 'event')}"
    if found.kept and found.steps[0].detail != WORK:
        where = "would be kept in a commit" if dry_run else f"is in {output.short(found.was)}"
        yield f"what was not committed {where}"
    deeds = found.restored.deeds
    if deeds:
        names = ", ".join(sorted({output.safe(deed.name) for deed in deeds}))
        stay = "stays" if len(deeds) == 1 else "stay"
        yield f"{output.plural(len(deeds), 'deed')} done since {stay} done: {names}"
    yield from (output.safe(str(one)) for one in found.restored.secrets)
    if not dry_run and way == "undo":
        yield "`ortet redo` goes forth again"
