"""Commands branch, tag, reflog: names of commits and their history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid
from ortet.history.refs import ref_text

if TYPE_CHECKING:
    from ortet.backends.base import Head
    from ortet.history.refs import RefKind


@verb()
@click.argument("name", required=False)
@click.argument("ref", required=False)
@click.option("-d", "--delete", "delete", metavar="NAME", help="Delete a branch.")
@click.option("-m", "--rename", "rename", nargs=2, metavar="OLD NEW", help="Rename a branch.")
def branch(
    call: CliCall,
    name: str | None,
    ref: str | None,
    delete: str | None,
    rename: tuple[str, str] | None,
) -> None:
    """List branches and their workspaces; make, delete or rename one.

    A new branch points to REF, by default HEAD. A deleted branch stays in the reflog.

    \b
    Example:
      ortet branch
      ortet branch before-refactoring HEAD~1
      ortet branch -m proj/1 good-idea
      ortet branch -d before-refactoring
    """
    _check_single_action(name, delete, rename)
    if name is not None:
        _create(call, name, ref, "branch")
    elif delete is not None:
        from ortet.hub import branches

        oid = branches.delete(call.hub.internals.session_manager, delete).hex()
        call.output.emit(
            {"deleted": delete, "oid": oid}, [f"deleted {delete}, was {output.short_id(oid)}"]
        )
    elif rename is not None:
        from ortet.hub import branches

        oid = branches.rename(call.hub.internals.session_manager, *rename).hex()
        call.output.emit({"name": rename[1], "was": rename[0], "oid": oid}, [f"now {rename[1]}"])
    else:
        _list_branches(call)


@verb()
@click.argument("name", required=False)
@click.argument("ref", required=False)
@click.option("-d", "--delete", "delete", metavar="NAME", help="Delete a tag.")
@click.option(
    "-w", "--workspace", metavar="NAME", help="HEAD is the head of this workspace, such as proj/1."
)
def tag(
    call: CliCall, name: str | None, ref: str | None, *, delete: str | None, workspace: str | None
) -> None:
    """List tags; make or delete one. A tag is a name that does not move.

    The tags of a store are for all workspaces in it.

    \b
    Example:
      ortet tag green HEAD
      ortet tag golden -w proj-live
      ortet restore green
      ortet tag -d green
    """
    _check_single_action(name, delete)
    if name is not None:
        _create(call, name, ref, "tag", workspace)
    elif delete is not None:
        oid = call.hub.refs.delete(delete, kind="tag", actor=call.hub.store.author).hex()
        call.output.emit(
            {"deleted": delete, "oid": oid}, [f"deleted {delete}, was {output.short_id(oid)}"]
        )
    else:
        call.output.paged = True
        tags = [_head(call, head) for head in call.hub.refs.tags()]
        call.output.emit(tags, output.table(map(_cells, tags)))


@verb()
@click.argument("name", metavar="[BRANCH]", required=False)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show only the newest N."
)
def reflog(call: CliCall, name: str | None, limit: int | None) -> None:
    """Show the moves of a branch, newest first.

    The first column can be used wherever a commit is expected, even after the branch was deleted.

    \b
    Example:
      ortet reflog
      ortet restore 'HEAD@{1}'
    """
    if name is None:
        name = call.branch() or call.row().name
    ref_text(name)
    ops = call.hub.refs.reflog(name) or call.hub.refs.reflog(name, kind="tag")
    if not ops:
        call.resolve(name)  # raises an error with similar names
    data = [
        {
            "ref": f"{name}@{{{number}}}",
            "oid": op.new.hex() if op.new else None,
            "was": op.old.hex() if op.old else None,
            "verb": op.verb,
            "time": op.time,
            "actor": op.actor,
            "detail": op.detail,
        }
        for number, op in enumerate(ops[:limit])
    ]
    rows = [
        (
            f"{name}@{{{number}}}",
            output.short_id(op.new.hex()) if op.new else "-",
            output.format_time(op.time),
            op.verb,
            output.title(op.detail),
        )
        for number, op in enumerate(ops[:limit])
    ]
    call.output.emit(data, output.table(rows))


def _check_single_action(*actions: object) -> None:
    if sum(thing is not None for thing in actions) > 1:
        raise Invalid("bad_usage", "create, delete and rename exclude each other: give one of them")


def _create(
    call: CliCall, name: str, ref: str | None, kind: RefKind, workspace: str | None = None
) -> None:
    branch = call.row(workspace).name if workspace else None
    oid = call.resolve("HEAD" if ref is None else ref, branch)
    try:
        call.hub.refs.create(name, oid, kind=kind, actor=call.hub.store.author)
    except Conflict as error:
        existing = call.hub.refs.get(name, kind=kind)
        if existing is None:
            raise
        info = call.hub.history.info(existing.oid)
        what = (
            f"{error.message} (it is {output.short_id(info.oid)}, {output.title(info.message)!r})"
        )
        raise Conflict(error.kind, what, **error.details) from error
    text = oid.hex()
    call.output.emit({"name": name, "oid": text}, [f"{name} is {output.short_id(text)}"])


def _list_branches(call: CliCall) -> None:
    call.output.paged = True
    current = call.branch()
    heads = {head.name: head for head in call.hub.refs.branches()}
    rows = {row.name: row for row in call.hub.workspaces.table.all()}
    data, lines = [], []
    for name in sorted(heads.keys() | rows.keys()):
        head, row = heads.get(name), rows.get(name)
        branch = (
            _head(call, head) if head else {"name": name, "oid": None, "message": "no commit yet"}
        )
        data.append(
            {
                **branch,
                "current": name == current,
                "engine": row.engine if row else None,
                "files": row.files if row else None,
                "directory": str(row.directory) if row else None,
            }
        )
        place = f"{row.engine} {output.safe(str(row.directory))}" if row else ""
        mark = "*" if name == current else " "
        lines.append((f"{mark} {name}", *_cells(branch)[1:3], place, _cells(branch)[3]))
    call.output.emit(data, output.table(lines))


def _cells(ref: dict[str, Any]) -> tuple[str, str, str, str]:
    moment = output.format_time(ref["time"]) if "time" in ref else ""
    return ref["name"], output.short_id(ref["oid"] or "-"), moment, output.title(ref["message"])


def _head(call: CliCall, head: Head) -> dict[str, Any]:
    commit = call.hub.history.read(head.oid)
    return {
        "name": head.name,
        "oid": head.oid.hex(),
        "time": commit.time,
        "message": commit.message,
    }
