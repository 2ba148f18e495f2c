"""Hidden command machine: the worker's side of the commands on live machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, group, verb, workspace_option
from ortet.cli.daemon import live_machines
from ortet.errors import Invalid, Unsupported
from ortet.ids import from_hex, to_hex

if TYPE_CHECKING:
    from ortet.cli.daemon.cache import DaemonCache
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


@group
def machine() -> None:
    """Internal commands that the host agent runs for `ortet start`, `stop` and others."""


@verb("open")
@workspace_option
@click.option("--restore", is_flag=True)
@click.option("--network", metavar="WHICH")
def open_(call: CliCall, name: str | None, restore: bool, network: str | None) -> None:
    """Start a live machine; for a directory in place, a private one with its files."""
    resident = _require_daemon(call)
    workspace = _private_workspace(call, name, network)
    was = workspace.name in resident.live_machines()
    losses: list[Any] = []
    head = workspace.head
    try:
        resident.keep_machine_alive(workspace)
        if restore and head is not None and not was:
            losses = workspace.restore(head.oid, restart=True).losses
        about = resident.live_machines()[workspace.name]
    except BaseException:
        workspace.close()
        raise
    call.output.json = True
    call.output.emit({"name": workspace.name, **about, "losses": losses})


def _private_workspace(call: CliCall, name: str | None, network: str | None) -> Workspace:
    row = call.row(name)
    if row.files == "private":
        return _open_workspace(call, row, network)
    hub, engine = call.hub, _best_engine(call)
    existing = hub.workspaces.table.find_at(row.directory, "private", engine)
    if existing is not None:
        return _open_workspace(call, existing, network)
    wanted = f"{row.name}-live"
    # A branch may remain from an earlier machine.
    names = (wanted, *(f"{wanted}-{n}" for n in range(2, 100)))
    free = (n for n in names if hub.workspaces.table.get(n) is None and hub.refs.get(n) is None)
    return hub.workspace(row.directory, engine=engine, name=next(free, None), network=network)


def _open_workspace(call: CliCall, row: WorkspaceRow, network: str | None) -> Workspace:
    call.hub.workspaces.table.limit(row, None, network)
    return call.workspace(row.name)


def _best_engine(call: CliCall) -> str:
    try:
        call.hub.workspaces.check_engine("criu")
    except Unsupported:
        call.hub.workspaces.check_engine("overlay")
        return "overlay"
    return "criu"


@verb("close")
@workspace_option
@click.option("--commit", "message", metavar="TEXT")
def close(call: CliCall, name: str, message: str | None) -> None:
    """End a machine. With a message, commit it first."""
    resident = _require_daemon(call)
    workspace = call.workspace(name)
    info = workspace.commit(message) if message is not None else workspace.head
    losses = workspace.losses if message is not None else []
    workspace.close()
    live_machines.remove_record(resident.store, workspace.name)
    call.output.json = True
    call.output.emit({"name": name, "oid": info.oid if info else None, "losses": losses})


@verb("expose")
@workspace_option
@click.argument("port", type=int)
@click.option("--at", type=int, default=0)
def expose(call: CliCall, name: str, port: int, at: int) -> None:
    """Forward a loopback port of the host to a machine."""
    _require_daemon(call)
    exposed = call.workspace(name).programs.expose(port, at=at)
    call.output.json = True
    call.output.emit({"name": name, "port": port, "at": exposed})


@verb("fork")
@workspace_option
@click.argument("commit")
@click.option("-n", "count", type=int, default=1)
def fork(call: CliCall, name: str, commit: str, count: int) -> None:
    """Fork a commit with processes, and keep the forks alive."""
    from ortet.cli.commands.fork import fork_live

    _require_daemon(call)
    copies = fork_live(call, call.row(name), from_hex(commit), count)
    call.output.json = True
    call.output.emit({"copies": copies})


@verb("remove")
@workspace_option
@click.option("--discard", is_flag=True)
def remove(call: CliCall, name: str, discard: bool) -> None:
    """Delete a workspace with its machine and private files. Its branch stays."""
    resident = _require_daemon(call)
    call.hub.drop(name, discard=discard)
    live_machines.remove_record(resident.store, name)
    head = call.hub.refs.get(name)
    call.output.json = True
    call.output.emit({"name": name, "oid": to_hex(head.oid) if head else None})


for _verb in (open_, close, expose, fork, remove):
    machine.add_command(_verb)


def _require_daemon(call: CliCall) -> DaemonCache:
    if call.daemon_cache is None:
        raise Invalid("not_for_you", "only the host agent does this: use `ortet start`")
    return call.daemon_cache
