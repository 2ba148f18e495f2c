"""Command agent: start, stop and inspect the host agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.daemon.control import agent_status, list_live_machines, start_agent, stop_agent
from ortet.cli.terminal import output
from ortet.errors import Conflict, NotFound


@group
def agent() -> None:
    """Control the host agent, the process that makes commits fast.

    The host agent is a resident process, which also keeps machines alive. `ortet commit` and `ortet
    status` start it. It ends after 15 minutes without a request, unless machines live in it.
    Without the agent, or with ORTET_AGENT=off, the commands do the same work themselves, but
    slower.

    \b
    Example:
      ortet agent status
      ortet agent stop
    """


@verb("start")
def start(call: CliCall) -> None:
    """Start the host agent, and wait until it answers.

    \b
    Example:
      ortet agent start
    """

    status = start_agent(_store(call))
    call.output.emit({"running": True, **status}, _status_lines(status))


@verb("stop")
@click.option("--force", is_flag=True, help="Stop even if machines live in the agent. They end.")
def stop(call: CliCall, force: bool) -> None:
    """Close everything in the host agent, and end it.

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
    call.output.emit({"stopped": ended}, ["stopped" if ended else "it was not running"])


@verb("status")
def status(call: CliCall) -> None:
    """Show whether the host agent runs, and what it has open.

    \b
    Example:
      ortet agent status --json
    """

    status = agent_status(_store(call))
    call.output.emit(
        {"running": status is not None, **(status or {})},
        _status_lines(status) if status else ["not running"],
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
    requests = output.plural(info["asked"], "request")
    yield f"running as {info['pid']} for {age} s, {requests}"
    for worker in info["workers"]:
        live = output.plural(len(worker["live"]), "live machine") if worker["live"] else "watched"
        busy = f", doing {output.safe(worker['busy'])}" if worker["busy"] else ""
        yield f"  {output.safe(worker['name'])}  {worker['pid']}  {live}{busy}"
