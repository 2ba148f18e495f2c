"""Command agent: start, stop and inspect the host agent."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ortet.cli import output
from ortet.cli.call import CliCall, group, verb
from ortet.cli.daemon import client
from ortet.cli.daemon.client import NoDaemon
from ortet.errors import Conflict, NotFound, Unavailable, Unsupported

# Functions that start, stop and query the host agent of a store.

_START_TIMEOUT_SECONDS = 30.0  # usually 0.25 s, longer on a busy host
_POLL_SECONDS = 0.02


def agent_status(store: Path) -> dict[str, Any] | None:
    """Return the status of a store's agent, or None if none runs."""
    try:
        said: dict[str, Any] = json.loads(client.query(str(store), "status"))
    except NoDaemon:
        return None
    return said


def start_agent(store: Path) -> dict[str, Any]:
    """Start the agent of a store unless it runs, and wait until it answers. Return its status."""
    if (found := agent_status(store)) is not None:
        return found
    if os.stat(store).st_uid != os.geteuid():
        raise Unsupported(
            "not_your_store",
            f"{store} belongs to another user, and an agent serves its owner only: do without it",
        )
    until = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < until:
        client.spawn_daemon(str(store))
        for _ in range(50):
            if (found := agent_status(store)) is not None:
                return found
            select.select([], [], [], _POLL_SECONDS)
    raise Unavailable(
        "no_agent",
        f"the host agent does not start: `python -m ortet.cli.daemon.server {store}` says why",
    )


def stop_agent(store: Path) -> bool:
    """Make the agent close everything and end. Return False if none ran."""
    try:
        client.query(str(store), "stop")
    except NoDaemon:
        return False
    while client.is_alive(str(store)):  # a new agent cannot start until the lock is free
        select.select([], [], [], _POLL_SECONDS)
    return True


def list_live_machines(store: Path) -> dict[str, dict[str, Any]]:
    """Return the live machines of the agent by workspace name."""
    found = agent_status(store) or {"workers": []}
    machines: dict[str, dict[str, Any]] = {}
    for worker in found["workers"]:
        machines |= worker["live"]
    return machines


@group
def agent() -> None:
    """The resident process that makes commits fast and keeps machines alive.

    `ortet commit` and `ortet status` start it; it ends after 15 minutes without a request, unless
    machines live in it. Without it, or with ORTET_AGENT=off, they do the same themselves, slower.

    \b
    Example:
      ortet agent status
      ortet agent stop
    """


@verb("start")
def start(call: CliCall) -> None:
    """Start it now, and wait until it answers.

    \b
    Example:
      ortet agent start
    """

    told = start_agent(_store(call))
    call.emit({"running": True, **told}, _status_lines(told))


@verb("stop")
@click.option("--force", is_flag=True, help="Even if machines live in it, which then end.")
def stop(call: CliCall, force: bool) -> None:
    """Have it close what it holds and end.

    \b
    Example:
      ortet agent stop
    """

    live = [] if force else sorted(list_live_machines(_store(call)))
    if live:
        raise Conflict(
            "machines_live",
            f"{', '.join(live)} would end with it: `ortet stop {' '.join(live)}` commits and ends "
            "them, --force goes on without",
        )
    ended = stop_agent(_store(call))
    call.emit({"stopped": ended}, ["stopped" if ended else "it was not running"])


@verb("status")
def status(call: CliCall) -> None:
    """Show whether it runs, and what it holds.

    \b
    Example:
      ortet agent status --json
    """

    told = agent_status(_store(call))
    call.emit(
        {"running": told is not None, **(told or {})},
        _status_lines(told) if told else ["not running"],
    )


for _verb in (start, stop, status):
    agent.add_command(_verb)


def _store(call: CliCall) -> Path:
    store = call.local_store_path()
    if not (store / "FORMAT").exists():
        raise NotFound("no_store", f"there is no store at {store}: run `ortet init` first")
    return store


def _status_lines(info: dict[str, Any]) -> Iterator[str]:
    age = int(time.time() - info["began"])
    asked = output.plural(info["asked"], "request")
    yield f"running as {info['pid']} for {age} s, {asked}"
    for worker in info["workers"]:
        live = output.plural(len(worker["live"]), "live machine") if worker["live"] else "watched"
        busy = f", doing {output.safe(worker['busy'])}" if worker["busy"] else ""
        yield f"  {output.safe(worker['name'])}  {worker['pid']}  {live}{busy}"
