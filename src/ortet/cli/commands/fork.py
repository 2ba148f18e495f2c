"""Commands fork, merge, land, drop: try several ways in parallel and keep the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli.call import CliCall, as_text, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Conflict, Refused

if TYPE_CHECKING:
    from ortet.history.merge.text_merge import Favor
    from ortet.ids import Oid
    from ortet.sessions.history.merge import SessionMergeResult
    from ortet.workspaces.merge import MergeResult
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

favor_option = click.option(
    "--favor",
    type=click.Choice(["ours", "theirs"]),
    help="The side that wins a conflict.",
)


@contextmanager
def _translate_favor() -> Iterator[None]:
    """Name the option --favor in error messages instead of the Python argument."""
    from ortet.workspaces.merge import FAVOR_HINT

    try:
        yield
    except Conflict as error:
        message = error.message.replace(FAVOR_HINT, "choose --favor ours or --favor theirs")
        raise Conflict(error.kind, message, **error.details) from error


@verb()
@click.argument("ref", required=False)
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="The number of copies; by default 1.",
)
@click.option("--files", is_flag=True, help="Do not copy the state of the session that works here.")
@workspace_option
def fork(call: CliCall, ref: str | None, count: int, *, files: bool, name: str | None) -> None:
    """Make private copies, each a branch of its own.

    Copies the present state, which is committed first, or the commit REF. A copy has the files and,
    if this host supports it, the processes, which then live on (`ortet ps`). If a session works
    here, each copy is a session too, with its state. Work in a copy with `ortet run -w NAME`. The
    original directory is not changed until `ortet land NAME`.

    \b
    Example:
      ortet fork -n 3
      ortet fork HEAD~2
      ortet run -w proj/1 -- make test
    """
    with call.output.progress("fork"):
        if ref is None:
            copies = _fork_workspace(call, call.workspace(name), count, files=files)
            data = [_copy(copy) for copy in copies]
        else:
            row = call.row(name)
            with call.hub.workspaces.private_workspace(ref) as private:
                if private is not None:
                    private.commit("fork point")
            data = _fork_commit(call, row, call.resolve(ref, row.name), count)
    width = max(len(one["name"]) for one in data)
    lines = [f"{one['name']:<{width}}  {one['engine']}  {one['path'] or ''}" for one in data]
    call.output.emit(data, [line.rstrip() for line in lines])
    _print_not_copied(call, data[0])


def _fork_commit(call: CliCall, row: WorkspaceRow, oid: Oid, count: int) -> list[dict[str, Any]]:
    """Fork a commit. Forks with processes stay alive in the host agent, if it may be used."""
    from ortet.cli.daemon.fast_path import is_agent_off

    state = call.hub.history.state(oid)
    image = call.hub.store.read_image(call.hub.store.image_oid(oid)) if state.machine else None
    if (
        image is None
        or not image.processes
        or is_agent_off()
        or call.hub.workspaces.fork_engine(row, oid) != "criu"
    ):
        return [_copy(copy) for copy in call.hub.workspaces.fork(row, None, oid, count)]
    if call.daemon_cache is not None:
        return fork_live(call, row, oid, count)
    from ortet.cli.daemon import machines

    words = ["machine", "fork", "-w", row.name, "-n", str(count), oid.hex()]
    copies: list[dict[str, Any]] = machines.run_in_agent(call, row.name, words, start=True)[
        "copies"
    ]
    return copies


def fork_live(call: CliCall, row: WorkspaceRow, oid: Oid, count: int) -> list[dict[str, Any]]:
    """Fork inside the host agent, and keep the machines of the forks alive."""
    copies = call.hub.workspaces.fork(row, None, oid, count)
    for copy in copies:
        assert call.daemon_cache is not None
        call.daemon_cache.keep_machine_alive(copy)
    return [_copy(copy) for copy in copies]


def _print_not_copied(call: CliCall, copy: dict[str, Any]) -> None:
    """Print which programs do not run in the forks, and which connections were lost."""
    from ortet.machines.base import Loss
    from ortet.machines.services import service_losses

    if copy["engine"] == "criu":
        call.output.print_losses(msgspec.convert(copy["losses"], thread_safe_struct(list[Loss])))
    if copy["engine"] == "criu" or not copy["head"] or call.output.json:
        return
    point = call.hub.refs.resolve(copy["head"])
    if not call.hub.history.state(point).machine:
        return
    lost = service_losses(call.hub.objects, call.hub.history.image(point), copy["engine"])
    for loss in lost:
        hint = f"`ortet start {copy['name']}` starts it there"
        call.output.note(f"not in the copies: {output.safe(loss.path) or 'programs'} ({hint})")


def _fork_workspace(
    call: CliCall, workspace: Workspace, count: int, *, files: bool
) -> list[Workspace]:
    try:
        session = None if files else call.hub.internals.open_branch_session(workspace.name)
    except Refused as error:
        if error.kind != "lease_held":
            raise
        message = f"{error.message}; `ortet fork --files` copies the files alone"
        raise Refused(error.kind, message, **error.details) from error
    if session is None:
        return workspace.fork(count)
    workspace.close()  # the session has it open now
    return [kid.machine for kid in session.fork(count)]


def _copy(copy: Workspace) -> dict[str, Any]:
    head = copy.head
    return {
        "name": copy.name,
        "engine": copy.engine,
        "path": _path(copy),
        "head": head.oid if head else None,
        "losses": copy.losses,
    }


def _path(copy: Workspace) -> str | None:
    """Return where the files are after this process ends. The mount of an overlay ends with it."""
    return str(copy.path) if copy.engine == "folder" else None


@verb()
@click.argument("other")
@favor_option
@click.option("-m", "--message", metavar="TEXT", help="The message of the merge commit.")
@click.option("--dry-run", is_flag=True, help="Only report what would change.")
@workspace_option
def merge(
    call: CliCall,
    other: str,
    *,
    favor: Favor | None,
    message: str | None,
    dry_run: bool,
    name: str | None,
) -> None:
    """Merge the changes of another branch or commit.

    Uncommitted changes of a fork that is named here are committed first. Text files are merged line
    by line. If both sides changed the same lines, nothing is changed: the conflicts are listed, and
    the exit code is 5. If a session works here, the facts of the other side's agent are merged too.

    \b
    Example:
      ortet merge proj/1
      ortet merge proj/2 --favor theirs
    """
    workspace = call.workspace(name)
    text = None if message is None else as_text(message)
    result: MergeResult | SessionMergeResult
    with call.output.progress("merge"), _translate_favor():
        session = None if dry_run else call.hub.internals.open_branch_session(workspace.name)
        if session is None:
            result = workspace.merge(other, message=text, favor=favor, dry_run=dry_run)
        else:
            workspace.close()  # the session has it open now
            result = session.merge(other, message=text or "", favor=favor)
    data = {
        "name": workspace.name,
        **_merged_knowledge(result),
        "oid": result.commit.oid if result.commit else None,
        "state": result.commit.state if result.commit else None,
        "conflicts": result.conflicts,
        "dry_run": dry_run,
        "up_to_date": result.up_to_date,
    }
    lines = [output.conflict_text(conflict) for conflict in result.conflicts]
    for pair in data.get("contradictions", ()):
        ours, theirs = output.safe(pair["ours"]), output.safe(pair["theirs"])
        lines.append(f"about {output.safe(pair['about'])}: ours {ours!r}, theirs {theirs!r}")
    if result.up_to_date:
        lines.append(f"nothing to merge: {workspace.name} has all of {output.safe(other)} already")
    elif result.commit:
        tag = call.output.paint(
            f"[{workspace.name} {output.short_id(result.commit.oid)}]", fg="yellow"
        )
        lines.append(f"{tag} {output.title(result.commit.message)}")
    elif not lines:
        lines.append(f"{other} merges without conflict")
    call.output.emit(data, lines)


def _merged_knowledge(result: MergeResult | SessionMergeResult) -> dict[str, Any]:
    """Return the facts, decisions and artifacts of a merge, for JSON."""
    from ortet.sessions.history.merge import SessionMergeResult

    if not isinstance(result, SessionMergeResult):
        return {}
    return {
        "facts": [fact.text for fact in (*result.facts, *result.lessons)],
        "decisions": [decision.text for decision in result.decisions],
        "artifacts": [f"{made.name}@{made.version}" for made in result.artifacts],
        "contradictions": [
            {"about": pair.about, "ours": pair.ours.text, "theirs": pair.theirs.text}
            for pair in result.contradictions
        ],
    }


@verb()
@click.argument("fork_name", metavar="[NAME]", required=False)
@favor_option
@workspace_option
def land(call: CliCall, fork_name: str | None, favor: Favor | None, name: str | None) -> None:
    """Apply the changes of a fork to the original directory.

    All changes are applied or none. After a conflict the directory is unchanged, and the exit code
    is 5.

    \b
    Example:
      ortet land proj/1
    """
    workspace = call.workspace(name if fork_name is None else fork_name)
    with call.output.progress("land"), _translate_favor():
        report = workspace.land(favor=favor)
    data = {"name": workspace.name, **output.fields(report)}
    call.output.emit(data, [f"landed {workspace.name}: {output.report_text(report)}"])
    call.output.print_losses(report.losses)


@verb()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--branch", is_flag=True, help="Delete the branch too.")
@click.option("--discard", is_flag=True, help="Do not commit uncommitted changes first.")
def drop(call: CliCall, names: tuple[str, ...], branch: bool, discard: bool) -> None:
    """Delete workspaces with their private files.

    Branches and commits stay, unless --branch is given. Uncommitted changes of a fork are committed
    first, unless --discard is given. The directory of a workspace in place is not changed.

    \b
    Example:
      ortet drop proj/2 proj/3
    """
    for name in names:
        call.hub.workspaces.table.need(name)  # check all names before the first is dropped
    for name in dict.fromkeys(names):
        call.hub.drop(name, discard=discard)
        if branch and call.hub.refs.get(name):
            call.hub.refs.delete(name, actor=call.hub.store.author)
    call.output.emit({"dropped": list(names)}, [f"dropped {name}" for name in names])
