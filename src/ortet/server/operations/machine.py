"""The machine of a session: commands, ports and properties; and all machines of the store on this
host.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from ortet.cli.daemon import machines
from ortet.errors import OrtetError
from ortet.machines.base import Network, Result
from ortet.machines.limits import MachineLimits
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import NonEmptyText, OperationRequest
from ortet.server.session_pool.machine_access import ask_machine, find_open_session
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.vault.redaction import redact_result
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.workspace import Workspace

Argv = Annotated[list[str], msgspec.Meta(min_length=1, max_length=10_000)]
Command = NonEmptyText | Argv
Env = dict[str, str | None]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Run(OperationRequest, frozen=True):
    """`command`: text runs in sh -c, a list is executed directly. `cwd`: a directory of the
    workspace. `env`: variables; a null unsets one. `timeout`: the number of seconds after which the
    command and its children are killed. `key`: run the command once in all forks of the session.
    `secrets`: names of secrets in the vault that the command gets as variables, or a mapping from
    variable to name. Their values are redacted in the output.
    """

    command: Command
    why: str = ""
    cwd: str = ""
    env: Env = {}
    stdin: str | None = None
    timeout: Seconds | None = None
    key: str | None = None
    scope: Literal["family", "timeline"] | None = None
    secrets: list[str] | dict[str, str] = []


@operation("POST", "/sessions/{session}/run", needs_host=True)
def run(session: Session, ask: Run) -> Result:
    """Run a command in the machine until it ends, and record it with its reason and outcome. The
    exit code is 124 after a time-out, and 128 + n after signal n.
    """
    named = ("cwd", "env", "stdin", "timeout", "secrets")
    options: dict[str, Any] = {name: getattr(ask, name) for name in named if getattr(ask, name)}
    hidden = session.machine.programs.secret_values(ask.secrets) if ask.secrets else {}
    done = session.run(ask.command, why=ask.why, key=ask.key, scope=ask.scope, **options)
    return redact_result(done, hidden)


class Exposed(msgspec.Struct, frozen=True):
    """Connections to port `at` of the server's loopback lead to port `port` of the machine."""

    port: int
    at: int


class MachineInfo(msgspec.Struct, frozen=True):
    """`live`: the machine is open in this server. Otherwise the next command opens it. `files`: in
    place, private, or "" while the session has no files. `memory`: the memory of all its processes
    in bytes. `pid`: the process on the host that runs its programs.
    """

    session: str
    engine: str
    files: str
    live: bool
    workspace: str = ""
    directory: str = ""
    network: Network = "none"
    limits: MachineLimits = MachineLimits()
    ports: list[Exposed] = []
    pid: int | None = None
    programs: int = 0
    processes: int = 0
    memory: int = 0


class MachineOfSession(OperationRequest, frozen=True):
    session: str


@operation("GET", "/sessions/{session}/machine", filtered=True)
def show_machine(pool: SessionPool, ask: MachineOfSession, caller: Caller) -> MachineInfo:
    """Show the machine of a session: its engine, whether it is open in this server, and its use of
    memory.
    """
    row = pool.row(ask.session, caller.sees)
    with pool.hub() as hub:
        files = hub.workspaces.table.get(row.branch) if row.has_files else None
    _, machine = find_open_session(pool, row.id)
    info = _info(row, files, machine)
    if machine is None:
        return info
    with suppress(OrtetError):  # it has no init process, or was just released
        pid = pool.control_socket(row).pid
        jobs, processes = ask_machine(pool, row, lambda inside: (inside.jobs(), inside.ps()))
        return msgspec.structs.replace(
            info,
            pid=pid,
            programs=sum(1 for job in jobs if job.name and job.code is None),
            processes=len(processes),
            memory=sum(one.rss for one in processes),
        )
    return info


@operation("POST", "/sessions/{session}/machine/start", needs_host=True)
def start_machine(session: Session) -> MachineInfo:
    """Open the machine of a session. Processes of the last commit are restored if the engine
    can.
    """
    machine = session.machine
    return _info(session.internals.row, machine.row, machine)


def _info(row: SessionRow, files: WorkspaceRow | None, machine: Workspace | None) -> MachineInfo:
    if files is None:
        return MachineInfo(row.id, row.engine, "", live=machine is not None)
    ports = machine.programs.exposed() if machine is not None else {}
    return MachineInfo(
        session=row.id,
        engine=files.engine,
        files=files.files,
        live=machine is not None,
        workspace=files.name,
        directory=str(files.directory),
        network=files.network,
        limits=files.limits,
        ports=[Exposed(port, at) for port, at in sorted(ports.items())],
    )


class Expose(OperationRequest, frozen=True):
    """`at`: the port on the server's loopback, or 0 for any free port."""

    port: Port
    at: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


@operation("POST", "/sessions/{session}/ports", status=201, needs_host=True)
def expose(session: Session, ask: Expose) -> Exposed:
    """Forward a loopback port of the server's host to a port of the machine, until the forward is
    closed.
    """
    return Exposed(ask.port, session.programs.expose(ask.port, at=ask.at))


class Unexpose(OperationRequest, frozen=True):
    port: Port


class Unexposed(msgspec.Struct, frozen=True):
    """`closed`: false if the port was not forwarded."""

    port: int
    closed: bool


@operation("DELETE", "/sessions/{session}/ports/{port}", needs_host=True)
def unexpose(session: Session, ask: Unexpose) -> Unexposed:
    """Close a forwarded port and its connections."""
    return Unexposed(ask.port, closed=session.programs.unexpose(ask.port))


class HostMachine(msgspec.Struct, frozen=True):
    """A machine that is open on the server's host. `held`: open in this server for a session, or in
    the host agent for the command line. `since`: the time of its start in seconds since 1970, or 0
    if unknown.
    """

    workspace: str
    held: Literal["server", "agent"]
    engine: str
    directory: str
    session: str = ""
    name: str = ""
    pid: int | None = None
    since: float = 0.0


@operation("GET", "/machines", needs="admin", needs_host=True)
def list_machines(pool: SessionPool, ask: Paged) -> Page[HostMachine]:
    """List the machines of this store that are open on the server's host."""
    listed = [*_session_machines(pool)]
    listed += [
        HostMachine(
            workspace=one.name,
            held="agent",
            engine=one.engine,
            directory=one.directory,
            pid=one.pid,
            since=one.since,
        )
        for one in machines.list_live(pool.shared_hub.root).values()
    ]
    listed.sort(key=lambda one: (one.workspace, one.held))
    return paginate(listed, ask, lambda one: (one.workspace, one.held))


def _session_machines(pool: SessionPool) -> list[HostMachine]:
    machines = []
    for room in pool.open_slots():
        row, files = room.row, room.workspace
        if row is None or files is None:
            continue
        machines.append(
            HostMachine(
                workspace=files.name,
                held="server",
                engine=files.engine,
                directory=str(files.row.directory),
                session=row.id,
                name=row.name,
                pid=room.control_socket.pid if room.control_socket is not None else None,
            )
        )
    return machines
