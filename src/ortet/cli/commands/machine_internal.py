"""machine: what only a worker of the host agent does, for the verbs about live machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import Call, group, verb, which
from ortet.cli.daemon import live_machines
from ortet.errors import Invalid, Unsupported
from ortet.ids import from_hex, to_hex

if TYPE_CHECKING:
    from ortet.cli.daemon.cache import Resident
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


@group
def machine() -> None:
    """What the host agent does for `ortet start`, `stop` and the like."""


@verb("open")
@which
@click.option("--restore", is_flag=True)
@click.option("--network", metavar="WHICH")
def open_(call: Call, name: str | None, restore: bool, network: str | None) -> None:
    """Start a machine that lives on; of a directory in place, a private one of its files."""
    resident = _resident(call)
    workspace = _private(call, name, network)
    was = workspace.name in resident.live()
    losses: list[Any] = []
    head = workspace.head
    try:
        resident.enliven(workspace)
        if restore and head is not None and not was:
            losses = workspace.restore(head.oid, restart=True).losses
        about = resident.live()[workspace.name]
    except BaseException:
        workspace.close()
        raise
    call.json = True
    call.emit({"name": workspace.name, **about, "losses": losses})


def _private(call: Call, name: str | None, network: str | None) -> Workspace:
    row = call.row(name)
    if row.files == "private":
        return _opened(call, row, network)
    hub, engine = call.hub, _best(call)
    found = hub.registry.at(row.directory, "private", engine)
    if found is not None:
        return _opened(call, found, network)
    wanted = f"{row.name}-live"
    names = (wanted, *(f"{wanted}-{n}" for n in range(2, 100)))  # a branch outlives its machine
    free = (n for n in names if hub.registry.get(n) is None and hub.refs.get(n) is None)
    return hub.workspace(row.directory, engine=engine, name=next(free, None), network=network)


def _opened(call: Call, row: WorkspaceRow, network: str | None) -> Workspace:
    call.hub.registry.limit(row, None, network)
    return call.workspace(row.name)


def _best(call: Call) -> str:
    try:
        call.hub.check_engine("criu")
    except Unsupported:
        call.hub.check_engine("overlay")
        return "overlay"
    return "criu"


@verb("close")
@which
@click.option("--commit", "message", metavar="TEXT")
def close(call: Call, name: str, message: str | None) -> None:
    """End a machine, after a commit when a message is given."""
    resident = _resident(call)
    workspace = call.workspace(name)
    info = workspace.commit(message) if message is not None else workspace.head
    losses = workspace.losses if message is not None else []
    workspace.close()
    live_machines.forget(resident.store, workspace.name)
    call.json = True
    call.emit({"name": name, "oid": info.oid if info else None, "losses": losses})


@verb("expose")
@which
@click.argument("port", type=int)
@click.option("--at", type=int, default=0)
def expose(call: Call, name: str, port: int, at: int) -> None:
    """Let connections to a loopback port of the host into a machine."""
    _resident(call)
    found = call.workspace(name).expose(port, at=at)
    call.json = True
    call.emit({"name": name, "port": port, "at": found})


@verb("fork")
@which
@click.argument("commit")
@click.option("-n", "count", type=int, default=1)
def fork(call: Call, name: str, commit: str, count: int) -> None:
    """Copies of a commit whose processes go on, to live on here."""
    from ortet.cli.commands.fork import forked

    _resident(call)
    copies = forked(call, call.row(name), from_hex(commit), count)
    call.json = True
    call.emit({"copies": copies})


@verb("remove")
@which
@click.option("--discard", is_flag=True)
def remove(call: Call, name: str, discard: bool) -> None:
    """Forget a workspace with its machine and private files; its branch stays."""
    resident = _resident(call)
    call.hub.drop(name, discard=discard)
    live_machines.forget(resident.store, name)
    head = call.hub.refs.get(name)
    call.json = True
    call.emit({"name": name, "oid": to_hex(head.oid) if head else None})


for _verb in (open_, close, expose, fork, remove):
    machine.add_command(_verb)


def _resident(call: Call) -> Resident:
    if call.resident is None:
        raise Invalid("not_for_you", "only the host agent does this: use `ortet start`")
    return call.resident
