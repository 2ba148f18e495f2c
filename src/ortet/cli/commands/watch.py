"""Command watch: commit a workspace automatically when its files have settled."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, as_text, verb, workspace_option
from ortet.cli.terminal import output
from ortet.cli.watcher import WatchedCommit, Watcher, WatchStop, WatchTiming
from ortet.errors import Invalid, OrtetError

if TYPE_CHECKING:
    from ortet.workspaces.workspace import Workspace

_DEFAULT_TIMING = WatchTiming()
_SECONDS_RANGE = click.FloatRange(min=0)


@verb()
@click.option("-C", "directory", metavar="DIR", help="The workspace of this directory.")
@click.option(
    "--settle",
    type=_SECONDS_RANGE,
    default=_DEFAULT_TIMING.settle,
    show_default=True,
    metavar="SECONDS",
    help="Commit when nothing has changed for this time.",
)
@click.option(
    "--at-most",
    type=_SECONDS_RANGE,
    default=_DEFAULT_TIMING.at_most,
    show_default=True,
    metavar="SECONDS",
    help="Commit after this time even if changes do not end.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=_DEFAULT_TIMING.every,
    show_default=True,
    metavar="SECONDS",
    help="Scan at this interval if the system reports no changes.",
)
@click.option(
    "-m",
    "--message",
    default="",
    metavar="TEXT",
    help="The message of each commit; by default the changes.",
)
@click.option("--once", is_flag=True, help="End after the first commit.")
@workspace_option
def watch(
    call: CliCall,
    *,
    directory: str | None,
    settle: float,
    at_most: float,
    every: float,
    message: str,
    once: bool,
    name: str | None,
) -> None:
    """Commit a workspace automatically when its files have settled.

    Paths in `.ortetignore` do not count. An obstacle (a full disk, a missing directory, a secret in
    a file) is reported, and the commit is tried again until it works. Ctrl-C or SIGTERM commits the
    present state and ends with 0. With --json each commit is one object on a line.

    \b
    Example:
      ortet watch
      ortet watch --settle 0.5 -m "while I work" &
      ortet watch --once && make test
    """
    if directory is not None:
        call.enter(directory)
    stop = WatchStop()
    with stop.handle_signals():
        call.open_watching_hub()
        workspace = call.workspace(name)
        if workspace.row.files != "inplace":
            raise Invalid(
                "not_inplace",
                f"{workspace.name!r} is a private copy, which only changes by what you run in it: "
                f"`ortet commit -w {workspace.name}` records that",
            )
        watcher = Watcher(
            call.hub.workspaces,
            workspace,
            stop,
            timing=WatchTiming(settle, at_most, every),
            message=as_text(message),
            on_error=lambda error: _print_retry(call, error),
        )
        where = output.safe(str(workspace.row.directory))
        call.output.note(f"watching {where}: a commit when nothing has changed for {settle:g} s")
        for made in watcher.commits():
            _print_commit(call, workspace, made)
            if once:
                break


def _print_retry(call: CliCall, error: OrtetError) -> None:
    call.output.print_error(error)
    call.output.note("trying again until it works")
    sys.stderr.flush()


def _print_commit(call: CliCall, workspace: Workspace, commit: WatchedCommit) -> None:
    info = commit.info
    data = {
        **output.fields(info),
        "name": workspace.name,
        "created": True,
        "changed": len(commit.changes),
        "seconds": commit.seconds,
        "losses": commit.losses,
    }
    tag = call.output.paint(f"[{workspace.name} {output.short_id(info.oid)}]", fg="yellow")
    clock = time.strftime("%H:%M:%S")
    took = output.format_duration(commit.seconds)
    count = f"{len(commit.changes)} changed"
    call.output.emit(data, [f"{clock} {tag} {output.title(info.message)}  ({count}, {took})"])
    call.output.print_losses(commit.losses)
    sys.stdout.flush()
