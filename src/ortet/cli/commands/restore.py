"""Commands restore and rewind: go back to a commit, in a way that can be undone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Invalid, NotFound
from ortet.ids import from_hex
from ortet.workspaces.results import ALL_PARTS

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.ids import Oid
    from ortet.journal.state.records import Effect
    from ortet.machines.base import Report
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.results import UnavailableSecret
    from ortet.workspaces.workspace import Workspace

_MAX_CHANGES_SHOWN = 20
"""The maximum number of changed files shown. `ortet diff` lists all."""


dry_run_option = click.option("--dry-run", is_flag=True, help="Only report what would change.")


@verb()
@click.argument("ref")
@click.argument("paths", nargs=-1)
@click.option(
    "--only",
    metavar="PARTS",
    help="The parts to restore, separated by commas: files, mind, processes.",
)
@click.option("--to", metavar="DIR", help="Write the files into a new directory instead.")
@click.option(
    "--restart", is_flag=True, help="Start services that ran then and cannot be restored."
)
@dry_run_option
@workspace_option
def restore(
    call: CliCall,
    ref: str,
    paths: tuple[str, ...],
    *,
    only: str | None,
    to: str | None,
    restart: bool,
    dry_run: bool,
    name: str | None,
) -> None:
    """Restore a commit: its files, and the mind of a session here.

    Restores everything, only some parts, or only PATHS (then the branch does not move). Uncommitted
    changes are committed first, so `ortet restore HEAD@{1}` undoes a restore.

    \b
    Example:
      ortet restore 1a2b3c4d
      ortet restore HEAD~1 src/parser.py
      ortet restore HEAD~2 --only files
      ortet restore proj/2 --to ../second-try
    """
    if to is not None:
        if paths:
            raise Invalid("bad_usage", "--to writes the whole workspace: leave the paths out")
        if restart or dry_run:
            raise Invalid("bad_usage", "--to makes a new directory: leave --restart, --dry-run out")
        _restore_to_directory(call, ref, to, name)
        return
    parts, session = _parts(only), None
    if parts is not None and not paths:
        session = _session_for(call, parts, name)
    if session is not None:
        target = call.resolve(ref, session.branch)
        _restore_session(call, session, target, parts, restart=restart, dry_run=dry_run)
        return
    workspace = call.workspace(name)
    target = workspace.resolve(ref)
    inside = [call.workspace_relative(path, name) for path in paths]
    if dry_run:
        _preview_workspace(call, workspace, "restore", target, inside)
        return
    began = time.perf_counter()
    forgotten = 0 if inside else workspace.files.branch.participant.count_forgotten(target)
    with call.output.progress("restore"):
        report = workspace.restore(ref, only=parts, paths=inside or None, restart=restart)
    _print_restored(call, workspace, "restored", report, began, target, forgotten)


def _session_for(call: CliCall, parts: list[str], name: str | None) -> SessionRow | None:
    """Return the session of the workspace, which restores parts. None if there is no session."""
    from ortet.cli.session_args import session_of_workspace

    row = session_of_workspace(call, name)
    if row is None and "mind" in parts:
        raise Invalid(
            "nothing_to_restore",
            "no session works in this workspace, so it has no mind: write --only files",
        )
    return row


def _restore_session(
    call: CliCall,
    row: SessionRow,
    target: Oid,
    parts: list[str] | None,
    *,
    restart: bool,
    dry_run: bool,
) -> None:
    """Restore parts of a session. The branch does not move unless the mind does."""
    from ortet.cli.session_args import open_session, read_session
    from ortet.ids import to_hex
    from ortet.sessions.history.preview import count_forgotten_events, preview_restore

    if dry_run:
        preview = preview_restore(read_session(call, row.id), target, parts)
        _print_preview(
            call,
            row.name,
            "restore",
            target,
            preview.changes,
            forgotten=preview.forgotten,
            uncommitted=preview.uncommitted,
            effects=preview.deeds,
            secrets=preview.secrets,
            parts=parts,
        )
        call.output.print_losses(preview.lost)
        return
    session, began = open_session(call, row.id), time.perf_counter()
    mind = parts is None or "mind" in parts
    forgotten = count_forgotten_events(session, target) if mind else 0
    with call.output.progress("restore"):
        found = session.restore(to_hex(target), only=parts, restart=restart)
    _print_moved(
        call,
        session.name,
        session.head,
        "restored",
        found.files,
        began,
        effects=found.deeds,
        secrets=found.secrets,
        forgotten=forgotten,
        parts=parts,
    )


def _preview_workspace(
    call: CliCall, workspace: Workspace, verb_: str, target: Oid, paths: Sequence[str] = ()
) -> None:
    """Print what a restore of a workspace would change."""
    from ortet.history.diff.tree_diff import diff_images

    files, store = workspace.files, workspace.store
    changes = diff_images(store.trees, files.current_image(), files.branch.image_at(target))
    if paths and "." not in paths:
        below = tuple(f"{path}/" for path in paths)
        changes = [one for one in changes if one.path in paths or one.path.startswith(below)]
    participant = files.branch.participant
    effects, secrets = ([], []) if paths else participant.unrestorable_since(target)
    _print_preview(
        call,
        workspace.name,
        verb_,
        target,
        changes,
        forgotten=0 if paths else participant.count_forgotten(target),
        uncommitted=not workspace.status().clean,
        effects=effects,
        secrets=secrets,
        parts=["files"] if paths else None,
    )


def _print_preview(
    call: CliCall,
    name: str,
    verb_: str,
    target: Oid,
    changes: Sequence[TreeChange],
    *,
    forgotten: int,
    uncommitted: bool,
    effects: Sequence[Effect],
    secrets: Sequence[UnavailableSecret],
    parts: list[str] | None,
) -> None:
    """Print a dry run."""
    oid = target.hex()
    data = {
        "name": name,
        "oid": oid,
        "dry_run": True,
        "parts": parts,
        "changes": list(map(output.change_data, changes)),
        "uncommitted": uncommitted,
        "events": forgotten,
        "deeds": [output.fields(effect) for effect in effects],
        "secrets": [output.fields(one) for one in secrets],
    }
    tag = call.output.paint(f"[{name} {output.short_id(oid)}]", fg="yellow")
    lines = [f"{tag} would {verb_}: {output.change_counts(changes)[0]}"]
    lines += output.change_lines(changes[:_MAX_CHANGES_SHOWN], call.output.paint)
    if len(changes) > _MAX_CHANGES_SHOWN:
        lines.append(f"  and {len(changes) - _MAX_CHANGES_SHOWN} more")
    lines += _mind_lines(forgotten, parts)
    if uncommitted:
        lines.append("what was not committed would be kept in a commit")
    lines += _effect_lines(effects, secrets)
    call.output.emit(data, lines)


def _mind_lines(forgotten: int, parts: list[str] | None) -> list[str]:
    """Return what a restore does to the conversation, and what it leaves alone."""
    lines = []
    if forgotten > 0:
        lines.append(f"the mind goes back by {output.plural(forgotten, 'event')}")
    if parts is not None:
        kept = [part for part in ("files", "mind", "processes") if part not in parts]
        lines.append(f"left as it is: {', '.join(kept)}")
    return lines


def _effect_lines(effects: Sequence[Effect], secrets: Sequence[UnavailableSecret]) -> list[str]:
    lines = []
    if effects:
        names = ", ".join(sorted({output.safe(effect.name) for effect in effects}))
        stay = "stays" if len(effects) == 1 else "stay"
        lines.append(f"{output.plural(len(effects), 'effect')} done since {stay} done: {names}")
    return lines + [output.safe(str(one)) for one in secrets]


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
    if parts is not None and not set(parts) <= ALL_PARTS:
        raise Invalid(
            "nothing_to_restore",
            f"--only {only}: a commit holds files, mind and processes; write --only files, or "
            "leave it out",
        )
    return parts


def _print_restored(  # noqa: PLR0917 - in the order one says it
    call: CliCall,
    workspace: Workspace,
    verb_: str,
    report: Report,
    started: float,
    target: Oid,
    forgotten: int,
) -> None:
    effects, secrets = workspace.files.branch.participant.unrestorable_since(target)
    _print_moved(
        call,
        workspace.name,
        workspace.head,
        verb_,
        report,
        started,
        effects=effects,
        secrets=secrets,
        forgotten=forgotten,
        parts=None,
    )


def _print_moved(  # noqa: PLR0917 - in the order one says it
    call: CliCall,
    name: str,
    head: CommitInfo | None,
    verb_: str,
    report: Report,
    started: float,
    *,
    effects: Sequence[Effect],
    secrets: Sequence[UnavailableSecret],
    forgotten: int,
    parts: list[str] | None,
) -> None:
    oid = head.oid if head else ""
    data = {
        "name": name,
        "oid": oid,
        "state": head.state if head else None,
        **output.fields(report),
        "parts": parts,
        "events": forgotten,
        "deeds": [output.fields(effect) for effect in effects],
        "secrets": [output.fields(one) for one in secrets],
    }
    tag = call.output.paint(f"[{name} {output.short_id(oid)}]", fg="yellow")
    took = output.format_duration(time.perf_counter() - started)
    lines = [f"{tag} {verb_}: {output.report_text(report)}  ({took})"]
    lines += _mind_lines(forgotten, parts)
    lines += _effect_lines(effects, secrets)
    call.output.emit(data, lines)
    call.output.print_losses(report.losses)


@verb()
@click.argument("count", metavar="[N]", type=int, default=1)
@dry_run_option
@workspace_option
def rewind(call: CliCall, count: int, *, dry_run: bool, name: str | None) -> None:
    """Restore the N-th commit before the head of this branch.

    N is 1 by default. Uncommitted changes are committed first, so `ortet restore HEAD@{1}` undoes a
    rewind.

    \b
    Example:
      ortet rewind
      ortet rewind 2 --dry-run
      ortet rewind 3 -w proj/1
    """
    if count < 1:
        raise Invalid("bad_count", f"cannot rewind {count} commits: give a number from 1")
    workspace = call.workspace(name)
    head = workspace.head
    if head is None:
        raise NotFound("no_commit", f"{workspace.name!r} has no commit yet: commit first")
    target = workspace.store.history.nth_parent(from_hex(head.oid), count)
    if dry_run:
        _preview_workspace(call, workspace, "rewind", target)
        return
    forgotten = workspace.files.branch.participant.count_forgotten(target)
    began = time.perf_counter()
    with call.output.progress("rewind"):
        report = workspace.rewind(count)
    _print_restored(call, workspace, "rewound", report, began, target, forgotten)
