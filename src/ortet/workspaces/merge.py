"""Merge into a workspace, and landing of a private workspace on its original directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ortet.errors import Conflict, Invalid
from ortet.history import records
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import diff_images
from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import FileConflict, MergedImage, merge_images
from ortet.ids import Oid, from_hex
from ortet.machines.base import Report
from ortet.store.context import StoreContext
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.files import WorkspaceFiles
from ortet.workspaces.table import WorkspaceRow

FAVOR_HINT = "choose favor='ours' or 'theirs'"
"""Advice about conflicts for Python callers. The command line has its own text."""


class MergeResult(msgspec.Struct, frozen=True):
    """The result of a merge.

    Attributes:
        commit: The merge commit, or None after a dry run.
        conflicts: Conflicts that `favor` settled, or that would stop the merge.
        up_to_date: True if there was nothing to merge.
    """

    commit: CommitInfo | None
    conflicts: list[FileConflict]
    up_to_date: bool = False


class MergeSides(NamedTuple):
    base: records.Image | None
    ours: records.Image
    theirs: records.Image

    def merge(self, store: StoreContext, favor: Favor | None) -> MergedImage:
        return merge_images(store.trees, store.objects, **self._asdict(), favor=favor)


class OtherFiles(NamedTuple):
    """The other side of a merge of files.

    `private` are its files if it is a private workspace, which may hold uncommitted work.
    """

    label: str
    private: WorkspaceFiles | None = None


@retry_on_sweep
def merge(
    ours: WorkspaceFiles, source: OtherFiles, *, message: str | None, favor: Favor | None
) -> MergeResult:
    """Merge `source` into `ours`; see `Workspace.merge`."""
    check_favor(favor)
    label, private = source
    if private is None:
        theirs = ours.branch.resolve(label)
    else:
        theirs = from_hex(private.commit("before being merged").oid)
    store, history = ours.store, ours.store.history
    with ours.exclusive_access():
        mine = ours.commit_pending(f"before merging {label}")
        if history.is_ancestor(theirs, mine):
            return MergeResult(commit=history.info(mine), conflicts=[], up_to_date=True)
        if private is None:
            pin_commit(store, theirs, reachable_from=mine)
        if history.is_ancestor(mine, theirs):
            ours.restore_commit(theirs, "merge")
            return MergeResult(commit=history.info(theirs), conflicts=[])
        sides = MergeSides(_base(store, mine, theirs), history.image(mine), history.image(theirs))
        merged = sides.merge(store, favor)
        raise_on_conflicts(merged.conflicts, label)
        info = ours.apply_image(merged.image, message or f"merge {label}", [mine, theirs])
        return MergeResult(commit=info, conflicts=merged.conflicts)


def try_merge(ours: WorkspaceFiles, source: OtherFiles, *, favor: Favor | None) -> MergeResult:
    """Return the result that a merge would have, without changing files or branches."""
    check_favor(favor)
    store, head = ours.store, ours.head
    theirs: CommitInfo | None
    if source.private is None:
        theirs = store.history.info(ours.branch.resolve(source.label))
        image = store.history.image(from_hex(theirs.oid))
    else:
        theirs, image = source.private.head, source.private.current_image()
    base = _base(store, from_hex(head.oid), from_hex(theirs.oid)) if head and theirs else None
    mine = ours.current_image()
    with store.writing():
        merged = MergeSides(base, mine, image).merge(store, favor)
    same = merged.image == mine
    return MergeResult(commit=None, conflicts=merged.conflicts, up_to_date=same)


def check_landable(row: WorkspaceRow) -> None:
    """Raise Invalid unless a workspace has a directory of its own to land on."""
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


@retry_on_sweep
def land(
    private: WorkspaceFiles, origin: WorkspaceFiles, theirs: Oid, favor: Favor | None
) -> Report:
    """Apply the commit `theirs` of a private workspace to its original directory.

    Changes that were landed before are skipped. See `Workspace.land`.
    """
    row, store = private.branch.row, private.store
    with origin.exclusive_access():
        origin.branch.refresh_head()  # another handle may have moved the branch
        ours = origin.commit_pending(f"before landing {row.name}")
        if store.history.is_ancestor(theirs, ours):
            return Report()
        # without common history the base is the directory as it was when the private copy was made
        base = _base(store, ours, theirs) or store.read_image(Oid(row.base))
        before = store.history.image(ours)
        merged = MergeSides(base, before, store.history.image(theirs)).merge(store, favor)
        raise_on_conflicts(
            without_generated(private.generated_directory, merged.conflicts), row.name
        )
        changes = diff_images(store.trees, before, merged.image)
        origin.apply_image(merged.image, f"landed {row.name}", [ours, theirs])
    removed = sum(change.kind == "removed" for change in changes)
    return Report(written=len(changes) - removed, removed=removed)


def _base(store: StoreContext, ours: Oid, theirs: Oid) -> records.Image | None:
    base = store.history.merge_base(ours, theirs)
    return store.history.image(base) if base else None


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
