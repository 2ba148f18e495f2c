"""Care of the store: is it whole, what can go, how much it holds, what its host can do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec

from ortet.config.environment import criu_setting
from ortet.hub.hub import Hub
from ortet.machines.base import Capability, Report
from ortet.machines.cleanup import Leftover
from ortet.objects.gc.sweep import SweepReport
from ortet.objects.gc.verify import VerifyReport
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.schemas import OperationRequest, Ref
from ortet.server.session_pool.pool import SessionPool

_DAY_NS = 86_400 * 10**9


class StoreStats(msgspec.Struct, frozen=True):
    """What a store holds. `bytes` are those of all objects; objects that are stored twice count
    twice until a sweep. `sessions` are counted by status."""

    bytes: int
    objects: int
    packs: int
    pack_bytes: int
    tails: int
    tail_bytes: int
    sessions: dict[str, int]
    agents: dict[str, int]
    branches: int
    tags: int
    workspaces: int


@operation("GET", "/store")
def stats(hub: Hub) -> StoreStats:
    """How much the store holds."""
    found, rows = hub.objects.stats(), hub.sessions()
    return StoreStats(
        bytes=found.pack_bytes + found.tail_bytes,
        objects=found.objects,
        packs=found.packs,
        pack_bytes=found.pack_bytes,
        tails=found.tails,
        tail_bytes=found.tail_bytes,
        sessions=dict(Counter(row.status for row in rows)),
        agents=dict(Counter(row.agent for row in rows)),
        branches=len(hub.refs.branches()),
        tags=len(hub.refs.tags()),
        workspaces=len(list(hub.workspaces.table.all())),
    )


@operation("POST", "/store/verify", needs="admin")
def verify(hub: Hub) -> VerifyReport:
    """Recompute every hash, follow every reference. What is wrong is an error, with the report."""
    return hub.verify()


class Sweep(OperationRequest, frozen=True):
    """`expire_days`: first let go of what the reflog says that is older. `min_garbage`: rewrite a
    pack when more than this fraction of it is of nobody."""

    dry_run: bool = False
    expire_days: Annotated[float, msgspec.Meta(ge=0, le=100_000)] | None = None
    min_garbage: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Swept(SweepReport, frozen=True):
    """`layers_removed` are copies of files, kept to be fast, that no machine rests on."""

    bytes_freed: int
    layers_removed: int


@operation("POST", "/store/sweep", needs="admin")
def sweep(hub: Hub, ask: Sweep) -> Swept:
    """Free what no branch, tag, reflog entry or running writer refers to, beside those who work;
    or only tell what that would be."""
    age = None if ask.expire_days is None else int(ask.expire_days * _DAY_NS)
    found = hub.sweep(dry_run=ask.dry_run, expire_ns=age, min_garbage=ask.min_garbage)
    layers = 0 if ask.dry_run else hub.maintenance.tidy()[1]
    return Swept(
        **msgspec.structs.asdict(found), bytes_freed=found.bytes_freed, layers_removed=layers
    )


class Drop(OperationRequest, frozen=True):
    """`discard`: what no commit holds is not committed first."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    discard: bool = False


class Dropped(msgspec.Struct, frozen=True):
    name: str


@operation("DELETE", "/workspaces/{name}", needs="admin")
def drop(rooms: SessionPool, ask: Drop) -> Dropped:
    """Forget a workspace and its machine's files; its branch and commits stay."""
    with rooms.hub() as hub:
        hub.workspaces.table.need(ask.name)
        row = hub.session_manager.table.find_by_branch(ask.name)
    with rooms.hub() if row is None else rooms.with_session_closed(row) as hub:
        hub.drop(ask.name, discard=ask.discard)
    return Dropped(ask.name)


class WriteOut(OperationRequest, frozen=True):
    """`to` is a directory of the server's host that is not there yet, as an absolute path."""

    commit: Ref
    to: Annotated[str, msgspec.Meta(min_length=2, max_length=4000, pattern=r"^/[^\x00]*$")]


@operation("POST", "/commits/{commit}/write", needs="admin")
def write_out(hub: Hub, ask: WriteOut, caller: Caller) -> Report:
    """Write the files of a commit into a new directory of the server's host."""
    caller.need_host()
    return hub.restore(ask.commit, Path(ask.to))


class HostInfo(msgspec.Struct, frozen=True):
    """What a host can do, and why not the rest; `leftovers` are what crashes left: a sweep removes
    them."""

    capabilities: list[Capability]
    leftovers: list[Leftover]


@operation("GET", "/host", needs="admin")
def doctor(hub: Hub, caller: Caller) -> HostInfo:
    """What the server's host can do; all of it is tried for real."""
    from ortet.machines.doctor import probe_host

    caller.need_host()
    return HostInfo(probe_host(hub.root, criu=criu_setting()), hub.maintenance.leftovers())
