"""Make a live directory equal to an image: staged, journaled, undoable, only what differs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import checksum
from ortet._util.failpoints import reach
from ortet.errors import Invalid, OrtetError
from ortet.history.records import Entry, Image
from ortet.history.tree.tree import Trees
from ortet.machines.base import Report
from ortet.machines.capture.ignore_rules import FILE, Rules
from ortet.machines.capture.stat_index import StatIndex, seen
from ortet.machines.dirfd import STAGE, Dirs, directory, failure, remove
from ortet.machines.restore.checkout import is_overlay, mount_of, plain
from ortet.machines.restore.conflict_check import Looker
from ortet.machines.restore.journal import Begin, Journal, Log
from ortet.machines.restore.materialise import links_of
from ortet.machines.restore.plan import Change, Groups, Plan, Side, join, make_plan, select
from ortet.machines.restore.steps import Drop, Keep, Place, Step, act, meta_of, target_at
from ortet.machines.restore.write_entry import Writer
from ortet.machines.restore.write_tree import Item, Made, build
from ortet.objects.base import Objects
from ortet.objects.blobs import get_bytes


def thaw(
    objects: Objects,
    trees: Trees,
    root: Path,
    current: Image,
    target: Image,
    *,
    index: StatIndex,
    stage: Path,
    rules: Rules | None = None,
    paths: Sequence[bytes] | None = None,
) -> Report:
    """Bring `root`, which the caller has just frozen as `current`, to `target`.

    All or nothing: an error puts everything back, and after kill -9 `recover(stage)` does. With
    `paths` only what is at and below them. What is no state by `rules`, or will be none by the
    ignore files of `target`, is never touched.
    Conflict("changed_meanwhile") when something that would be replaced is not what `current` says.
    `index` knows `root` and learns of every change; `stage` is the machine's own directory for
    the journal.
    """
    recover(stage)
    plan, after = _compare(objects, trees, current, target, paths)
    if not plan.dirs:
        return Report()
    if root.is_symlink():  # only then: /proc/PID/root, resolved, would lead out of a machine
        root = Path(os.path.realpath(root))
    try:
        with directory(root) as top, Dirs(top) as dirs:
            work = _Thaw(
                objects,
                trees,
                dirs,
                root=root,
                index=index,
                stage=stage,
                rules=rules or Rules(),
                coming=_coming(objects, trees, after.root, plan),
            )
            return work.run(plan, after)
    except OSError as error:
        raise failure(error, f"cannot restore {root}") from error


def is_at(
    objects: Objects, trees: Trees, current: Image, target: Image, paths: Sequence[bytes]
) -> bool:
    """Whether a thaw of these paths would change nothing."""
    return not _compare(objects, trees, current, target, paths)[0].dirs


def _coming(objects: Objects, trees: Trees, root: Entry, plan: Plan) -> Rules:
    """What the ignore files will say where the plan goes, when that is not what they say now."""
    rules = Rules()
    for change in plan.dirs if plan.new_rules else ():
        entry = trees.resolve(root, join(change.path, FILE))
        if entry is not None and entry.is_file:
            with contextlib.suppress(Invalid):  # the next commit will say that it is none
                rules.set(change.path, get_bytes(objects, entry.data, entry.size))
    return rules


def _compare(
    objects: Objects,
    trees: Trees,
    current: Image,
    target: Image,
    paths: Sequence[bytes] | None,
) -> tuple[Plan, Side]:
    before = Side(current.root, links_of(objects, current))
    after = Side(target.root, links_of(objects, target))
    if paths is not None:
        after = select(trees, before, after, paths)
    return make_plan(trees, before, after), after


def recover(stage: Path) -> bool:
    """Undo a thaw that was killed, or finish its cleaning up; False when there was none."""
    return Journal(stage).recover()


class _Thaw:
    """One run. Its order is its safety: look, stage, look again, journal, act, mark done, clean."""

    def __init__(
        self,
        objects: Objects,
        trees: Trees,
        dirs: Dirs,
        *,
        root: Path,
        index: StatIndex,
        stage: Path,
        rules: Rules,
        coming: Rules,
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._dirs = dirs
        self._index = index
        self._journal = Journal(stage)
        self._writer = Writer(objects)
        piecemeal = is_overlay(dirs.fd(b""))
        self._looker = Looker(
            dirs, trees, index=index, rules=rules, coming=coming, piecemeal=piecemeal
        )
        self._begin = _begin(root, stage)
        self._moves: list[Change] = []
        self._stayed: list[bytes] = []  # what goes from the state and stays on disk
        self._touched: set[bytes] = set()  # directories in which names come or go
        self._unsure: set[bytes] = set()  # directories that will not be as the image says

    def run(self, plan: Plan, after: Side) -> Report:
        self._look(plan)
        inside = self._begin.mtime is not None
        try:
            self._journal.begin(self._begin)
            reach("thaw.begun")
            with _area(self._begin) as area:
                made = self._stage(area, after.groups)
                reach("thaw.staged")
                self._looker.again()
                steps = list(self._steps(plan, made))
                self._journal.write(Log(steps, after.root.mtime if inside else None))
                reach("thaw.journaled")
                act(self._dirs, area, steps, self._looker.stats)
                self._settle(plan)
                reach("thaw.settled")
            self._journal.done()
        except BaseException:
            self._dirs.close()
            self._journal.recover()
            self._remember(plan)
            raise
        reach("thaw.done")
        with contextlib.suppress(OrtetError):  # it is complete; the next call cleans up again
            self._journal.recover()
        self._record(plan, made)
        return Report(
            written=len(made) + len(plan.altered),
            removed=self._looker.gone,
            losses=list(dict.fromkeys(self._writer.losses)),
        )

    def _look(self, plan: Plan) -> None:
        """Check the plan against the disk, and find out what can be done of it."""
        self._touched |= plan.touched
        if self._begin.mtime is not None:
            self._touched.add(b"")
        for change in plan.dirs:
            self._looker.directory(change.path)
        for change in plan.altered:
            if self._looker.is_there(change.path) and change.old is not None:
                self._looker.same(change.path, change.old)
        for change in plan.swaps:
            verdict = self._looker.swap(change)
            if verdict.spared:
                self._stayed.append(change.path)
                continue
            self._moves += verdict.moves
            self._touched.update(verdict.kept)
            if verdict.kept:
                self._stayed.append(change.path)
                self._writer.lose(change.path, "ignored", "it stays, as it holds ignored files")
            if verdict.blocked:
                self._writer.lose(change.path, "ignored", "an ignored file is in its place")
            if verdict.kept or verdict.blocked:
                self._unsure.add(change.path.rpartition(b"/")[0])

    def _stage(self, area: int, groups: Groups) -> dict[bytes, Made]:
        """Write everything new into the area; returns it by path."""
        items: list[Item] = []
        for slot, (path, _, new) in enumerate(self._moves):
            if new is None:
                continue
            top = b"new.%d" % slot
            # a directory that is to be moved must be writable; it gets its own mode afterwards
            first = replace(new, mode=new.mode | 0o700) if new.is_dir else new
            items.append(Item(top, first, path))
            for place, entry in self._trees.walk(new, top):
                items.append(Item(place, entry, path + place[len(top) :]))
        coming = {item.path for item in items}
        linked = [[path for path in group if path in coming] for group in groups]
        linked = [group for group in linked if len(group) > 1]
        made = build(self._objects, area, items, linked, writer=self._writer)
        return {one.item.path: one for one in made}

    def _steps(self, plan: Plan, made: dict[bytes, Made]) -> Iterator[Step]:
        """Metadata first: undone last, it also restores the times that moving names changes."""
        dirs = {change.path for change in plan.dirs if self._to_settle(change)} | self._touched
        if self._looker.piecemeal or os.geteuid():  # else they move as they are
            dirs |= {path for path, old, _ in self._moves if old is not None and old.is_dir}
        for path in sorted(dirs):
            yield meta_of(self._dirs, path, stat.S_IFDIR)
        for change in plan.altered:
            if change.new is not None and self._looker.is_there(change.path):
                yield meta_of(self._dirs, change.path, change.new.mode)
        for slot, (path, old, new) in enumerate(self._moves):
            if old is not None and old.is_dir and self._looker.piecemeal:
                yield Drop(path)
            elif old is not None:
                link = not old.is_dir and new is not None and not new.is_dir and path in made
                # without root, an overlay shows every name of a file with its own inode number
                link = link and not (self._looker.piecemeal and os.geteuid())
                yield Keep(path, slot, link)
            if path in made:
                now = made[path].stat
                yield Place(path, slot, now.st_ino, now.st_size, now.st_mtime_ns)

    def _to_settle(self, change: Change) -> bool:
        old, new = change.old, change.new
        if change.path in self._touched or old is None or new is None:
            return True
        return replace(old, data=new.data, cid=new.cid) != new

    def _settle(self, plan: Plan) -> None:
        """Metadata of files that stay, then of directories, the deepest first."""
        for path, _, new in plan.altered:
            if new is not None and self._looker.is_there(path):
                target = target_at(self._dirs, path, new.mode)
                self._writer.settle(target, new, path=path, fresh=False)
                reach("thaw.altered")
        for path, _, new in self._moves:
            if new is not None and new.is_dir:
                target = target_at(self._dirs, path, new.mode)
                self._writer.settle(target, new, path=path)
        for change in reversed(plan.dirs):
            if self._to_settle(change) and change.new is not None:
                target = target_at(self._dirs, change.path, stat.S_IFDIR)
                self._writer.settle(target, change.new, path=change.path, fresh=False)

    def _record(self, plan: Plan, made: dict[bytes, Made]) -> None:
        """Tell the index, directories after what they hold, and only those that came out right."""
        for path in self._stayed:
            self._index.forget(path)
        for path, old, _ in self._moves:
            if old is not None and path not in made:
                self._index.forget(path)
        moved = {move.path: move.new for move in self._moves}
        for path, (item, was) in made.items():
            # the last rename, of it or of another of its names, has moved its ctime
            again = path in moved or was.st_nlink > 1
            self._learn(path, moved.get(path) or item.entry, None if again else was)
        for change in plan.altered:
            if change.new is not None and self._looker.is_there(change.path):
                self._learn(change.path, change.new)
        for change in reversed(plan.dirs):
            if change.path not in self._unsure and change.new is not None:
                self._learn(change.path, change.new)

    def _remember(self, plan: Plan) -> None:
        """After going back: the old files are the same, but renames have moved their ctime."""
        for path, old, _ in [*self._moves, *plan.altered]:
            was = self._looker.stats.get(path)
            if old is not None and not old.is_dir and was is not None:
                with contextlib.suppress(OSError):
                    now = target_at(self._dirs, path, old.mode).stat()
                    if seen(now)[:8] == seen(was)[:8]:
                        self._index.record(path, now, old)

    def _learn(self, path: bytes, entry: Entry, now: os.stat_result | None = None) -> None:
        with contextlib.suppress(OSError):  # whoever changed it already: the next scan will see
            now = now or target_at(self._dirs, path, entry.mode).stat()
            self._index.record(path, now, entry)


def _begin(root: Path, stage: Path) -> Begin:
    """The area lies beside the root where it can; else in it."""
    name = STAGE + checksum(os.fsencode(stage)).hex().encode()
    above = root.parent
    beside = root != above and os.access(above, os.W_OK | os.X_OK)
    if beside and mount_of(root) == mount_of(above):
        return Begin(os.fsencode(root), os.path.join(os.fsencode(above), name))
    mtime = os.stat(root).st_mtime_ns
    return Begin(os.fsencode(root), os.path.join(os.fsencode(root), name), mtime)


@contextlib.contextmanager
def _area(begin: Begin) -> Iterator[int]:
    above, _, name = begin.area.rpartition(b"/")
    with directory(above or b"/") as at:
        remove(at, name)  # its name is ours alone
        os.mkdir(name, 0o700, dir_fd=at)
        with directory(name, at) as area:
            plain(area)
            yield area
