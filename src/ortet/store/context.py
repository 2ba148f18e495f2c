"""StoreContext: the services that code on an open store shares."""

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
    """A request by `ortet replay` to replay this session when a program opens it.

    `report` is the file to which the outcome is written.
    """

    session: str
    report: Path


def read_replay_request(environ: Mapping[str, str]) -> ReplayRequest | None:
    """Read the replay request that `ortet replay` passes to its program in the environment."""
    session, report = environ.get(REPLAY_VARIABLE), environ.get(REPLAY_REPORT_VARIABLE)
    return ReplayRequest(session, Path(report)) if session and report else None


class StoreContext(msgspec.Struct, frozen=True):
    """The services of an open store. `ortet.config` chooses the implementation of each."""

    url: str  # address of the store; other processes open it with this
    root: Path  # local directory: the whole store, or a cache and the machines
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjectStore
    trees: Trees
    engine: Callable[[str], Engine]  # by name; created at first use
    strongest: Callable[[], str]  # name of the engine for private files on this host
    clock: Clock
    random: Random
    author: str
    host: str
    scope: RootScope
    hide: tuple[Path, ...]
    vault: Keyring
    environ: Mapping[str, str]  # live view: later changes are visible
    swarms: SwarmRunner
    cache: Cache  # for working memory
    embedder: Embedder | str | None = None  # embedder for semantic recall, or its name
    encore: ReplayRequest | None = None
    shelves: IndexFactory | None = None  # memory index, if hosts share one


def host_id() -> str:
    """Return an id that distinguishes this host from other hosts of the same store."""
    from ortet._util.codec import checksum

    try:
        machine = Path("/etc/machine-id").read_text()
    except OSError:
        machine = ""
    return checksum(f"{machine}\n{os.uname().nodename}".encode()).hex()


def default_author() -> str:
    """Return USER@HOST, the author if no setting names one."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a user name, common in containers
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
