"""Commands log, show, diff: look at history."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Invalid, NotFound, OrtetError

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.records import TreeEntry
    from ortet.ids import Oid

PATCH_COLOURS = {"+": "green", "-": "red"}


@verb()
@click.argument("ref", default="HEAD")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show only the newest N."
)
@click.option("--graph", is_flag=True, help="Draw the graph of branches and merges.")
@workspace_option
def log(call: CliCall, ref: str, *, limit: int | None, graph: bool, name: str | None) -> None:
    """List the commits of a branch, newest first.

    \b
    Example:
      ortet log
      ortet log --graph -n 20
      ortet log proj/1 --json
    """
    try:
        start = call.resolve(ref, name)
    except NotFound as error:
        raise _hint_at_journal(call, ref, error) from None
    commits = call.hub.history.log(start, limit=limit)
    names = _refs_by_commit(call)
    if call.output.json:
        call.output.emit(
            [{**output.fields(info), "refs": names.get(info.oid, [])} for info in commits]
        )
        return
    if graph:
        call.output.emit(None, _graph_lines(call, list(commits), names))
    else:
        call.output.emit(None, (_commit_line(call, info, names) for info in commits))


def _hint_at_journal(call: CliCall, ref: str, error: NotFound) -> NotFound:
    """Point to `ortet journal` if `ref` is a session without commits."""
    try:
        call.hub.get(ref)
    except OrtetError:
        return error
    text = f"the session {ref!r} has no commits: `ortet journal {ref}` lists what happened in it"
    return NotFound(error.kind, text, **error.details)


def _refs_by_commit(call: CliCall) -> dict[str, list[str]]:
    """Return the branches and tags of each commit."""
    names: dict[str, list[str]] = {}
    for head in call.hub.refs.branches():
        names.setdefault(head.oid.hex(), []).append(head.name)
    for head in call.hub.refs.tags():
        names.setdefault(head.oid.hex(), []).append(f"tag:{head.name}")
    return names


def _commit_line(call: CliCall, info: CommitInfo, names: dict[str, list[str]]) -> str:
    oid = call.output.paint(output.short_id(info.oid), fg="yellow")
    here = names.get(info.oid)
    refs = call.output.paint(f"({', '.join(here)}) ", fg="green") if here else ""
    return f"{oid}  {output.format_time(info.time)}  {refs}{output.title(info.message)}".rstrip()


def _graph_lines(
    call: CliCall, commits: list[CommitInfo], names: dict[str, list[str]]
) -> Iterator[str]:
    from ortet.history.graph_layout import draw

    known = {info.oid: info for info in commits}
    for drawing, oid in draw([(info.oid, info.parents) for info in commits]):
        text = _commit_line(call, known[oid], names) if oid else ""
        yield f"{drawing}  {text}".rstrip()


@verb()
@click.argument("ref", default="HEAD")
@click.argument("path", required=False)
@workspace_option
def show(call: CliCall, ref: str, path: str | None, *, name: str | None) -> None:
    """Show a commit and what it changed, or the content of one file in it.

    \b
    Example:
      ortet show HEAD~1
      ortet show proj/1 src/main.py > theirs.py
    """
    oid = call.resolve(ref, name)
    if path is not None:
        _print_file(call, oid, call.workspace_relative(path, name))
        return
    from ortet.cli.commands.workspace import program_names

    info = call.hub.history.info(oid)
    changes = _diff_commits(call, f"{info.oid}^" if info.parents else None, info.oid)
    refs = _refs_by_commit(call).get(info.oid, [])
    running = program_names(call, info.oid)
    data = {
        **output.fields(info),
        "refs": refs,
        "running": running,
        "changes": list(map(output.change_data, changes)),
    }
    call.output.emit(data, _commit_block(call, info, refs, running, changes))


def _commit_block(
    call: CliCall,
    info: CommitInfo,
    refs: list[str],
    running: list[str],
    changes: Iterable[TreeChange],
) -> Iterator[str]:
    yield call.output.paint(f"commit {info.oid}", fg="yellow")
    yield f"state   {info.state}"
    yield from (f"parent  {parent}" for parent in info.parents)
    yield f"author  {output.safe(info.author)}"
    yield f"time    {output.format_time(info.time)}"
    if refs:
        yield f"refs    {', '.join(refs)}"
    if running:
        yield f"running {', '.join(map(output.safe, running))}"
    yield ""
    yield from (f"    {output.safe(line)}" for line in info.message.splitlines() or [""])
    yield ""
    yield from output.change_lines(changes, call.output.paint)


def _print_file(call: CliCall, oid: Oid, path: str) -> None:
    from ortet.objects.blobs import read_file

    entry = _entry(call, oid, path)
    if call.output.json:
        call.output.emit({"path": path, "size": entry.size, "oid": entry.data.hex()})
        return
    with call.output.paged_output():
        sys.stdout.flush()
        for piece in read_file(call.hub.objects, entry):
            sys.stdout.buffer.write(piece)


def _entry(call: CliCall, oid: Oid, path: str) -> TreeEntry:
    root = call.hub.history.image(oid).root
    entry = call.hub.trees.resolve(root, os.fsencode(os.path.normpath(path)).strip(b"/"))
    commit = output.short_id(oid.hex())
    if entry is None:
        raise NotFound("no_path", f"{path} is not in {commit}: give a path from the top of it")
    if not entry.is_file:
        raise Invalid(
            "not_a_file", f"{path} is no file: `ortet restore {commit} --to DIR` writes everything"
        )
    return entry


@verb()
@click.argument("old", default="HEAD")
@click.argument("new", required=False)
@click.option("-p", "--patch", is_flag=True, help="Show the changed lines of text files.")
@click.option("--stat", is_flag=True, help="Show only the number of changes.")
@workspace_option
def diff(
    call: CliCall, old: str, new: str | None, *, patch: bool, stat: bool, name: str | None
) -> None:
    """Show the differences of two commits, or of one and the present files.

    \b
    Example:
      ortet diff
      ortet diff HEAD~3 -p
      ortet diff proj/1 proj/2 --stat
    """
    if new is None:
        workspace = call.workspace(name, writes=False)
        with call.output.progress("looking"):
            changes = workspace.diff(old)
    else:
        changes = _diff_commits(call, call.resolve(old, name).hex(), call.resolve(new, name).hex())
        call.warn_uncommitted(old, new)
    if call.output.json:
        call.output.emit(
            [output.change_data(found, call.hub.objects, patch=patch) for found in changes]
        )
    elif stat:
        call.output.emit(None, output.change_counts(changes))
    elif patch:
        call.output.emit(None, _patches(call, changes))
    else:
        call.output.emit(None, output.change_lines(changes, call.output.paint))


def _diff_commits(call: CliCall, old: str | None, new: str) -> list[TreeChange]:
    from ortet.history.diff.tree_diff import diff_images

    before = None if old is None else call.hub.history.image(call.resolve(old))
    return diff_images(call.hub.trees, before, call.hub.history.image(call.resolve(new)))


def _patches(call: CliCall, changes: Iterable[TreeChange]) -> Iterator[str]:
    """Yield patch lines: safe and coloured on a terminal, unchanged in a pipe, for `patch`."""
    raw = not call.output.on_terminal
    for change in changes:
        head = True  # True until the first hunk
        for line in output.patch_text(change, call.hub.objects).removesuffix("\n").split("\n"):
            head = head and not line.startswith("@@")
            shown = line if raw else output.safe(line, keep="\t")
            yield call.output.paint(shown, bold=True) if head else _hunk_line(call, shown)


def _hunk_line(call: CliCall, line: str) -> str:
    """Colour a line of a hunk. Text after the line numbers is not coloured, like in git."""
    if not line.startswith("@@"):
        return (
            call.output.paint(line, fg=PATCH_COLOURS[line[:1]])
            if line[:1] in PATCH_COLOURS
            else line
        )
    numbers, mark, rest = line[2:].partition("@@")
    return call.output.paint(f"@@{numbers}{mark}", fg="cyan") + rest
