"""Bringing two lines of work together: merge into a workspace, land on the original directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet.errors import Conflict, Invalid
from ortet.history import records
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import diff_images
from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import FileConflict, Merged, merge_images
from ortet.history.refs import Ref, text_of
from ortet.ids import Oid, from_hex
from ortet.machines.base import Report
from ortet.store.pin_commit import rely_on
from ortet.store.sweep_retry import anew

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.workspaces.workspace import Workspace


CHOOSE = "choose favor='ours' or 'theirs'"
"""What to do about conflicts, in Python's words; the command line has its own."""


class MergeResult(msgspec.Struct, frozen=True):
    """`commit` is None after a dry run. `conflicts` are those that `favor` settled, or would stop
    it. `up_to_date`: all of it was here already."""

    commit: CommitInfo | None
    conflicts: list[FileConflict]
    up_to_date: bool = False


class Sides(NamedTuple):
    base: records.Image | None
    ours: records.Image
    theirs: records.Image

    def merged(self, hub: Hub, favor: Favor | None) -> Merged:
        return merge_images(hub.trees, hub.objects, **self._asdict(), favor=favor)


@anew
def merge(
    ours: Workspace, other: Workspace | Ref, *, message: str | None, favor: Favor | None
) -> MergeResult:
    """See Workspace.merge."""
    check_favor(favor)
    with _meant(ours, other) as (label, private):
        if private is None:
            theirs = ours.resolve(label)
        else:
            theirs = from_hex(private.commit("before being merged").oid)
    hub, history = ours.hub, ours.hub.history
    with ours.moving():
        mine = ours.keep(f"before merging {label}")
        if history.is_ancestor(theirs, mine):
            return MergeResult(commit=history.info(mine), conflicts=[], up_to_date=True)
        if private is None:
            rely_on(hub, theirs, of=mine)
        if history.is_ancestor(mine, theirs):
            ours.go(theirs, "merge")
            return MergeResult(commit=history.info(theirs), conflicts=[])
        sides = Sides(_base(hub, mine, theirs), history.image(mine), history.image(theirs))
        merged = sides.merged(hub, favor)
        refuse(merged.conflicts, label)
        info = ours.apply(merged.image, message or f"merge {label}", [mine, theirs])
        return MergeResult(commit=info, conflicts=merged.conflicts)


def try_merge(ours: Workspace, other: Workspace | Ref, *, favor: Favor | None) -> MergeResult:
    """What a merge would meet; neither files nor branches are touched."""
    check_favor(favor)
    hub, head = ours.hub, ours.head
    theirs: CommitInfo | None
    with _meant(ours, other) as (label, private):
        if private is None:
            theirs = hub.history.info(ours.resolve(label))
            image = hub.history.image(from_hex(theirs.oid))
        else:
            theirs, image = private.head, private.image()
    base = _base(hub, from_hex(head.oid), from_hex(theirs.oid)) if head and theirs else None
    mine = ours.image()
    with hub.writing():
        merged = Sides(base, mine, image).merged(hub, favor)
    same = merged.image == mine
    return MergeResult(commit=None, conflicts=merged.conflicts, up_to_date=same)


@anew
def land(private: Workspace, *, favor: Favor | None) -> Report:
    """See Workspace.land. What was landed before, and not undone since, is not landed again."""
    check_favor(favor)
    row, hub = private.row, private.hub
    if row.files != "private":
        raise Invalid(
            "not_private",
            f"{row.name!r} is the project itself, so there is nothing to land: name one of its "
            f"forks, such as {row.name}/1 (`ortet branch` lists them)",
        )
    if row.room:
        raise Invalid(
            "no_directory",
            f"{row.name!r} came from no directory, so there is none to land on: write a commit to "
            "one with hub.restore(ref, to=…), or merge it into the session it was forked from",
        )
    theirs = from_hex(private.commit("before landing").oid)
    with hub.inplace(row.directory) as origin, origin.moving():
        origin.look()  # it may be open twice, and its other self has moved on
        ours = origin.keep(f"before landing {row.name}")
        if hub.history.is_ancestor(theirs, ours):
            return Report()
        # without common history it is what the directory held when the private copy was made
        base = _base(hub, ours, theirs) or hub.read_image(Oid(row.base))
        before = hub.history.image(ours)
        merged = Sides(base, before, hub.history.image(theirs)).merged(hub, favor)
        refuse(apart_from(private.generated, merged.conflicts), row.name)
        changes = diff_images(hub.trees, before, merged.image)
        origin.apply(merged.image, f"landed {row.name}", [ours, theirs])
    removed = sum(change.kind == "removed" for change in changes)
    return Report(written=len(changes) - removed, removed=removed)


@contextmanager
def _meant(ours: Workspace, other: Workspace | Ref) -> Iterator[tuple[str, Workspace | None]]:
    """What the other side is called; and for the block its workspace, when files of its own may
    hold what is not committed."""
    if isinstance(other, str | CommitInfo):
        label = text_of(other)
        with ours.hub.private(label) as private:
            yield label, private
    elif hasattr(other, "hub"):
        yield other.name, _same_store(ours, other)
    else:
        raise Invalid("bad_ref", f"cannot merge {other!r}: give a workspace, a branch or a commit")


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


def check_favor(favor: str | None) -> None:
    if favor not in (None, "ours", "theirs"):
        raise Invalid("bad_favor", f"favor={favor!r}: give 'ours' or 'theirs'")


def apart_from(directory: str, conflicts: Sequence[FileConflict]) -> list[FileConflict]:
    """Without those in a directory whose files a session writes anew: what is there stays."""
    inside = f"{directory}/"
    return [one for one in conflicts if not directory or not f"{one.path}/".startswith(inside)]


def refuse(conflicts: Sequence[FileConflict], label: str) -> None:
    if open_ := [conflict for conflict in conflicts if not conflict.settled]:
        some = ", ".join(conflict.path for conflict in open_[:5])
        raise Conflict(
            "merge_conflict",
            f"{len(open_)} file(s) changed on both sides of {label!r} ({some}); nothing was "
            f"changed: edit one side and merge again, or {CHOOSE}",
            conflicts=[msgspec.to_builtins(conflict) for conflict in open_],
        )
