"""The host agent as verbs see it: is it there, what does it hold, start it, end it."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from ortet.cli.daemon import client
from ortet.cli.daemon.client import NoAgent
from ortet.errors import Unavailable, Unsupported

_START = 30.0  # seconds; it takes a quarter of one, on a busy host longer
_STEP = 0.02


def told(store: Path) -> dict[str, Any] | None:
    """What the agent of a store says of itself; None when none is running."""
    try:
        said: dict[str, Any] = json.loads(client.ask(str(store), "status"))
    except NoAgent:
        return None
    return said


def start(store: Path) -> dict[str, Any]:
    """Start the agent of a store unless it runs, and wait until it answers."""
    if (found := told(store)) is not None:
        return found
    if os.stat(store).st_uid != os.geteuid():
        raise Unsupported(
            "not_your_store",
            f"{store} belongs to another user, and an agent serves its owner only: do without it",
        )
    until = time.monotonic() + _START
    while time.monotonic() < until:
        client.start(str(store))
        for _ in range(50):
            if (found := told(store)) is not None:
                return found
            select.select([], [], [], _STEP)
    raise Unavailable(
        "no_agent",
        f"the host agent does not start: `python -m ortet.cli.daemon.server {store}` says why",
    )


def stop(store: Path) -> bool:
    """Have it close what it holds and end; False when none was running."""
    try:
        client.ask(str(store), "stop")
    except NoAgent:
        return False
    while client.is_starting(str(store)):  # until its lock is free, another would not start
        select.select([], [], [], _STEP)
    return True


def live(store: Path) -> dict[str, dict[str, Any]]:
    """The live machines that the agent holds, by their workspaces' names."""
    found = told(store) or {"workers": []}
    machines: dict[str, dict[str, Any]] = {}
    for worker in found["workers"]:
        machines |= worker["live"]
    return machines
