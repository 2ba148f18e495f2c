"""Commands attach and cp: a terminal in a live machine, and copies of files in and out."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from ortet.cli.daemon.machines import LiveMachineInfo
    from ortet.machines.control.client import InitClient
    from ortet.machines.jobs import Job

_SHELL = ["/bin/bash", "-i"]


@verb()
@click.argument("machine", metavar="[NAME]", required=False)
@click.option(
    "--shell", default="main", metavar="SHELL", help="The name of the shell; by default main."
)
def attach(call: CliCall, machine: str | None, shell: str) -> None:
    """Connect this terminal to a shell of a live machine.

    The shell is started at first use. It keeps running when you leave with control-], or with ~. at
    the beginning of a line. It is part of every commit if the engine saves processes.

    \b
    Example:
      ortet attach
      ortet attach proj-live/1 --shell build
    """
    from ortet.cli.daemon import machines
    from ortet.cli.terminal import attached
    from ortet.workspaces.programs import check_job

    attached.check_terminal()
    live = machines.find_or_start(call, machine)
    job = _find_or_start_shell(live, check_job(shell))
    call.output.note(f"{live.name}, shell {shell}: control-] or ~. leaves it running")
    code = attached.attach(job)
    if code is None:
        call.output.note(f"left {live.name}: `ortet attach {live.name}` comes back")
    else:
        call.output.note(f"the shell ended with {code}")
        call.output.exit_code = code


def _find_or_start_shell(machine: LiveMachineInfo, name: str) -> Job:
    from ortet.cli.terminal import attached
    from ortet.machines.command import build_environment

    client = machine.connect()
    for job in client.jobs():
        if job.name == name and job.code is None:
            if job.tty is None:
                raise Conflict("not_a_shell", f"{name!r} is no shell: `ortet logs {name}` shows it")
            return client.job(name)
    mark = os.urandom(8).hex()
    return client.spawn(
        name,
        _SHELL,
        kind="shell",
        env=build_environment({"TERM": os.environ.get("TERM", "xterm-256color")}, mark),
        cwd=machine.directory,
        tty=attached.terminal_size(),
        mark=mark,
    )


@verb()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def cp(call: CliCall, source: str, target: str) -> None:
    """Copy a file or directory into a live machine, or out of it.

    One of the two arguments is NAME:PATH. A relative PATH is below the workspace of the machine. If
    the target is an existing directory, the copy keeps its own name. Owners are not kept.

    \b
    Example:
      ortet cp data.csv proj-live:data/
      ortet cp proj-live/1:/var/log/app.log .
    """
    from ortet.cli.daemon import machines

    inner, outer = _split_machine_path(source), _split_machine_path(target)
    if (inner is None) == (outer is None):
        raise Invalid("bad_usage", "one of FROM and TO is NAME:PATH, the other a path of this host")
    if target == "-":
        raise Invalid("bad_usage", "to print a file: `ortet run -w NAME cat PATH`")
    if inner is not None:
        live = machines.require_live(call, inner[0])
        copied = _copy_out(live.connect(), os.path.join(live.directory, inner[1]), Path(target))
    else:
        assert outer is not None
        live = machines.require_live(call, outer[0])
        copied = _copy_in(
            live.connect(), Path(source), os.path.join(live.directory, outer[1]), outer[1]
        )
    files = output.plural(copied, "entry").replace("entrys", "entries")
    call.output.emit({"machine": live.name, "copied": copied}, [f"copied {files}"])


def _split_machine_path(text: str) -> tuple[str, str] | None:
    """Split NAME:PATH. A local path with a colon is written with ./ before it."""
    name, mark, path = text.partition(":")
    return (name, path or ".") if mark and name and not name.startswith((".", "/")) else None


def _run(client: InitClient, argv: list[str], stdin: bytes | None = None) -> tuple[int, bytes, str]:
    """Run a program inside the machine, with bytes in and out.

    Only that program resolves paths inside the machine, so they cannot lead our process elsewhere.
    """
    from ortet.machines.command import build_environment

    mark, out, errors = os.urandom(8).hex(), io.BytesIO(), io.BytesIO()

    def took(stream: str, data: bytes) -> None:
        (out if stream == "stdout" else errors).write(data)

    result = client.run(
        argv,
        env=build_environment({}, mark),
        cwd="/",
        stdin=stdin,
        output=took,
        mark=mark,
        limit=1 << 12,
    )
    error_text = errors.getvalue().decode("utf-8", "replace") or result.stderr
    return result.exit_code, out.getvalue(), error_text.strip()


def _copy_out(client: InitClient, path: str, target: Path) -> int:
    path = os.path.normpath(path)
    if _run(client, ["test", "-e", path, "-o", "-L", path])[0]:
        raise NotFound("no_file", f"there is no {output.safe(path)} in the machine: check the path")
    argv = ["tar", "-C", os.path.dirname(path), "-cf", "-", "--", os.path.basename(path) or "."]
    code, data, error_text = _run(client, argv)
    if code:
        raise NotFound("no_file", f"{path} cannot be copied out ({output.safe(error_text)})")
    into, name = (target, None) if target.is_dir() else (target.parent, target.name)
    if not into.is_dir():
        raise NotFound("no_directory", f"no directory {into}: make it first")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        top = members[0].name
        for member in members:
            if name is not None:
                member.name = name + member.name[len(top) :]
                if member.islnk():
                    member.linkname = name + member.linkname[len(top) :]
        try:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(into, members, filter="data")
            else:  # before Python 3.11.4
                archive.extractall(into, safe_members(members))
        except tarfile.TarError as error:
            raise Conflict(
                "not_copied", f"{path} cannot be copied out ({error}): leave that file out"
            ) from error
    return len(members)


def safe_members(members: list[tarfile.TarInfo]) -> list[tarfile.TarInfo]:
    """Check an untrusted archive, and reset owners and modes of its members.

    Raises tarfile.TarError for a member that leaves the directory or is not a plain file, directory
    or link.
    """
    links: set[str] = set()
    for member in members:
        above = [member.name.rsplit("/", n)[0] for n in range(member.name.count("/") + 1)]
        to = member.linkname
        if member.issym():
            to = os.path.join(os.path.dirname(member.name), to)
        if (
            any(_escapes_directory(path) for path in (member.name, to))
            or links.intersection(above)
            or not (member.isreg() or member.isdir() or member.issym() or member.islnk())
            or (member.islnk() and to in links)
        ):
            raise tarfile.TarError(f"{member.name} is no plain file below it")
        if member.issym():
            links.add(member.name)
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return members


def _escapes_directory(path: str) -> bool:
    return path.startswith("/") or os.path.normpath(path).split("/")[0] == ".."


def _copy_in(client: InitClient, source: Path, path: str, raw_path: str) -> int:
    if not os.path.lexists(source):
        raise NotFound("no_file", f"there is no {source}: check the path")
    plain = os.path.normpath(path)
    is_dir = _run(client, ["test", "-d", plain])[0] == 0
    if raw_path.endswith("/") and not is_dir:
        raise NotFound("no_directory", f"no directory {plain} in the machine: make it first")
    name = source.resolve().name if source.name in ("", "..") else source.name
    into, name = (plain, name) if is_dir else (os.path.dirname(plain), os.path.basename(plain))
    data = io.BytesIO()
    count = 0

    def counted(member: tarfile.TarInfo) -> tarfile.TarInfo:
        nonlocal count
        count += 1
        return member

    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(source, arcname=name, filter=counted)
    argv = ["tar", "-C", into, "--no-same-owner", "-xf", "-"]
    code, _, error_text = _run(client, argv, data.getvalue())
    if code:
        raise Conflict("not_copied", f"{source} cannot be copied in ({output.safe(error_text)})")
    with suppress(OSError):
        data.close()
    return count
