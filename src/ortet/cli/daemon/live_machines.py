"""Records of live machines, as files beside the agent's socket.

The records survive the agent, so that machines that died can be listed. It is a module of its own
because workers write the records and commands read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ortet.cli.daemon.client import DAEMON_DIRECTORY

_SUFFIX = ".live"


def record_machines(store: Path, machines: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the records of these machines. Other records stay."""
    for name, about in machines.items():
        file = _record_file(store, name)
        data = json.dumps(about).encode()
        with suppress(OSError):  # a full disk must not fail a command
            if not file.exists() or file.read_bytes() != data:
                file.write_bytes(data)


def remove_record(store: Path, name: str) -> None:
    """Delete the record of a machine that was stopped on purpose."""
    with suppress(OSError):
        _record_file(store, name).unlink()


def recorded_machines(store: Path) -> dict[str, dict[str, Any]]:
    """Return all recorded machines. Those that no agent holds have died."""
    machines: dict[str, dict[str, Any]] = {}
    directory = store / DAEMON_DIRECTORY
    for file in sorted(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else ():
        with suppress(OSError, ValueError):
            machines[unquote(file.name.removesuffix(_SUFFIX))] = json.loads(file.read_bytes())
    return machines


def _record_file(store: Path, name: str) -> Path:
    return store / DAEMON_DIRECTORY / f"{quote(name, safe='')}{_SUFFIX}"
