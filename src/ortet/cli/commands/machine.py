"""Commands start, ps, spawn, logs, expose, stop, kill, rm: live machines in the host agent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import NotFound, OrtetError
from ortet.ids import to_hex

if TYPE_CHECKING:
    from ortet.cli.daemon.machines import LiveMachineInfo
    from ortet.machines.jobs import ProcessInfo

_LOG_WAIT_SECONDS = 20.0
_EARLY_EXIT_SECONDS = 0.1  # a program that cannot run has usually ended by then


@verb()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--network",
    type=click.Choice(("none", "outbound", "host")),
    help="The network of the machines: none, other hosts, or also this host's loopback. "
    "It is stored.",
)
def start(call: CliCall, names: tuple[str, ...], network: str | None) -> None:
    """Start live machines, with the processes of their last commit.

    NAME is a private workspace, such as a fork. Without NAME, this directory gets a private machine
    whose name is that of the directory with -live, and the directory is not changed until `ortet
    land`. Commands such as commit mean the directory unless you give -w proj-live. Uncommitted
    changes of a machine that died are committed first.

    \b
    Example:
      ortet start
      ortet start proj-live/1 proj-live/2
      ortet start --network outbound
    """
    from ortet.cli.daemon import machines

    for name in names:
        call.hub.workspaces.table.need(name)  # check all names before the first is started
    begun = [
        machines.find_or_start(call, name, restore=True, network=network)
        for name in names or (None,)
    ]
    lines = [f"{one.name} lives ({one.engine}), process {one.pid}" for one in begun]
    call.output.emit(begun if len(begun) > 1 else begun[0], lines)


@verb()
@click.option(
    "-a", "--all", "every", is_flag=True, help="List every process, not only named programs."
)
def ps(call: CliCall, every: bool) -> None:
    """List the live machines on this host, and those that died.

    \b
    Example:
      ortet ps
      ortet ps --all --json
    """
    from ortet.cli.daemon import machines
    from ortet.cli.daemon.machines import list_dead

    store = call.hub.root
    living = machines.list_live(store)
    data = [_machine_data(living[name]) for name in sorted(living)]
    data += [_dead_machine_data(call, name) for name in list_dead(call.hub, living)]
    if not every:
        for info in data:
            info.pop("processes", None)
    call.output.emit(data, _lines(call, data))


def _machine_data(machine: LiveMachineInfo) -> dict[str, Any]:
    data = {
        "name": machine.name,
        "engine": machine.engine,
        "directory": machine.directory,
        "pid": machine.pid,
        "age": max(time.time() - machine.since, 0.0),
    }
    try:
        client = machine.connect()
        jobs, processes = [job for job in client.jobs() if job.name], client.ps()
    except OrtetError:  # it ended after it was listed
        return {**data, "state": "silent", "memory": 0, "jobs": []}
    named_jobs = [
        {"name": job.name, "kind": job.kind, "pid": job.pid, "argv": job.argv, "code": job.code}
        for job in jobs
    ]
    memory = sum(process.rss for process in processes)
    return {**data, "state": "live", "memory": memory, "jobs": named_jobs, "processes": processes}


def _dead_machine_data(call: CliCall, name: str) -> dict[str, Any]:
    head = call.hub.refs.get(name)
    row = call.hub.workspaces.table.need(name)
    return {
        "name": name,
        "engine": row.engine,
        "directory": str(row.directory),
        "state": "dead",
        "head": to_hex(head.oid) if head else None,
        "restore": f"ortet start {name}",
        "jobs": [],
    }


def _lines(call: CliCall, data: list[dict[str, Any]]) -> Iterator[str]:
    if not data:
        yield "no machine lives here: `ortet start` starts one"
        return
    rows = [("NAME", "ENGINE", "PID", "AGE", "MEMORY", "PROGRAMS")]
    for info in data:
        name, engine = output.safe(info["name"]), str(info["engine"])
        if info["state"] == "dead":
            where = f"at {output.short_id(info['head'])}" if info["head"] else "never committed"
            rows.append((name, engine, "-", "dead", where, f"`{output.safe(info['restore'])}`"))
            continue
        jobs = ", ".join(_job(job) for job in info["jobs"]) or "-"
        age = f"{info['age']:.0f} s" if info["age"] < 120 else f"{info['age'] / 60:.0f} min"
        rows.append((name, engine, str(info["pid"]), age, output.format_size(info["memory"]), jobs))
    yield from call.output.table(rows)
    processes = [(info, process) for info in data for process in info.get("processes", ())]
    if processes:
        yield ""
        yield from call.output.table(
            [("NAME", "PID INSIDE", "MEMORY", "COMMAND"), *map(_process, processes)]
        )


def _process(row: tuple[dict[str, Any], ProcessInfo]) -> tuple[str, str, str, str]:
    info, process = row
    job = next((job for job in info["jobs"] if job["pid"] == process.pid), None)
    if job and job["name"].startswith("kernel "):
        command = f"(Python {job['name']})"  # its command line is that of our kernel program
    else:
        command = output.safe(" ".join(process.cmdline) or process.name)
    return output.safe(info["name"]), str(process.pid), output.format_size(process.rss), command


def _job(job: dict[str, Any]) -> str:
    ended = "" if job["code"] is None else f" (ended {job['code']})"
    return f"{output.safe(job['name'])}{ended}"


@verb(context_settings={"allow_interspersed_args": False})
@workspace_option
@click.option(
    "--cwd", default="", metavar="DIR", help="The directory of the workspace to start in."
)
@click.argument("job", metavar="NAME")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def spawn(call: CliCall, job: str, command: tuple[str, ...], *, name: str | None, cwd: str) -> None:
    """Start a program in a live machine. It keeps running as NAME.

    Without -w it is the private machine of this directory, which is started if necessary. One word
    runs in sh, several words are executed directly.

    \b
    Example:
      ortet spawn web -- python3 -m http.server 8000
      ortet spawn -w proj-live/1 watch "make -s watch"
    """
    from ortet.cli.daemon import machines
    from ortet.machines.command import argv_of, build_environment, relative_cwd
    from ortet.workspaces.programs import check_job

    words = list(command[1:] if command[0] == "--" else command)
    if not words:
        raise click.UsageError("COMMAND is missing: give it after --")
    live = machines.find_or_start(call, name)
    mark = os.urandom(8).hex()
    started = live.connect().spawn(
        check_job(job),
        argv_of(words[0] if len(words) == 1 else words),
        env=build_environment({}, mark),
        cwd=os.path.join(live.directory, relative_cwd(cwd)),
        mark=mark,
        declared=True,
    )
    code = started.wait(_EARLY_EXIT_SECONDS)
    data = {"machine": live.name, "name": job, "pid": started.pid, "code": code}
    if code is None:
        call.output.emit(data, [f"{output.safe(job)} runs in {live.name} as {started.pid}"])
        return
    last = _last_lines(started.logs(), 1).decode("utf-8", "replace").strip()
    reason = f": {output.safe(last)}" if last else ""
    call.output.emit(data, [f"{output.safe(job)} ended at once in {live.name} with {code}{reason}"])


@verb()
@click.argument("job", metavar="NAME")
@workspace_option
@click.option("-f", "--follow", is_flag=True, help="Show new output until the program ends.")
@click.option(
    "-n", "--last", type=click.IntRange(min=0), metavar="N", help="Show only the last N lines."
)
def logs(call: CliCall, job: str, *, name: str | None, follow: bool, last: int | None) -> None:
    """Show the output of a program. The last megabyte is kept.

    \b
    Example:
      ortet logs web
      ortet logs -w proj-live/1 web --follow
    """
    from ortet.cli.daemon import machines

    live = machines.require_live(call, name)
    program = live.connect().job(job)
    if call.output.json:
        call.output.emit(
            {"name": job, "text": _last_lines(program.logs(), last).decode("utf-8", "replace")}
        )
        return
    if not follow:
        _write(_last_lines(program.logs(), last))
        return
    cursor, tail = 0, _last_lines(program.logs(), last) if last is not None else b""
    _write(tail)
    while True:
        piece = program.read(cursor, _LOG_WAIT_SECONDS, stream="output")
        if last is None or cursor:
            _write(piece.data)
        cursor = piece.cursor
        if piece.eof or (piece.code is not None and not piece.data):
            return


def _last_lines(data: bytes, count: int | None) -> bytes:
    if count is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@verb()
@click.argument("port", type=int)
@workspace_option
@click.option(
    "--at",
    type=int,
    default=0,
    metavar="PORT",
    help="The port of the host; by default any free port.",
)
def expose(call: CliCall, port: int, name: str | None, at: int) -> None:
    """Forward a loopback port of this host to PORT of a machine.

    The forward closes with the machine.

    \b
    Example:
      ortet expose 8000
      ortet expose -w proj-live/1 8000 --at 8001
    """
    from ortet.cli.daemon import machines

    live = machines.require_live(call, name)
    words = ["machine", "expose", "-w", live.name, str(port), "--at", str(at)]
    reply = machines.run_in_agent(call, live.name, words)
    call.output.emit(reply, [f"127.0.0.1:{reply['at']} leads to port {port} of {live.name}"])


@verb()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-m", "--message", default="stopped", metavar="TEXT", help="The message of the commit."
)
def stop(call: CliCall, names: tuple[str, ...], message: str) -> None:
    """Commit live machines with their processes, then end them.

    `ortet start NAME` continues from there.

    \b
    Example:
      ortet stop proj-live
    """
    _end_machines(call, names, ["--commit", message])


@verb()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def kill(call: CliCall, names: tuple[str, ...]) -> None:
    """End machines at once, without a commit.

    Changed files stay and are there at the next start. Processes come back as of the last commit.

    \b
    Example:
      ortet kill proj-live/2
    """
    _end_machines(call, names, [])


def _end_machines(call: CliCall, names: tuple[str, ...], options: list[str]) -> None:
    from ortet.cli.daemon import live_machines, machines

    ended = []
    for name in names:
        if name in live_machines.recorded_machines(
            call.hub.root
        ) and name not in machines.list_live(call.hub.root):
            # It is dead already: do not list it again.
            live_machines.remove_record(call.hub.root, name)
            continue
        machine = machines.require_live(call, name)
        words = ["machine", "close", "-w", machine.name, *options]
        ended.append(machines.run_in_agent(call, machine.name, words))
    call.output.emit(ended, [_ended_line(machine) for machine in ended])


def _ended_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['name']} ended, at "
        f"{output.short_id(machine['oid']) if machine['oid'] else 'no commit'}"
    )


@verb()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Do not commit uncommitted changes first.")
def rm(call: CliCall, names: tuple[str, ...], force: bool) -> None:
    """End machines and delete their workspaces with all private files.

    Uncommitted changes are committed first, unless --force is given. Branches stay: `ortet restore
    BRANCH --to DIR` brings the files back, `ortet branch -d` deletes one.

    \b
    Example:
      ortet rm proj-live/1 proj-live/2
    """
    from ortet.cli.daemon import live_machines, machines

    for name in names:
        if call.hub.workspaces.table.need(name).files != "private":
            raise NotFound(
                "not_private", f"{name} is a directory in place: `ortet drop {name}` forgets it"
            )
    for name in names:
        if name in machines.list_live(call.hub.root):
            words = ["machine", "remove", "-w", name, *(["--discard"] if force else [])]
            machines.run_in_agent(call, name, words)
        else:
            call.hub.drop(name, discard=force)
            live_machines.remove_record(call.hub.root, name)
    call.output.emit({"removed": list(names)}, [f"removed {name}" for name in names])
