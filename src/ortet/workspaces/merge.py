"""Merge into a workspace, and landing of a private workspace on its original directory."""

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
from ortet.history.merge.tree_merge import FileConflict, MergedImage, merge_images
from ortet.history.refs import Ref, ref_text
from ortet.ids import Oid, from_hex
from ortet.machines.base import Report
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.workspaces.workspace import Workspace


FAVOR_HINT = "choose favor='ours' or 'theirs'"
"""Advice about conflicts for Python callers. The command line has its own text."""


class MergeResult(msgspec.Struct, frozen=True):
    """The result of a merge.

    `commit` is None after a dry run. `conflicts` are those that `favor` settled, or that would stop
    the merge. `up_to_date` is True if there was nothing to merge.
    """

    commit: CommitInfo | None
    conflicts: list[FileConflict]
    up_to_date: bool = False


class MergeSides(NamedTuple):
    base: records.Image | None
    ours: records.Image
    theirs: records.Image

    def merge(self, hub: Hub, favor: Favor | None) -> MergedImage:
        return merge_images(hub.trees, hub.objects, **self._asdict(), favor=favor)


@retry_on_sweep
def merge(
    ours: Workspace, other: Workspace | Ref, *, message: str | None, favor: Favor | None
) -> MergeResult:
    """Merge `other` into `ours`; see `Workspace.merge`."""
    check_favor(favor)
    with _resolve_other(ours, other) as (label, private):
        if private is None:
            theirs = ours.resolve(label)
        else:
            theirs = from_hex(private.commit("before being merged").oid)
    hub, history = ours.hub, ours.hub.history
    with ours.exclusive_access():
        mine = ours.commit_pending(f"before merging {label}")
        if history.is_ancestor(theirs, mine):
            return MergeResult(commit=history.info(mine), conflicts=[], up_to_date=True)
        if private is None:
            pin_commit(hub, theirs, reachable_from=mine)
        if history.is_ancestor(mine, theirs):
            ours.restore_commit(theirs, "merge")
            return MergeResult(commit=history.info(theirs), conflicts=[])
        sides = MergeSides(_base(hub, mine, theirs), history.image(mine), history.image(theirs))
        merged = sides.merge(hub, favor)
        raise_on_conflicts(merged.conflicts, label)
        info = ours.apply_image(merged.image, message or f"merge {label}", [mine, theirs])
        return MergeResult(commit=info, conflicts=merged.conflicts)


def try_merge(ours: Workspace, other: Workspace | Ref, *, favor: Favor | None) -> MergeResult:
    """Return the result that a merge would have, without changing files or branches."""
    check_favor(favor)
    hub, head = ours.hub, ours.head
    theirs: CommitInfo | None
    with _resolve_other(ours, other) as (label, private):
        if private is None:
            theirs = hub.history.info(ours.resolve(label))
            image = hub.history.image(from_hex(theirs.oid))
        else:
            theirs, image = private.head, private.current_image()
    base = _base(hub, from_hex(head.oid), from_hex(theirs.oid)) if head and theirs else None
    mine = ours.current_image()
    with hub.writing():
        merged = MergeSides(base, mine, image).merge(hub, favor)
    same = merged.image == mine
    return MergeResult(commit=None, conflicts=merged.conflicts, up_to_date=same)


@retry_on_sweep
def land(private: Workspace, *, favor: Favor | None) -> Report:
    """Land a private workspace; see `Workspace.land`.

    Changes that were landed before are skipped.
    """
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
    with hub.inplace_workspace(row.directory) as origin, origin.exclusive_access():
        origin.refresh_head()  # another handle may have moved the branch
        ours = origin.commit_pending(f"before landing {row.name}")
        if hub.history.is_ancestor(theirs, ours):
            return Report()
        # without common history the base is the directory as it was when the private copy was made
        base = _base(hub, ours, theirs) or hub.read_image(Oid(row.base))
        before = hub.history.image(ours)
        merged = MergeSides(base, before, hub.history.image(theirs)).merge(hub, favor)
        raise_on_conflicts(
            without_generated(private.generated_directory, merged.conflicts), row.name
        )
        changes = diff_images(hub.trees, before, merged.image)
        origin.apply_image(merged.image, f"landed {row.name}", [ours, theirs])
    removed = sum(change.kind == "removed" for change in changes)
    return Report(written=len(changes) - removed, removed=removed)


@contextmanager
def _resolve_other(
    ours: Workspace, other: Workspace | Ref
) -> Iterator[tuple[str, Workspace | None]]:
    """Yield the label of the other side, and its workspace if it may hold uncommitted files."""
    if isinstance(other, str | CommitInfo):
        label = ref_text(other)
        with ours.hub.private_workspace(label) as private:
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


def without_generated(directory: str, conflicts: Sequence[FileConflict]) -> list[FileConflict]:
    """Drop conflicts in a directory that a session generates: our files stay there."""
    inside = f"{directory}/"
    return [one for one in conflicts if not directory or not f"{one.path}/".startswith(inside)]


def raise_on_conflicts(conflicts: Sequence[FileConflict], label: str) -> None:
    if open_ := [conflict for conflict in conflicts if not conflict.settled]:
        some = ", ".join(conflict.path for conflict in open_[:5])
        raise Conflict(
            "merge_conflict",
            f"{len(open_)} file(s) changed on both sides of {label!r} ({some}); nothing was "
            f"changed: edit one side and merge again, or {FAVOR_HINT}",
            conflicts=[msgspec.to_builtins(conflict) for conflict in open_],
        )
