"""A workspace: a branch with a machine. Each verb is atomic and has a way back."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet.backend.abc import Head, Move
from ortet.codec import encode
from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.graph import records
from ortet.graph.commits import CommitInfo
from ortet.graph.diff import Change, diff_images
from ortet.ids import Oid, from_hex, to_hex
from ortet.machine.abc import Command, Loss, Machine, Output, Report, Result
from ortet.session.registry import WorkspaceRow
from ortet.store.abc import Kind
from ortet.store.faults import reach

if TYPE_CHECKING:
    from ortet.graph.merge import FileConflict, Merged
    from ortet.graph.textmerge import Favor
    from ortet.session.hub import Hub


class Status(msgspec.Struct, frozen=True):
    """What a commit would record now."""

    name: str
    engine: str
    head: str | None
    changes: list[Change]
    losses: list[Loss]

    @property
    def clean(self) -> bool:
        return not self.changes


class MergeResult(msgspec.Struct, frozen=True):
    """`commit` is None when there are conflicts: then nothing was changed."""

    commit: CommitInfo | None
    conflicts: list[FileConflict]


class Workspace:
    """An open workspace. One thread at a time; leaving the `with` block closes it."""

    def __init__(self, hub: Hub, row: WorkspaceRow, machine: Machine) -> None:
        self._hub = hub
        self._row = row
        self._machine = machine
        self._head: Head | None = None
        self._state: bytes = b""
        self._closed = False
        self._look()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what it is

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def engine(self) -> str:
        return self._machine.engine

    @property
    def path(self) -> Path:
        """Where the host can read its files."""
        return self._machine.path

    @property
    def head(self) -> CommitInfo | None:
        self._look()
        return self._hub.history.info(self._head.oid) if self._head else None

    @property
    def losses(self) -> list[Loss]:
        """What the last commit could not capture."""
        return self._machine.losses

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output: Output | None = None,
    ) -> Result:
        """Run a command in the machine, with the workspace as working directory."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return self._live().run(
            command, env=env, cwd=cwd, timeout=timeout, stdin=data, output=output
        )

    # commit

    def commit(self, message: str = "") -> CommitInfo:
        """Record the present state; with nothing changed, the head is returned."""
        machine = self._live()
        with self._hub.writing():
            image = machine.freeze()
            return self._record(image, message)

    def status(self) -> Status:
        image = self._hub.read_image(self._live().freeze())
        head = self.head
        before = self._hub.history.image(from_hex(head.oid)) if head else None
        return Status(
            name=self.name,
            engine=self.engine,
            head=head.oid if head else None,
            changes=diff_images(self._hub.trees, before, image),
            losses=self.losses,
        )

    def diff(self, ref: str = "HEAD", other: str | None = None) -> list[Change]:
        """From `ref` to `other`, or to the present files when `other` is not given."""
        before = self._hub.history.image(self._resolve(ref))
        if other is not None:
            after = self._hub.history.image(self._resolve(other))
        else:
            after = self._hub.read_image(self._live().freeze())
        return diff_images(self._hub.trees, before, after)

    # back and forth

    def restore(
        self,
        ref: str,
        *,
        only: Collection[str] | None = None,
        paths: Sequence[str | bytes] | None = None,
    ) -> Report:
        """Make the files those of `ref` and move the branch there; uncommitted work is kept first.

        With `paths`, only these come back and the branch stays where it is.
        """
        if only is not None and "files" not in set(only):
            raise Invalid("nothing_to_restore", "a workspace holds files only: use only={'files'}")
        target = self._resolve(ref)
        return self._go(target, "restore", paths)

    def rewind(self, n: int = 1) -> Report:
        """Restore the n-th commit back on this branch."""
        head = self.head
        if head is None:
            raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
        target = self._hub.history.nth_parent(from_hex(head.oid), n)
        return self._go(target, "rewind", None)

    def fork(self, n: int = 1) -> list[Workspace]:
        """n private copies as of now, each a branch of its own; all or none."""
        if n < 1:
            raise Invalid("bad_count", f"cannot fork {n} times: give a number from 1")
        point = self.commit("fork point")
        return self._hub.fork(self._row, self._live(), from_hex(point.oid), n)

    # together again

    def merge(
        self,
        other: Workspace | str,
        *,
        message: str | None = None,
        favor: Favor | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Bring in what `other` changed since the common ancestor.

        Conflicts are data: Conflict("merge_conflict") lists them and nothing is touched. `favor`
        ("ours" or "theirs") settles them; `dry_run` only returns what would happen.
        """
        if favor not in (None, "ours", "theirs"):
            raise Invalid("bad_favor", f"favor={favor!r}: give 'ours' or 'theirs'")
        label, theirs = self._other(other)
        ours = from_hex(self.commit(f"before merging {label}").oid)
        history = self._hub.history
        if history.is_ancestor(theirs, ours):
            return MergeResult(commit=history.info(ours), conflicts=[])
        if history.is_ancestor(ours, theirs):
            if not dry_run:
                self._go(theirs, "merge", None)
            return MergeResult(commit=None if dry_run else history.info(theirs), conflicts=[])
        base = history.merge_base(ours, theirs)
        sides = history.image(ours), history.image(theirs)
        merged = self._three_way(history.image(base) if base else None, *sides, favor)
        if dry_run:
            return MergeResult(commit=None, conflicts=merged.conflicts)
        _refuse(merged.conflicts, label)
        info = self._apply(merged.image, message or f"merge {label}", [ours, theirs])
        return MergeResult(commit=info, conflicts=merged.conflicts)

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply what this private workspace changed to the original directory, all or nothing."""
        if self._row.files != "private":
            raise Invalid(
                "not_private", f"{self.name!r} is in place: its directory has it all already"
            )
        theirs_commit = from_hex(self.commit("before landing").oid)
        theirs = self._hub.history.image(theirs_commit)
        with self._hub.workspace(self._row.directory, engine="folder") as origin:
            return self._land_on(origin, theirs, theirs_commit, favor)

    def close(self) -> None:
        """Stop the machine; a private one's files stay and are there at the next open."""
        if not self._closed:
            self._closed = True
            self._machine.close()
            self._hub.forget(self)

    # inside

    def _live(self) -> Machine:
        if self._closed:
            raise Invalid(
                "closed", f"workspace {self.name!r} is closed: open it again with the hub"
            )
        return self._machine

    def _look(self) -> None:
        self._head = self._hub.catalog.head(f"branch:{self.name}")
        self._state = self._hub.history.read(self._head.oid).state if self._head else b""

    def _resolve(self, ref: str) -> Oid:
        return self._hub.refs.resolve(ref, default_branch=self.name)

    def _record(
        self, image: Oid, message: str, parents: Sequence[Oid] = (), verb: str = "commit"
    ) -> CommitInfo:
        hub = self._hub
        state = hub.objects.put(Kind.STATE, encode(records.State(machine=image)))
        if self._head and state == self._state and not parents:
            self._machine.settle(image)
            return hub.history.info(self._head.oid)
        before = self._head.oid if self._head else None
        commit = records.Commit(
            state=state,
            parents=list(parents) or ([before] if before else []),
            message=message,
            time=hub.clock.now_ns(),
            author=hub.author,
        )
        oid = hub.objects.put(Kind.COMMIT, encode(commit))
        reach("commit.before-flush")
        hub.objects.flush()
        reach("commit.after-flush")
        self._move(before, oid, verb, message)
        reach("commit.after-move")
        self._state = state
        self._machine.settle(image)
        return hub.history.info(oid)

    def _move(self, before: Oid | None, after: Oid, verb: str, detail: str) -> None:
        hub, name = self._hub, f"branch:{self.name}"
        try:
            hub.catalog.move(
                [Move(name, before, after)], verb=verb, actor=hub.author, detail=detail
            )
        except Conflict as error:
            self._look()
            now = to_hex(self._head.oid)[:12] if self._head else "nothing"
            raise Conflict(
                "head_moved",
                f"branch {self.name!r} was moved to {now} by another process; your files are "
                f"untouched: repeat the call to go on from there, or restore {now} first",
                name=self.name,
            ) from error
        self._head = Head(name=name, oid=after, version=0, time=0)
        hub.signal.notify(name)

    def _go(self, target: Oid, verb: str, paths: Sequence[str | bytes] | None) -> Report:
        machine = self._live()
        safety = self.commit(f"before {verb}")
        if to_hex(target) == safety.oid and paths is None:
            return Report()
        reach("restore.before-thaw")
        image = self._hub.image_oid(target)
        if paths is not None:
            return machine.thaw(image, [_raw(path) for path in paths])
        report = machine.thaw(image)
        reach("restore.after-thaw")
        try:
            self._move(from_hex(safety.oid), target, verb, to_hex(target))
        except OrtetError:
            machine.thaw(self._hub.image_oid(from_hex(safety.oid)))
            raise
        self._state = self._hub.history.read(target).state
        machine.settle(image)
        return report

    def _apply(self, image: records.Image, message: str, parents: Sequence[Oid]) -> CommitInfo:
        with self._hub.writing():
            before = self._hub.image_oid(parents[0])
            oid = self._hub.objects.put(Kind.IMAGE, encode(image))
            self._machine.thaw(oid)
            try:
                return self._record(self._machine.freeze(), message, parents, "merge")
            except OrtetError:
                with suppress(OrtetError):
                    self._machine.thaw(before)
                raise

    def _other(self, other: Workspace | str) -> tuple[str, Oid]:
        if isinstance(other, Workspace):
            return other.name, from_hex(other.commit("before being merged").oid)
        return other, self._resolve(other)

    def _three_way(
        self,
        base: records.Image | None,
        ours: records.Image,
        theirs: records.Image,
        favor: Favor | None,
    ) -> Merged:
        from ortet.graph.merge import merge_images  # here: a commit does without it

        trees, objects = self._hub.trees, self._hub.objects
        return merge_images(trees, objects, base=base, ours=ours, theirs=theirs, favor=favor)

    def _land_on(
        self, origin: Workspace, theirs: records.Image, theirs_commit: Oid, favor: Favor | None
    ) -> Report:
        ours_commit = from_hex(origin.commit(f"before landing {self.name}").oid)
        ours = self._hub.history.image(ours_commit)
        base = self._hub.read_image(Oid(self._row.base))
        merged = self._three_way(base, ours, theirs, favor)
        _refuse(merged.conflicts, self.name)
        changes = diff_images(self._hub.trees, ours, merged.image)
        origin._apply(merged.image, f"landed {self.name}", [ours_commit, theirs_commit])
        landed = self._hub.image_oid(theirs_commit)
        self._row = msgspec.structs.replace(self._row, base=landed)
        self._hub.registry.save(self._row)
        removed = sum(change.kind == "removed" for change in changes)
        return Report(written=len(changes) - removed, removed=removed)


def _refuse(conflicts: Sequence[FileConflict], label: str) -> None:
    if open_ := [conflict for conflict in conflicts if not conflict.settled]:
        some = ", ".join(conflict.path for conflict in open_[:5])
        raise Conflict(
            "merge_conflict",
            f"{len(open_)} file(s) changed on both sides of {label!r} ({some}); nothing was "
            "changed: edit one side and merge again, or choose favor='ours' or 'theirs'",
            conflicts=[msgspec.to_builtins(conflict) for conflict in open_],
        )


def _raw(path: str | bytes) -> bytes:

    return os.fsencode(path).strip(b"/")
