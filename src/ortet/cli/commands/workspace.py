"""init, status, commit, run: the everyday verbs of a workspace."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortet.cli import output
from ortet.cli.call import Call, as_text, verb, which
from ortet.errors import Conflict, Invalid

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.machines.base import Result
    from ortet.objects.store import Durable
    from ortet.workspaces.workspace import Status, Workspace


@verb()
@click.option("--store", metavar="DIR", help="Keep history in DIR, or in servers, by their URL.")
@click.option("--name", metavar="NAME", help="Call the workspace so, not like the directory.")
def init(call: Call, store: str | None, name: str | None) -> None:
    """Make this directory a workspace.

    Leaves one file, .ortet, that says where its history is. Running it again is harmless.

    Without --store or $ORTET_URL, history is in your data directory. An address never holds a
    password: those of PostgreSQL are in ~/.pgpass or $PGPASSWORD, of a bucket in $AWS_..., of
    `ortet serve` in $ORTET_TOKEN. docs/guide/scale-out.md has all of them.

    \b
    Example:
      ortet init
      ortet -C path/to/project init --store /mnt/big/history
      ortet init --store 'postgresql://ortet@db/ortet?bucket=s3://team/ortet'
    """
    from ortet.config.environment import init_url, names_store, usable_pointer
    from ortet.config.pointer_file import write_pointer

    directory = call.here
    url = init_url(store, directory)
    _check_place(url, directory)  # before anything is made
    hub = call.open_hub(url, create=True)
    pointer = usable_pointer(directory)
    if pointer is not None and pointer.directory != directory:
        pointer = None
    ours = pointer is None or names_store(pointer, hub.url)
    said = pointer.workspace if pointer is not None and ours and name is None else ""
    known = hub.locate(said, directory)
    try:
        opened = hub.reopen(said, directory) if said else hub.workspace(directory, name=name)
        with opened as workspace:
            if ours:
                write_pointer(directory, hub.url, workspace.name)
            head = workspace.head
            answer = {
                "name": workspace.name,
                "directory": str(directory),
                "store": hub.url,
                "head": head.oid if head else None,
            }
    except BaseException:
        made = hub.registry.at(directory.resolve(), "inplace", "folder")
        if known is None and made is not None:
            hub.drop(made.name)
        raise
    if pointer is not None and not ours:
        call.note(f".ortet still names {output.safe(pointer.url)}: remove it to change that")
    call.emit(answer, [f"workspace {answer['name']}, history in {output.safe(hub.url)}"])


def _check_place(url: str, directory: Path) -> None:
    """That the directory may be a workspace of this store, and its pointer may name it."""
    from ortet.config.environment import cache_place, config_place, store_path
    from ortet.config.store_url import check_writable, choose, is_elsewhere
    from ortet.workspaces.places import existing, keep_apart

    place = existing(directory)
    if not is_elsewhere(url):
        keep_apart(store_path(url), place)
        return
    check_writable(url)
    keep_apart(cache_place(), place)
    choose(url, config_place())


@verb()
@which
def status(call: Call, name: str | None) -> None:
    """Show what a commit would record now.

    \b
    Example:
      ortet status
      ortet status -w proj/1 --json
    """
    workspace = call.workspace(name, writes=False)
    with call.progress("looking"):
        found = workspace.status()
    data = {
        "name": found.name,
        "engine": found.engine,
        "head": found.head,
        "clean": found.clean,
        "changes": list(map(output.change, found.changes)),
        "losses": found.losses,
        "queued": output.fields(call.hub.objects.queued()),
    }
    call.emit(data, _status_lines(call, workspace, found))
    call.losses(found.losses)


def _status_lines(call: Call, workspace: Workspace, found: Status) -> Iterator[str]:
    head = workspace.head
    at = f"at {output.short(head.oid)} {output.title(head.message)}" if head else "no commit yet"
    yield f"{found.name} ({found.engine}), {at}".rstrip()
    if found.clean:
        yield "nothing changed since" if head else "nothing to commit"
    yield from output.change_lines(found.changes, call.paint)
    if found.engine == "folder" and (live := _machine_here(call, workspace)):
        yield f"its machine {live} lives: `-w {live}` means that one"
    yield from output.queued_lines(call.hub.objects.queued())


def _machine_here(call: Call, workspace: Workspace) -> str:
    """The private machine of a directory, if it was started."""
    from ortet.cli.daemon.live_machines import remembered

    known = remembered(call.hub.root)
    for name in sorted(known):
        if known[name].get("directory") == str(workspace.row.directory) and "/" not in name:
            return name
    return ""


@verb()
@click.option("-m", "--message", default="", metavar="TEXT", help="What this state is.")
@click.option("--allow-secrets", is_flag=True, help="Also if it holds a secret that is known.")
@click.option(
    "--durable", type=click.Choice(("remote", "local")), help="Of a shared store: where it must be."
)
@which
def commit(
    call: Call,
    message: str,
    *,
    allow_secrets: bool,
    durable: Durable | None,
    name: str | None,
) -> None:
    """Record the present state of everything in the workspace.

    With nothing changed it returns the head and records nothing.

    Of a store that hosts share, "--durable local" does not wait for its bucket: until the commit is
    uploaded other hosts cannot read it, and it is lost with this disk. "--durable remote" waits,
    also for commits before it.

    \b
    Example:
      ortet commit -m "tests pass"
      ortet commit -m "step 7" --json
      ortet commit --durable remote
    """
    workspace = call.workspace(name)
    before = workspace.head
    began = time.perf_counter()
    with call.progress("commit"):
        info = workspace.commit(as_text(message), allow_secrets=allow_secrets, durable=durable)
    took = time.perf_counter() - began
    created = before is None or before.oid != info.oid
    changed = 0 if call.quiet or not created else _count(call, before, info)
    data = {
        **output.fields(info),
        "name": workspace.name,
        "created": created,
        "changed": changed,
        "seconds": took,
        "losses": workspace.losses,
    }
    what = f"{changed} changed" if created else "nothing changed"
    if created and not call.quiet and (running := programs(call, info.oid)):
        what += f", running: {', '.join(map(output.safe, running))}"
    tag = call.paint(f"[{workspace.name} {output.short(info.oid)}]", fg="yellow")
    call.emit(data, [f"{tag} {output.title(info.message)}  ({what}, {output.seconds(took)})"])
    call.losses(workspace.losses)


def programs(call: Call, commit: str) -> list[str]:
    """The names of the programs that a commit holds."""
    from ortet.ids import Oid, from_hex

    state = call.hub.history.state(from_hex(commit))
    image = call.hub.read_image(Oid(state.machine)) if state.machine else None
    if image is None or not image.processes:
        return []
    from ortet.machines.services import programs_of

    return programs_of(call.hub.objects, image)


def _count(call: Call, before: CommitInfo | None, after: CommitInfo) -> int:
    from ortet.history.diff.tree_diff import diff_images
    from ortet.ids import from_hex

    history = call.hub.history
    old = history.image(from_hex(before.oid)) if before else None
    return len(diff_images(call.hub.trees, old, history.image(from_hex(after.oid))))


@verb(context_settings={"allow_interspersed_args": False})
@which
@click.option(
    "--timeout", type=float, metavar="SECONDS", help="Kill it and its children after this."
)
@click.option("--env", multiple=True, metavar="K=V", help="Set a variable; may be repeated.")
@click.option("--secret", multiple=True, metavar="NAME", help="Give it a secret; may be repeated.")
@click.option("--cwd", default="", metavar="DIR", help="Start in DIR of the workspace.")
@click.option("-i", "--stdin", "stdin", is_flag=True, help="Give it our standard input.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    call: Call,
    command: tuple[str, ...],
    *,
    name: str | None,
    timeout: float | None,
    env: tuple[str, ...],
    secret: tuple[str, ...],
    cwd: str,
    stdin: bool,
) -> None:
    """Run a command in the workspace and exit as it did.

    One word is given to sh, several are executed as they are. It starts in the workspace's top
    directory. A time-out ends with 124. Write -- before a command that begins with a dash.

    \b
    Example:
      ortet run -- pytest -q
      ortet run -w proj/1 --timeout 60 "make && make test"
    """
    screen = _Screen(silent=call.json)
    result = _runner(call, name, secret)(
        command[0] if len(command) == 1 else list(command),
        env=dict(map(_pair, env)),
        cwd=cwd,
        timeout=timeout,
        stdin=sys.stdin.buffer.read() if stdin else None,
        output=screen.show,
        secrets=secret,
    )
    if call.json:
        call.emit(result)
    elif not screen.used:  # what could not be started has no streams, only a message
        sys.stderr.write(result.stderr)
    if result.timed_out:
        call.note(f"killed after {timeout:g} s")
    if result.oom:
        call.note("the machine reached its memory limit, and a process was killed")
    call.exit_code = result.exit_code


def _runner(call: Call, name: str | None, secrets: Sequence[str]) -> Callable[..., Result]:
    """What runs commands in a workspace, or in the machine of it that lives in the host agent."""
    try:
        return call.workspace(name).run
    except Conflict as error:
        if error.kind != "machine_open":
            raise
        from ortet.cli import machines

        one = machines.living(call.hub.root).get(name or "")
        if one is None or secrets:  # then the agent runs it: it knows when not to commit
            raise
        return one.run


class _Screen:
    """Passes a command's output on as it comes."""

    def __init__(self, *, silent: bool) -> None:
        self.used = False
        self._silent = silent

    def show(self, stream: str, data: bytes) -> None:
        self.used = True
        if not self._silent:
            target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
            target.write(data)
            target.flush()


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise Invalid("bad_env", f"--env {text!r}: write NAME=VALUE")
    return name, value
