"""The host agent as verbs see it: is it there, what does it hold, start it, end it."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from ortet.cli.daemon import client
from ortet.cli.daemon.client import NoDaemon
from ortet.errors import Unavailable, Unsupported

_START_TIMEOUT_SECONDS = 30.0  # seconds; it takes a quarter of one, on a busy host longer
_POLL_SECONDS = 0.02


def agent_status(store: Path) -> dict[str, Any] | None:
    """What the agent of a store says of itself; None when none is running."""
    try:
        said: dict[str, Any] = json.loads(client.query(str(store), "status"))
    except NoDaemon:
        return None
    return said


def start_agent(store: Path) -> dict[str, Any]:
    """Start the agent of a store unless it runs, and wait until it answers."""
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
    """Have it close what it holds and end; False when none was running."""
    try:
        client.query(str(store), "stop")
    except NoDaemon:
        return False
    while client.is_alive(str(store)):  # until its lock is free, another would not start
        select.select([], [], [], _POLL_SECONDS)
    return True


def list_live_machines(store: Path) -> dict[str, dict[str, Any]]:
    """The live machines that the agent holds, by their workspaces' names."""
    found = agent_status(store) or {"workers": []}
    machines: dict[str, dict[str, Any]] = {}
    for worker in found["workers"]:
        machines |= worker["live"]
    return machines
