"""Commands init, status, commit, run: the everyday commands of a workspace."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, as_text, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.machines.base import Result
    from ortet.objects.placement import Durability
    from ortet.workspaces.workspace import Workspace, WorkspaceStatus


@verb()
@click.option("--store", metavar="DIR", help="The directory or the URL of the store.")
@click.option(
    "--name", metavar="NAME", help="The name of the workspace; by default that of the directory."
)
def init(call: CliCall, store: str | None, name: str | None) -> None:
    """Make this directory a workspace.

    Writes one file, .ortet, which says where the history is. A second run is harmless.

    Without --store or $ORTET_URL, the history is in your data directory. A URL never contains a
    password: passwords of PostgreSQL are in ~/.pgpass or $PGPASSWORD, keys of a bucket in $AWS_...,
    the token of `ortet serve` in $ORTET_TOKEN. docs/guide/scale-out.md has all of them.

    \b
    Example:
      ortet init
      ortet -C path/to/project init --store /mnt/big/history
      ortet init --store 'postgresql://ortet@db/ortet?bucket=s3://team/ortet'
    """
    from ortet.config.environment import find_usable_pointer, init_url, is_pointer_to
    from ortet.config.pointer_file import write_pointer

    directory = call.cwd
    url = init_url(store, directory)
    _check_directory(url, directory)  # before anything is created
    hub = call.open_hub(url, create=True)
    pointer = find_usable_pointer(directory)
    if pointer is not None and pointer.directory != directory:
        pointer = None
    same_store = pointer is None or is_pointer_to(pointer, hub.url)
    known_name = pointer.workspace if pointer is not None and same_store and name is None else ""
    located = hub.workspaces.locate(known_name, directory)
    try:
        opened = (
            hub.workspaces.reopen(known_name, directory)
            if known_name
            else hub.workspace(directory, name=name)
        )
        with opened as workspace:
            if same_store:
                write_pointer(directory, hub.url, workspace.name)
            head = workspace.head
            answer = {
                "name": workspace.name,
                "directory": str(directory),
                "store": hub.url,
                "head": head.oid if head else None,
            }
    except BaseException:
        existing = hub.workspaces.table.find_at(directory.resolve(), "inplace", "folder")
        if located is None and existing is not None:
            hub.drop(existing.name)
        raise
    if pointer is not None and not same_store:
        call.output.note(f".ortet still names {output.safe(pointer.url)}: remove it to change that")
    call.output.emit(answer, [f"workspace {answer['name']}, history in {output.safe(hub.url)}"])


def _check_directory(url: str, directory: Path) -> None:
    """Check that the directory may be a workspace, and that its pointer may name the store."""
    from ortet.config.environment import cache_directory, config_directory, store_path
    from ortet.config.store_url import check_pointer_url, is_networked, trust_store
    from ortet.workspaces.table import check_outside_store, existing_directory

    place = existing_directory(directory)
    if not is_networked(url):
        check_outside_store(store_path(url), place)
        return
    check_pointer_url(url)
    check_outside_store(cache_directory(), place)
    trust_store(url, config_directory())


@verb()
@workspace_option
def status(call: CliCall, name: str | None) -> None:
    """Show the changes that a commit would record now.

    \b
    Example:
      ortet status
      ortet status -w proj/1 --json
    """
    workspace = call.workspace(name, writes=False)
    with call.output.progress("looking"):
        state = workspace.status()
    data = {
        "name": state.name,
        "engine": state.engine,
        "head": state.head,
        "clean": state.clean,
        "changes": list(map(output.change_data, state.changes)),
        "losses": state.losses,
        "queued": output.fields(call.hub.objects.queued()),
    }
    call.output.emit(data, _status_lines(call, workspace, state))
    call.output.print_losses(state.losses)


def _status_lines(call: CliCall, workspace: Workspace, report: WorkspaceStatus) -> Iterator[str]:
    head = workspace.head
    where = (
        f"at {output.short_id(head.oid)} {output.title(head.message)}" if head else "no commit yet"
    )
    yield f"{report.name} ({report.engine}), {where}".rstrip()
    if report.clean:
        yield "nothing changed since" if head else "nothing to commit"
    yield from output.change_lines(report.changes, call.output.paint)
    if report.engine == "folder" and (live := _live_machine_of(call, workspace)):
        yield f"its machine {live} lives: `-w {live}` means that one"
    yield from output.queued_lines(call.hub.objects.queued())


def _live_machine_of(call: CliCall, workspace: Workspace) -> str:
    """Return the name of the started private machine of a directory, or ""."""
    from ortet.cli.daemon.live_machines import recorded_machines

    known = recorded_machines(call.hub.root)
    for name in sorted(known):
        if known[name].get("directory") == str(workspace.row.directory) and "/" not in name:
            return name
    return ""


@verb()
@click.option(
    "-m", "--message", default="", metavar="TEXT", help="The commit message: what this state is."
)
@click.option("--allow-secrets", is_flag=True, help="Accept content with a known secret.")
@click.option(
    "--durable",
    type=click.Choice(("remote", "local")),
    help="In a shared store: where the commit must be stored.",
)
@workspace_option
def commit(
    call: CliCall,
    message: str,
    *,
    allow_secrets: bool,
    durable: Durability | None,
    name: str | None,
) -> None:
    """Commit the present state of the workspace.

    If nothing changed, no commit is made and the head is shown.

    In a shared store, "--durable local" does not wait for the bucket: until the commit is uploaded,
    other hosts cannot read it, and it is lost with this disk. "--durable remote" waits, also for
    earlier commits.

    \b
    Example:
      ortet commit -m "tests pass"
      ortet commit -m "step 7" --json
      ortet commit --durable remote
    """
    workspace = call.workspace(name)
    before = workspace.head
    began = time.perf_counter()
    with call.output.progress("commit"):
        info = workspace.commit(as_text(message), allow_secrets=allow_secrets, durable=durable)
    took = time.perf_counter() - began
    created = before is None or before.oid != info.oid
    changed = 0 if call.output.quiet or not created else _count(call, before, info)
    data = {
        **output.fields(info),
        "name": workspace.name,
        "created": created,
        "changed": changed,
        "seconds": took,
        "losses": workspace.losses,
    }
    what = f"{changed} changed" if created else "nothing changed"
    if created and not call.output.quiet and (running := program_names(call, info.oid)):
        what += f", running: {', '.join(map(output.safe, running))}"
    tag = call.output.paint(f"[{workspace.name} {output.short_id(info.oid)}]", fg="yellow")
    call.output.emit(
        data, [f"{tag} {output.title(info.message)}  ({what}, {output.format_duration(took)})"]
    )
    call.output.print_losses(workspace.losses)


def program_names(call: CliCall, commit: str) -> list[str]:
    """Return the names of the running programs in a commit."""
    from ortet.ids import Oid, from_hex

    state = call.hub.history.state(from_hex(commit))
    image = call.hub.store.read_image(Oid(state.machine)) if state.machine else None
    if image is None or not image.processes:
        return []
    from ortet.machines.services import running_program_names

    return running_program_names(call.hub.objects, image)


def _count(call: CliCall, before: CommitInfo | None, after: CommitInfo) -> int:
    from ortet.history.diff.tree_diff import diff_images
    from ortet.ids import from_hex

    history = call.hub.history
    old = history.image(from_hex(before.oid)) if before else None
    return len(diff_images(call.hub.trees, old, history.image(from_hex(after.oid))))


@verb(context_settings={"allow_interspersed_args": False})
@workspace_option
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="Kill the command and its children after this time.",
)
@click.option("--env", multiple=True, metavar="K=V", help="Set a variable; may be repeated.")
@click.option(
    "--secret", multiple=True, metavar="NAME", help="Pass a secret to the command; may be repeated."
)
@click.option(
    "--cwd", default="", metavar="DIR", help="The directory of the workspace to start in."
)
@click.option("-i", "--stdin", "stdin", is_flag=True, help="Pass standard input to the command.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    call: CliCall,
    command: tuple[str, ...],
    *,
    name: str | None,
    timeout: float | None,
    env: tuple[str, ...],
    secret: tuple[str, ...],
    cwd: str,
    stdin: bool,
) -> None:
    """Run a command in the workspace and exit with its exit code.

    One word runs in sh, several words are executed directly. The command starts in the top
    directory of the workspace. A time-out ends with 124. Write -- before a command that begins with
    a dash.

    \b
    Example:
      ortet run -- pytest -q
      ortet run -w proj/1 --timeout 60 "make && make test"
    """
    screen = _OutputPrinter(silent=call.output.json)
    result = _runner(call, name, secret)(
        command[0] if len(command) == 1 else list(command),
        env=dict(map(_parse_variable, env)),
        cwd=cwd,
        timeout=timeout,
        stdin=sys.stdin.buffer.read() if stdin else None,
        output=screen.print_output,
        secrets=secret,
    )
    if call.output.json:
        call.output.emit(result)
    elif not screen.has_output:  # a program that could not be started has only a message
        sys.stderr.write(result.stderr)
    if result.timed_out:
        call.output.note(f"killed after {timeout:g} s")
    if result.oom:
        call.output.note("the machine reached its memory limit, and a process was killed")
    call.output.exit_code = result.exit_code


def _runner(call: CliCall, name: str | None, secrets: Sequence[str]) -> Callable[..., Result]:
    """Return a function that runs commands in the workspace, or in its live machine."""
    try:
        return call.workspace(name).run
    except Conflict as error:
        if error.kind != "machine_open":
            raise
        from ortet.cli.daemon import machines

        live = machines.list_live(call.hub.root).get(name or "")
        # The agent runs commands with secrets: it prevents commits meanwhile.
        if live is None or secrets:
            raise
        return live.run


class _OutputPrinter:
    """Prints a command's output as it arrives."""

    def __init__(self, *, silent: bool) -> None:
        self.has_output = False
        self._silent = silent

    def print_output(self, stream: str, data: bytes) -> None:
        self.has_output = True
        if not self._silent:
            target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
            target.write(data)
            target.flush()


def _parse_variable(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise Invalid("bad_env", f"--env {text!r}: write NAME=VALUE")
    return name, value
