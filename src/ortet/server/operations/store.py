"""Maintenance of the store: verify, sweep, statistics, and capabilities of its host."""

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
    """The contents of a store. `bytes`: the size of all objects; an object that is stored twice
    counts twice until a sweep. `sessions`: the number of sessions by status.
    """

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
    """Show the size of the store."""
    size, rows = hub.objects.stats(), hub.sessions()
    return StoreStats(
        bytes=size.pack_bytes + size.tail_bytes,
        objects=size.objects,
        packs=size.packs,
        pack_bytes=size.pack_bytes,
        tails=size.tails,
        tail_bytes=size.tail_bytes,
        sessions=dict(Counter(row.status for row in rows)),
        agents=dict(Counter(row.agent for row in rows)),
        branches=len(hub.refs.branches()),
        tags=len(hub.refs.tags()),
        workspaces=len(list(hub.workspaces.table.all())),
    )


@operation("POST", "/store/verify", needs="admin")
def verify(hub: Hub) -> VerifyReport:
    """Recompute every hash and follow every reference. Damage is answered as an error with the
    report.
    """
    return hub.verify()


class Sweep(OperationRequest, frozen=True):
    """`expire_days`: first delete reflog entries that are older. `min_garbage`: rewrite a pack if
    more than this fraction of it is garbage.
    """

    dry_run: bool = False
    expire_days: Annotated[float, msgspec.Meta(ge=0, le=100_000)] | None = None
    min_garbage: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Swept(SweepReport, frozen=True):
    """`layers_removed`: the number of cached copies of files that were removed because no machine
    uses them.
    """

    bytes_freed: int
    layers_removed: int


@operation("POST", "/store/sweep", needs="admin")
def sweep(hub: Hub, ask: Sweep) -> Swept:
    """Free the space of objects that no branch, tag, reflog entry or running writer refers to.
    Other processes may keep working. A dry run only reports the objects.
    """
    age = None if ask.expire_days is None else int(ask.expire_days * _DAY_NS)
    report = hub.sweep(dry_run=ask.dry_run, expire_ns=age, min_garbage=ask.min_garbage)
    layers = 0 if ask.dry_run else hub.maintenance.tidy()[1]
    return Swept(
        **msgspec.structs.asdict(report), bytes_freed=report.bytes_freed, layers_removed=layers
    )


class Drop(OperationRequest, frozen=True):
    """`discard`: do not commit uncommitted changes first."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    discard: bool = False


class Dropped(msgspec.Struct, frozen=True):
    name: str


@operation("DELETE", "/workspaces/{name}", needs="admin")
def drop(pool: SessionPool, ask: Drop) -> Dropped:
    """Delete a workspace and the files of its machine. Its branch and commits stay."""
    with pool.hub() as hub:
        hub.workspaces.table.need(ask.name)
        row = hub.internals.session_manager.table.find_by_branch(ask.name)
    with pool.hub() if row is None else pool.with_session_closed(row) as hub:
        hub.drop(ask.name, discard=ask.discard)
    return Dropped(ask.name)


class WriteOut(OperationRequest, frozen=True):
    """`to`: the absolute path of a new directory on the server's host."""

    commit: Ref
    to: Annotated[str, msgspec.Meta(min_length=2, max_length=4000, pattern=r"^/[^\x00]*$")]


@operation("POST", "/commits/{commit}/write", needs="admin")
def write_out(hub: Hub, ask: WriteOut, caller: Caller) -> Report:
    """Write the files of a commit into a new directory on the server's host."""
    caller.need_host()
    return hub.restore(ask.commit, Path(ask.to))


class HostInfo(msgspec.Struct, frozen=True):
    """The capabilities of a host, with the reason for each that is missing. `leftovers`: remains of
    crashes, which a sweep removes.
    """

    capabilities: list[Capability]
    leftovers: list[Leftover]


@operation("GET", "/host", needs="admin")
def doctor(hub: Hub, caller: Caller) -> HostInfo:
    """Check the capabilities of the server's host. Each capability is really tried."""
    from ortet.machines.doctor import probe_host

    caller.need_host()
    return HostInfo(probe_host(hub.root, criu=criu_setting()), hub.maintenance.leftovers())
