"""Commands restore and rewind: go back to a commit, in a way that can be undone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Invalid
from ortet.ids import from_hex

if TYPE_CHECKING:
    from ortet.ids import Oid
    from ortet.machines.base import Report
    from ortet.workspaces.workspace import Workspace


@verb()
@click.argument("ref")
@click.argument("paths", nargs=-1)
@click.option(
    "--only", metavar="PARTS", help="The parts to restore, separated by commas: files, processes."
)
@click.option("--to", metavar="DIR", help="Write the files into a new directory instead.")
@click.option(
    "--restart", is_flag=True, help="Start services that ran then and cannot be restored."
)
@workspace_option
def restore(
    call: CliCall,
    ref: str,
    paths: tuple[str, ...],
    *,
    only: str | None,
    to: str | None,
    restart: bool,
    name: str | None,
) -> None:
    """Restore the files of a commit.

    Restores the whole workspace, or only PATHS (then the branch does not move). Uncommitted changes
    are committed first, so `ortet restore HEAD@{1}` undoes a restore.

    \b
    Example:
      ortet restore 1a2b3c4d
      ortet restore HEAD~1 src/parser.py
      ortet restore proj/2 --to ../second-try
    """
    if to is not None:
        if paths:
            raise Invalid("bad_usage", "--to writes the whole workspace: leave the paths out")
        if restart:
            raise Invalid("bad_usage", "nothing runs in a new directory: leave --restart out")
        _restore_to_directory(call, ref, to, name)
        return
    workspace = call.workspace(name)
    parts, target = _parts(only), workspace.resolve(ref)
    began = time.perf_counter()
    with call.output.progress("restore"):
        inside = [call.workspace_relative(path, name) for path in paths] or None
        report = workspace.restore(ref, only=parts, paths=inside, restart=restart)
    _print_restored(call, workspace, "restored", report, began, target)


def _restore_to_directory(call: CliCall, ref: str, to: str, name: str | None) -> None:
    oid = call.resolve(ref, name).hex()
    call.warn_uncommitted(ref)
    began = time.perf_counter()
    with call.output.progress("restore") as progress:
        report = call.hub.restore(oid, to, progress=progress)
    data = {"oid": oid, "path": os.path.abspath(to), **output.fields(report)}
    took = output.format_duration(time.perf_counter() - began)
    line = f"{output.short_id(oid)} in {output.safe(to)}: {output.report_text(report)}  ({took})"
    call.output.emit(data, [line])
    call.output.print_losses(report.losses)


def _parts(only: str | None) -> list[str] | None:
    parts = None if only is None else [part.strip() for part in only.split(",")]
    if parts is not None and not set(parts) <= {"files", "processes"}:
        raise Invalid(
            "nothing_to_restore",
            f"--only {only}: a workspace holds files and processes; write --only files, or leave "
            "it out",
        )
    return parts


def _print_restored(  # noqa: PLR0917 - in the order one says it
    call: CliCall, workspace: Workspace, verb_: str, report: Report, started: float, target: Oid
) -> None:
    effects, secrets = workspace.files.branch.participant.unrestorable_since(target)
    head = workspace.head
    oid = head.oid if head else ""
    data = {
        "name": workspace.name,
        "oid": oid,
        "state": head.state if head else None,
        **output.fields(report),
        "deeds": [output.fields(effect) for effect in effects],
        "secrets": [output.fields(one) for one in secrets],
    }
    tag = call.output.paint(f"[{workspace.name} {output.short_id(oid)}]", fg="yellow")
    took = output.format_duration(time.perf_counter() - started)
    lines = [f"{tag} {verb_}: {output.report_text(report)}  ({took})"]
    if effects:
        names = ", ".join(sorted({output.safe(effect.name) for effect in effects}))
        stay = "stays" if len(effects) == 1 else "stay"
        lines.append(f"{output.plural(len(effects), 'effect')} done since {stay} done: {names}")
    lines += [output.safe(str(one)) for one in secrets]
    call.output.emit(data, lines)
    call.output.print_losses(report.losses)


@verb()
@click.argument("count", metavar="[N]", type=int, default=1)
@workspace_option
def rewind(call: CliCall, count: int, name: str | None) -> None:
    """Restore the N-th commit before the head of this branch.

    N is 1 by default. Uncommitted changes are committed first, so `ortet restore HEAD@{1}` undoes a
    rewind.

    \b
    Example:
      ortet rewind
      ortet rewind 3 -w proj/1
    """
    if count < 1:
        raise Invalid("bad_count", f"cannot rewind {count} commits: give a number from 1")
    workspace = call.workspace(name)
    began = time.perf_counter()
    with call.output.progress("rewind"):
        report = workspace.rewind(count)
    head = workspace.head
    assert head is not None  # a rewind always ends at a commit
    _print_restored(call, workspace, "rewound", report, began, from_hex(head.oid))
