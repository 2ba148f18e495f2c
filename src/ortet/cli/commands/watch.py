"""watch: commit a workspace by itself, whenever its files have settled."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from ortet.cli import output
from ortet.cli.call import Call, as_text, verb, which
from ortet.cli.watcher import Made, Pace, Stop, Watcher
from ortet.errors import Invalid, OrtetError

if TYPE_CHECKING:
    from ortet.workspaces.workspace import Workspace

_PACE = Pace()
_SECONDS = click.FloatRange(min=0)


@verb()
@click.option("-C", "directory", metavar="DIR", help="The workspace of this directory.")
@click.option(
    "--settle",
    type=_SECONDS,
    default=_PACE.settle,
    show_default=True,
    metavar="SECONDS",
    help="Commit when nothing has changed for so long.",
)
@click.option(
    "--at-most",
    type=_SECONDS,
    default=_PACE.at_most,
    show_default=True,
    metavar="SECONDS",
    help="Where changes never end, commit after so long.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=_PACE.every,
    show_default=True,
    metavar="SECONDS",
    help="Look so often where the system does not tell of changes.",
)
@click.option(
    "-m", "--message", default="", metavar="TEXT", help="Of each commit; else what changed."
)
@click.option("--once", is_flag=True, help="End after one commit.")
@which
def watch(
    call: Call,
    *,
    directory: str | None,
    settle: float,
    at_most: float,
    every: float,
    message: str,
    once: bool,
    name: str | None,
) -> None:
    """Commit a workspace by itself, whenever its files have settled.

    What `.ortetignore` names does not count. What is in the way (a full disk, a directory that is
    gone, a secret in a file) is told, and tried again until it works. Ctrl-C, or SIGTERM, commits
    what is there and ends with 0. With --json each commit is one object on a line.

    \b
    Example:
      ortet watch
      ortet watch --settle 0.5 -m "while I work" &
      ortet watch --once && make test
    """
    if directory is not None:
        call.enter(directory)
    stop = Stop()
    with stop.heard():
        call.stay()
        workspace = call.workspace(name)
        if workspace.row.files != "inplace":
            raise Invalid(
                "not_inplace",
                f"{workspace.name!r} is a private copy, which only changes by what you run in it: "
                f"`ortet commit -w {workspace.name}` records that",
            )
        watcher = Watcher(
            workspace,
            stop,
            pace=Pace(settle, at_most, every),
            message=as_text(message),
            trouble=lambda error: _tell(call, error),
        )
        where = output.safe(str(workspace.row.directory))
        call.note(f"watching {where}: a commit when nothing has changed for {settle:g} s")
        for made in watcher.commits():
            _show(call, workspace, made)
            if once:
                break


def _tell(call: Call, error: OrtetError) -> None:
    call.fail(error)
    call.note("trying again until it works")
    sys.stderr.flush()


def _show(call: Call, workspace: Workspace, made: Made) -> None:
    info = made.info
    data = {
        **output.fields(info),
        "name": workspace.name,
        "created": True,
        "changed": len(made.changes),
        "seconds": made.seconds,
        "losses": made.losses,
    }
    tag = call.paint(f"[{workspace.name} {output.short(info.oid)}]", fg="yellow")
    clock = time.strftime("%H:%M:%S")
    took = output.seconds(made.seconds)
    count = f"{len(made.changes)} changed"
    call.emit(data, [f"{clock} {tag} {output.title(info.message)}  ({count}, {took})"])
    call.losses(made.losses)
    sys.stdout.flush()
