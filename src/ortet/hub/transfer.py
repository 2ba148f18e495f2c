"""Branches and tags of one store brought into another, with all they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortet.backends.base import Head, Move, RowChange
from ortet.errors import Conflict, NotFound
from ortet.history.refs import is_ref_name
from ortet.history.transfer.bundle import BundleImport, Progress
from ortet.history.transfer.copy_missing import ObjectCopyReport, copy_missing
from ortet.ids import Oid, to_hex
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

_MAX_NAME_ATTEMPTS = 100
"""How often a name that another process was faster to take is replaced by the next."""


class TransferReport(msgspec.Struct, frozen=True):
    """What is there now: branches and tags by name, `moved` those of them that were not so before.
    `objects` travelled, in `bytes`; `known` were there. `kept` are tags that are others there."""

    branches: dict[str, str]
    tags: dict[str, str]
    moved: list[str]
    kept: list[str]
    objects: int
    bytes: int
    known: int


def transfer_refs(
    source: Hub,
    target: Hub,
    names: Sequence[str],
    *,
    fast_forward_only: bool,
    progress: Progress | None,
) -> TransferReport:
    """Of `source`, these branches and tags, or all. A branch that is another in `target`, or that
    somebody works on there, gets a number; with `forward` it is Conflict("not_forward")."""
    branches, tags = _select_refs(source, names)
    if fast_forward_only:
        _plan_branch_moves(
            source, target, branches, fast_forward_only=True
        )  # before anything travels
    return run_with_sweep_retry(
        target, lambda: _transfer(source, target, (branches, tags), fast_forward_only, progress)
    )


def _transfer(
    source: Hub,
    target: Hub,
    chosen: tuple[dict[str, Oid], dict[str, Oid]],
    fast_forward_only: bool,
    progress: Progress | None,
) -> TransferReport:
    branches, tags = chosen
    tips = list(dict.fromkeys([*branches.values(), *tags.values()]))
    with target.writing():
        heads = [head.oid for head in (*target.refs.branches(), *target.refs.tags())]
        carried = copy_missing(
            source.objects,
            target.objects,
            tips,
            flush=target.objects.flush,
            heads=heads,
            progress=progress,
        )
        rows: Sequence[RowChange] = ()
        if carried.heirs:
            found = BundleImport({**tags, **branches}, carried.heirs)
            rows = target.adopt_erasures(found, source.url)
        placed, new = move_heads(source, target, chosen, rows, fast_forward_only=fast_forward_only)
    return transfer_report(placed, tags, new, carried, target)


def move_heads(
    source: Hub,
    target: Hub,
    chosen: tuple[dict[str, Oid], dict[str, Oid]],
    rows: Sequence[RowChange],
    *,
    fast_forward_only: bool,
) -> tuple[dict[str, tuple[Oid | None, Oid]], dict[str, Oid]]:
    """Make branches and tags of what has come: where each branch went, and which tags are new."""
    branches, tags = chosen
    for _ in range(_MAX_NAME_ATTEMPTS):
        placed = _plan_branch_moves(source, target, branches, fast_forward_only=fast_forward_only)
        new = {name: oid for name, oid in tags.items() if target.refs.get(name, kind="tag") is None}
        moves = [
            *(
                Move(f"branch:{name}", was, oid)
                for name, (was, oid) in placed.items()
                if was != oid
            ),
            *(Move(f"tag:{name}", None, oid) for name, oid in new.items()),
        ]
        try:
            target.catalog.move(moves, verb="pull", actor=target.author, rows=rows)
        except Conflict as error:  # another process moved or made one of them meanwhile
            if error.kind == "swept":
                raise
            taken = error
        else:
            return placed, new
    raise taken


def _select_refs(source: Hub, names: Sequence[str]) -> tuple[dict[str, Oid], dict[str, Oid]]:
    branches = {head.name: head.oid for head in source.refs.branches()}
    tags = {head.name: head.oid for head in source.refs.tags()}
    for name in names:
        if name not in branches and name not in tags:
            raise ref_not_found(name, source.url)
    if not names:
        return branches, tags
    return (
        {name: branches[name] for name in names if name in branches},
        {name: tags[name] for name in names if name not in branches},
    )


def _plan_branch_moves(
    source: Hub, target: Hub, branches: Mapping[str, Oid], *, fast_forward_only: bool
) -> dict[str, tuple[Oid | None, Oid]]:
    """Where each branch goes: what is there now, and what is to be."""
    placed: dict[str, tuple[Oid | None, Oid]] = {}
    for name, oid in branches.items():
        candidate, number = name, 1
        while (
            found := _branch_move(source, target, candidate, oid)
        ) is None or candidate in placed:
            if fast_forward_only:
                raise _not_forward(target, name)
            number += 1
            candidate = (
                f"{name}-{number}" if is_ref_name(f"{name}-{number}") else f"pulled-{number}"
            )
        placed[candidate] = found
    return placed


def _branch_move(source: Hub, target: Hub, name: str, oid: Oid) -> tuple[Oid | None, Oid] | None:
    """The head and what it becomes; None where this branch is another."""
    head = target.refs.get(name)
    if head is None:
        return None if target.workspace_table.get(name) is not None else (None, oid)
    if head.oid == oid:
        return head.oid, oid
    if target.objects.has(oid) and _is_ancestor_of_head(target, oid, head):
        return head.oid, head.oid  # it has gone on there
    if _is_in_use(target, name) or not source.objects.has(head.oid):
        return None
    return (head.oid, oid) if source.history.is_ancestor(head.oid, oid) else None


def _is_ancestor_of_head(target: Hub, oid: Oid, head: Head) -> bool:
    return oid in target.history.ancestors(head.oid)


def _is_in_use(target: Hub, name: str) -> bool:
    """Somebody's files or mind are at its head, and would not be any more."""
    in_use = target.catalog.row("session-branch", name) is not None
    return in_use or target.workspace_table.get(name) is not None


def ref_not_found(name: str, where: object) -> NotFound:
    return NotFound("no_ref", f"{name!r} is no branch or tag of {where}: `ortet branch` lists them")


def _not_forward(target: Hub, name: str) -> Conflict:
    return Conflict(
        "not_forward",
        f"branch {name!r} of {target.url} has commits that are not here, or somebody works on it "
        "there: pull it and merge, then push a branch of another name",
        name=name,
    )


def transfer_report(
    placed: Mapping[str, tuple[Oid | None, Oid]],
    tags: Mapping[str, Oid],
    new: Mapping[str, Oid],
    carried: ObjectCopyReport | BundleImport,
    target: Hub,
) -> TransferReport:
    there = {name: target.refs.get(name, kind="tag") for name in tags}
    return TransferReport(
        branches={name: to_hex(oid) for name, (_, oid) in placed.items()},
        tags={name: to_hex(head.oid) for name, head in there.items() if head is not None},
        moved=[*(name for name, (was, oid) in placed.items() if was != oid), *new],
        kept=[name for name, head in there.items() if head and head.oid != tags[name]],
        objects=carried.objects,
        bytes=carried.bytes,
        known=carried.known,
    )
