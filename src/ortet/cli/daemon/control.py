"""Starts, stops and queries the host agent of a store."""

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

_START_TIMEOUT_SECONDS = 30.0  # usually 0.25 s, longer on a busy host
_POLL_SECONDS = 0.02


def agent_status(store: Path) -> dict[str, Any] | None:
    """Return the status of a store's agent, or None if none runs."""
    try:
        status: dict[str, Any] = json.loads(client.query(str(store), "status"))
    except NoDaemon:
        return None
    return status


def start_agent(store: Path) -> dict[str, Any]:
    """Start the agent of a store unless it runs, and wait until it answers. Return its status."""
    if (status := agent_status(store)) is not None:
        return status
    if os.stat(store).st_uid != os.geteuid():
        raise Unsupported(
            "not_your_store",
            f"{store} belongs to another user, and an agent serves its owner only: do without it",
        )
    until = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < until:
        client.spawn_daemon(str(store))
        for _ in range(50):
            if (status := agent_status(store)) is not None:
                return status
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
    status = agent_status(store) or {"workers": []}
    machines: dict[str, dict[str, Any]] = {}
    for worker in status["workers"]:
        machines |= worker["live"]
    return machines
