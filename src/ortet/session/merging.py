"""Bringing two lines of work together: merge into a workspace, land on the original directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet.errors import Conflict, Invalid
from ortet.graph import records
from ortet.graph.commits import CommitInfo
from ortet.graph.diff import diff_images
from ortet.graph.merge import FileConflict, Merged, merge_images
from ortet.graph.textmerge import Favor
from ortet.ids import Oid, from_hex
from ortet.machine.abc import Report

if TYPE_CHECKING:
    from ortet.session.hub import Hub
    from ortet.session.workspace import Workspace


class MergeResult(msgspec.Struct, frozen=True):
    """`commit` is None after a dry run. `conflicts` are those that `favor` settled, or would stop
    it."""

    commit: CommitInfo | None
    conflicts: list[FileConflict]


class _Sides(NamedTuple):
    base: records.Image | None
    ours: records.Image
    theirs: records.Image

    def merged(self, hub: Hub, favor: Favor | None) -> Merged:
        return merge_images(hub.trees, hub.objects, **self._asdict(), favor=favor)


def merge(
    ours: Workspace, other: Workspace | str, *, message: str | None, favor: Favor | None
) -> MergeResult:
    """See Workspace.merge."""
    _check_favor(favor)
    label, theirs = _other(ours, other)
    hub, history = ours.hub, ours.hub.history
    with ours.moving():
        mine = ours.keep(f"before merging {label}")
        if history.is_ancestor(theirs, mine):
            return MergeResult(commit=history.info(mine), conflicts=[])
        if history.is_ancestor(mine, theirs):
            ours.go(theirs, "merge")
            return MergeResult(commit=history.info(theirs), conflicts=[])
        sides = _Sides(_base(hub, mine, theirs), history.image(mine), history.image(theirs))
        merged = sides.merged(hub, favor)
        _refuse(merged.conflicts, label)
        info = ours.apply(merged.image, message or f"merge {label}", [mine, theirs])
        return MergeResult(commit=info, conflicts=merged.conflicts)


def try_merge(ours: Workspace, other: Workspace | str, *, favor: Favor | None) -> MergeResult:
    """What a merge would meet; neither files nor branches are touched."""
    _check_favor(favor)
    hub, head = ours.hub, ours.head
    theirs: CommitInfo | None
    if isinstance(other, str):
        theirs = hub.history.info(ours.resolve(other))
        image = hub.history.image(from_hex(theirs.oid))
    else:
        theirs, image = _same_store(ours, other).head, other.image()
    base = _base(hub, from_hex(head.oid), from_hex(theirs.oid)) if head and theirs else None
    sides = _Sides(base, ours.image(), image)
    with hub.writing():
        merged = sides.merged(hub, favor)
    return MergeResult(commit=None, conflicts=merged.conflicts)


def land(private: Workspace, *, favor: Favor | None) -> Report:
    """See Workspace.land. What was landed before, and not undone since, is not landed again."""
    _check_favor(favor)
    row, hub = private.row, private.hub
    if row.files != "private":
        raise Invalid("not_private", f"{row.name!r} is in place: its directory has it all already")
    theirs = from_hex(private.commit("before landing").oid)
    with hub.inplace(row.directory) as origin, origin.moving():
        origin.look()  # it may be open twice, and its other self has moved on
        ours = origin.keep(f"before landing {row.name}")
        if hub.history.is_ancestor(theirs, ours):
            return Report()
        # without common history it is what the directory held when the private copy was made
        base = _base(hub, ours, theirs) or hub.read_image(Oid(row.base))
        before = hub.history.image(ours)
        merged = _Sides(base, before, hub.history.image(theirs)).merged(hub, favor)
        _refuse(merged.conflicts, row.name)
        changes = diff_images(hub.trees, before, merged.image)
        origin.apply(merged.image, f"landed {row.name}", [ours, theirs])
    removed = sum(change.kind == "removed" for change in changes)
    return Report(written=len(changes) - removed, removed=removed)


def _other(ours: Workspace, other: Workspace | str) -> tuple[str, Oid]:
    if isinstance(other, str):
        return other, ours.resolve(other)
    theirs = _same_store(ours, other).commit("before being merged")
    return other.name, from_hex(theirs.oid)


def _same_store(ours: Workspace, other: Workspace) -> Workspace:
    if other.hub.root.resolve() != ours.hub.root.resolve():
        raise Invalid(
            "other_store",
            f"{other.name!r} is in another store, {other.hub.root}: export it there, import it "
            "here, then merge the branch",
        )
    return other


def _base(hub: Hub, ours: Oid, theirs: Oid) -> records.Image | None:
    base = hub.history.merge_base(ours, theirs)
    return hub.history.image(base) if base else None


def _check_favor(favor: str | None) -> None:
    if favor not in (None, "ours", "theirs"):
        raise Invalid("bad_favor", f"favor={favor!r}: give 'ours' or 'theirs'")


def _refuse(conflicts: Sequence[FileConflict], label: str) -> None:
    if open_ := [conflict for conflict in conflicts if not conflict.settled]:
        some = ", ".join(conflict.path for conflict in open_[:5])
        raise Conflict(
            "merge_conflict",
            f"{len(open_)} file(s) changed on both sides of {label!r} ({some}); nothing was "
            "changed: edit one side and merge again, or choose favor='ours' or 'theirs'",
            conflicts=[msgspec.to_builtins(conflict) for conflict in open_],
        )
