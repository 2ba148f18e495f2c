"""What a hub is put together from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet.backends.base import Bucket, Cache, Catalog, Signal
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Random
from ortet.machines.base import Engine
from ortet.objects.store import LocalObjectStore
from ortet.vault.keys import Keyring
from ortet.workspaces.table import RootScope

if TYPE_CHECKING:
    from ortet.memory.base import IndexFactory
    from ortet.memory.embedders.base import Embedder
    from ortet.sessions.swarm_api import SwarmRunner

REPLAY_VARIABLE, REPLAY_REPORT_VARIABLE = "ORTET_REPLAY", "ORTET_REPLAY_REPORT"


class ReplayRequest(msgspec.Struct, frozen=True):
    """That this session is to be re-enacted by whoever opens it, and the file in which to say how
    that went: `ortet replay` asks for it."""

    session: str
    report: Path


def read_replay_request(environ: Mapping[str, str]) -> ReplayRequest | None:
    """What `ortet replay` tells the program that it runs."""
    session, report = environ.get(REPLAY_VARIABLE), environ.get(REPLAY_REPORT_VARIABLE)
    return ReplayRequest(session, Path(report)) if session and report else None


class StoreContext(msgspec.Struct, frozen=True):
    """What a hub is made of; `config.py` chooses each."""

    url: str  # of the store; for others to open it
    root: Path  # what this host has of it: all, or a cache and its machines
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjectStore
    trees: Trees
    engine: Callable[[str], Engine]  # by name, made at first use
    strongest: Callable[[], str]  # the engine for private files on this host
    clock: Clock
    random: Random
    author: str
    host: str
    scope: RootScope
    hide: tuple[Path, ...]
    vault: Keyring
    environ: Mapping[str, str]  # as it is at each moment
    swarms: SwarmRunner
    cache: Cache  # of working memories
    embedder: Embedder | str | None = None  # what gives texts a meaning, or its name
    encore: ReplayRequest | None = None
    shelves: IndexFactory | None = None  # what memories are found by, where hosts share it


def host_id() -> str:
    """What tells this host from others that use the same store."""
    from ortet._util.codec import checksum

    try:
        machine = Path("/etc/machine-id").read_text()
    except OSError:
        machine = ""
    return checksum(f"{machine}\n{os.uname().nodename}".encode()).hex()


def default_author() -> str:
    """Who works here, where nobody says."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a name, as containers have
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
