"""Restores an image into an existing directory: staged, journaled, undoable, only what differs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import checksum
from ortet._util.failpoints import failpoint
from ortet.errors import Invalid, OrtetError
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.base import Report
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.capture.stat_index import StatIndex, stat_record
from ortet.machines.dirfd import (
    STAGE_PREFIX,
    DirFdCache,
    join_path,
    open_directory,
    remove_tree,
    translate_os_error,
)
from ortet.machines.restore.checkout import clear_acls, hardlink_groups, is_overlay, mount_key
from ortet.machines.restore.compare_images import (
    HardlinkGroups,
    ImageFiles,
    PathChange,
    RestorePlan,
    make_plan,
    select_paths,
)
from ortet.machines.restore.conflict_check import ChangeGuard
from ortet.machines.restore.step_order import needs_metadata, order_steps
from ortet.machines.restore.steps import (
    RestoreBegin,
    RestoreJournal,
    RestoreLog,
    apply_steps,
    open_target,
)
from ortet.machines.restore.write_entry import EntryWriter
from ortet.machines.restore.write_tree import TreeItem, WrittenItem, write_tree
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import get_bytes


def restore_directory(
    objects: ObjectStore,
    trees: Trees,
    root: Path,
    current: Image,
    target: Image,
    *,
    index: StatIndex,
    stage: Path,
    rules: IgnoreRules | None = None,
    paths: Sequence[bytes] | None = None,
) -> Report:
    """Make `root` equal to `target`.

    The restore is all or nothing: an error undoes it, and after kill -9 `recover_restore(stage)`
    does. Files that `rules` ignore, or that the ignore files of `target` will ignore, are never
    touched.

    Args:
        root: The directory. The caller has just taken the snapshot `current` of it.
        index: The stat index of `root`; it is updated with every change.
        stage: The machine's own directory for the restore journal.
        rules: The ignore rules at present.
        paths: Restore only at and below these paths.

    Raises:
        Conflict: "changed_meanwhile", if a file to be replaced is not as in `current`.
    """
    recover_restore(stage)
    plan, after = _compare(objects, trees, current, target, paths)
    if not plan.dirs:
        return Report()
    if root.is_symlink():  # only then: resolving /proc/PID/root would leave the machine
        root = Path(os.path.realpath(root))
    try:
        with open_directory(root) as top, DirFdCache(top) as dirs:
            work = _RestoreRun(
                objects,
                trees,
                dirs,
                root=root,
                index=index,
                stage=stage,
                rules=rules or IgnoreRules(),
                target_rules=_target_rules(objects, trees, after.root, plan),
            )
            return work.run(plan, after)
    except OSError as error:
        raise translate_os_error(error, f"cannot restore {root}") from error


def is_restore_noop(
    objects: ObjectStore, trees: Trees, current: Image, target: Image, paths: Sequence[bytes]
) -> bool:
    """Return True if a restore of these paths would change nothing."""
    return not _compare(objects, trees, current, target, paths)[0].dirs


def _target_rules(
    objects: ObjectStore, trees: Trees, root: TreeEntry, plan: RestorePlan
) -> IgnoreRules:
    """Return the ignore rules after the restore for the planned directories.

    The rules are empty if no ignore file changes.
    """
    rules = IgnoreRules()
    for change in plan.dirs if plan.has_new_rules else ():
        entry = trees.resolve(root, join_path(change.path, IGNORE_FILE))
        if entry is not None and entry.is_file:
            with contextlib.suppress(Invalid):  # the next commit reports the invalid rule
                rules.set_rules(change.path, get_bytes(objects, entry.data, entry.size))
    return rules


def _compare(
    objects: ObjectStore,
    trees: Trees,
    current: Image,
    target: Image,
    paths: Sequence[bytes] | None,
) -> tuple[RestorePlan, ImageFiles]:
    before = ImageFiles(current.root, hardlink_groups(objects, current))
    after = ImageFiles(target.root, hardlink_groups(objects, target))
    if paths is not None:
        after = select_paths(trees, before, after, paths)
    return make_plan(trees, before, after), after


def recover_restore(stage: Path) -> bool:
    """Undo an interrupted restore, or finish its cleanup. Return False if there was none."""
    return RestoreJournal(stage).recover()


class _RestoreRun:
    """One restore.

    The order of its phases makes it safe: check, stage, check again, write the journal, apply, mark
    as done, clean up.
    """

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        dirs: DirFdCache,
        *,
        root: Path,
        index: StatIndex,
        stage: Path,
        rules: IgnoreRules,
        target_rules: IgnoreRules,
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._dirs = dirs
        self._index = index
        self._journal = RestoreJournal(stage)
        self._writer = EntryWriter(objects)
        piecemeal = is_overlay(dirs.fd(b""))
        self._change_guard = ChangeGuard(
            dirs, trees, index=index, rules=rules, target_rules=target_rules, piecemeal=piecemeal
        )
        self._begin_record = _make_begin_record(root, stage)
        self._moves: list[PathChange] = []
        self._kept_paths: list[bytes] = []  # removed from the state, but kept on disk
        self._touched_dirs: set[bytes] = set()  # directories with added or removed names
        self._inexact_dirs: set[bytes] = set()  # directories that will differ from the image

    def run(self, plan: RestorePlan, after: ImageFiles) -> Report:
        self._check_plan(plan)
        inside = self._begin_record.mtime is not None
        try:
            self._journal.begin(self._begin_record)
            failpoint("thaw.begun")
            with _staging_area(self._begin_record) as area:
                written = self._write_staged(area, after.groups)
                failpoint("thaw.staged")
                self._change_guard.recheck()
                steps = list(
                    order_steps(
                        plan,
                        self._moves,
                        written,
                        dirs=self._dirs,
                        touched_dirs=self._touched_dirs,
                        piecemeal=self._change_guard.piecemeal,
                        is_present=self._change_guard.is_present,
                    )
                )
                self._journal.write_log(RestoreLog(steps, after.root.mtime if inside else None))
                failpoint("thaw.journaled")
                apply_steps(self._dirs, area, steps, self._change_guard.observed_stats)
                self._apply_metadata(plan)
                failpoint("thaw.settled")
            self._journal.mark_done()
        except BaseException:
            self._dirs.close()
            self._journal.recover()
            self._reindex_after_undo(plan)
            raise
        failpoint("thaw.done")
        with contextlib.suppress(OrtetError):  # the restore is complete; the next call cleans up
            self._journal.recover()
        self._update_index(plan, written)
        return Report(
            written=len(written) + len(plan.altered),
            removed=self._change_guard.removed_count,
            losses=list(dict.fromkeys(self._writer.losses)),
        )

    def _check_plan(self, plan: RestorePlan) -> None:
        """Compare the plan with the disk, and find out which part of it can be done."""
        self._touched_dirs |= plan.touched
        if self._begin_record.mtime is not None:
            self._touched_dirs.add(b"")
        for change in plan.dirs:
            self._change_guard.check_directory(change.path)
        for change in plan.altered:
            if self._change_guard.is_present(change.path) and change.old is not None:
                self._change_guard.check_unchanged(change.path, change.old)
        for change in plan.swaps:
            verdict = self._change_guard.check_swap(change)
            if verdict.spared:
                self._kept_paths.append(change.path)
                continue
            self._moves += verdict.moves
            self._touched_dirs.update(verdict.kept_dirs)
            if verdict.kept_dirs:
                self._kept_paths.append(change.path)
                self._writer.add_loss(change.path, "ignored", "it stays, as it holds ignored files")
            if verdict.blocked:
                self._writer.add_loss(change.path, "ignored", "an ignored file is in its place")
            if verdict.kept_dirs or verdict.blocked:
                self._inexact_dirs.add(change.path.rpartition(b"/")[0])

    def _write_staged(self, area: int, groups: HardlinkGroups) -> dict[bytes, WrittenItem]:
        """Write all new files into the staging area and return them by path."""
        items: list[TreeItem] = []
        for slot, (path, _, new) in enumerate(self._moves):
            if new is None:
                continue
            top = b"new.%d" % slot
            # A directory must be writable to be moved. Its own mode is set afterwards.
            first = replace(new, mode=new.mode | 0o700) if new.is_dir else new
            items.append(TreeItem(top, first, path))
            for place, entry in self._trees.walk(new, top):
                items.append(TreeItem(place, entry, path + place[len(top) :]))
        coming = {item.path for item in items}
        linked = [[path for path in group if path in coming] for group in groups]
        linked = [group for group in linked if len(group) > 1]
        written = write_tree(self._objects, area, items, linked, writer=self._writer)
        return {one.item.path: one for one in written}

    def _apply_metadata(self, plan: RestorePlan) -> None:
        """Set the metadata of files that stay, then of directories, the deepest first."""
        for path, _, new in plan.altered:
            if new is not None and self._change_guard.is_present(path):
                target = open_target(self._dirs, path, new.mode)
                self._writer.apply_metadata(target, new, path=path, fresh=False)
                failpoint("thaw.altered")
        for path, _, new in self._moves:
            if new is not None and new.is_dir:
                target = open_target(self._dirs, path, new.mode)
                self._writer.apply_metadata(target, new, path=path)
        for change in reversed(plan.dirs):
            if needs_metadata(change, self._touched_dirs) and change.new is not None:
                target = open_target(self._dirs, change.path, stat.S_IFDIR)
                self._writer.apply_metadata(target, change.new, path=change.path, fresh=False)

    def _update_index(self, plan: RestorePlan, written: dict[bytes, WrittenItem]) -> None:
        """Record all changes in the index: directories after their content, and only exact ones."""
        for path in self._kept_paths:
            self._index.forget(path)
        for path, old, _ in self._moves:
            if old is not None and path not in written:
                self._index.forget(path)
        moved = {move.path: move.new for move in self._moves}
        for path, (item, was) in written.items():
            # A rename or a link of any of its names has changed its ctime.
            again = path in moved or was.st_nlink > 1
            self._index_path(path, moved.get(path) or item.entry, None if again else was)
        for change in plan.altered:
            if change.new is not None and self._change_guard.is_present(change.path):
                self._index_path(change.path, change.new)
        for change in reversed(plan.dirs):
            if change.path not in self._inexact_dirs and change.new is not None:
                self._index_path(change.path, change.new)

    def _reindex_after_undo(self, plan: RestorePlan) -> None:
        """Record the old files after an undo. Their content is the same, but not their ctime."""
        for path, old, _ in [*self._moves, *plan.altered]:
            was = self._change_guard.observed_stats.get(path)
            if old is not None and not old.is_dir and was is not None:
                with contextlib.suppress(OSError):
                    now = open_target(self._dirs, path, old.mode).stat()
                    if stat_record(now)[:8] == stat_record(was)[:8]:
                        self._index.record(path, now, old)

    def _index_path(self, path: bytes, entry: TreeEntry, now: os.stat_result | None = None) -> None:
        with contextlib.suppress(OSError):  # changed in the meantime: the next scan will find it
            now = now or open_target(self._dirs, path, entry.mode).stat()
            self._index.record(path, now, entry)


def _make_begin_record(root: Path, stage: Path) -> RestoreBegin:
    """Choose the staging area: beside the root if possible, otherwise inside of it."""
    name = STAGE_PREFIX + checksum(os.fsencode(stage)).hex().encode()
    above = root.parent
    beside = root != above and os.access(above, os.W_OK | os.X_OK)
    if beside and mount_key(root) == mount_key(above):
        return RestoreBegin(os.fsencode(root), os.path.join(os.fsencode(above), name))
    mtime = os.stat(root).st_mtime_ns
    return RestoreBegin(os.fsencode(root), os.path.join(os.fsencode(root), name), mtime)


@contextlib.contextmanager
def _staging_area(begin: RestoreBegin) -> Iterator[int]:
    above, _, name = begin.area.rpartition(b"/")
    with open_directory(above or b"/") as parent_fd:
        remove_tree(parent_fd, name)  # only this machine uses this name
        os.mkdir(name, 0o700, dir_fd=parent_fd)
        with open_directory(name, parent_fd) as area:
            clear_acls(area)
            yield area
