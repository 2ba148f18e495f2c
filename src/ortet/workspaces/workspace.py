"""A workspace: a branch with a machine. Each verb is atomic and has a way back."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import encode
from ortet._util.failpoints import reach
from ortet._util.validation import BYTES, FLAG, SEVERAL, TEXT, TIMES, may_be, must_be
from ortet.backends.base import Lease
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.history import records
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import Change, diff_images
from ortet.history.refs import Ref
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Loss, Machine, Report
from ortet.objects.base import Kind
from ortet.sessions.history.participants import going
from ortet.sessions.results import MACHINE
from ortet.store.commit import check_message
from ortet.store.pin_commit import rely_on
from ortet.store.sweep_retry import anew
from ortet.workspaces.commit_participant import Together
from ortet.workspaces.machine_homes import Live
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.undo import Undoing

if TYPE_CHECKING:
    from ortet.history.merge.text_merge import Favor
    from ortet.hub.hub import Hub
    from ortet.objects.store import Durable
    from ortet.workspaces.merge import MergeResult


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


class Workspace(Undoing):
    """An open workspace. One thread at a time; leaving the `with` block closes it."""

    generated = ""  # a directory whose files are written anew at each commit: no conflicts there

    def __init__(self, hub: Hub, row: WorkspaceRow, live: Live) -> None:
        super().__init__(hub, row)
        self._machine, self._turn = live
        self._heirs: list[str] = []  # ids of the machines of forks that are being made
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.engine
        return f"<Workspace {self.name} ({state}) {self.row.directory}>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what it is

    @property
    def engine(self) -> str:
        return self._machine.engine

    @property
    def path(self) -> Path:
        """Where the host can read its files."""
        return self._machine.path

    @property
    def head(self) -> CommitInfo | None:
        self.look()
        return self.hub.history.info(self._head.oid) if self._head else None

    @property
    def losses(self) -> list[Loss]:
        """What the last commit could not capture."""
        return self._machine.losses

    # commit

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durable | None = None
    ) -> CommitInfo:
        """Record the present state; with nothing changed, the head is returned. One that would hold
        a secret that is known is Refused("secret_found"), unless you allow it. `durable`: see
        Session.commit."""
        must_be(TEXT._replace(kind="bad_message"), message=message)
        must_be(FLAG, allow_secrets=allow_secrets)
        promise = self.hub.objects.promising(durable)
        with self.hub.allowing(allow_secrets), promise:
            return self._commit(message)

    @anew
    def _commit(self, message: str) -> CommitInfo:
        with self._looking():
            check_message(self.hub.objects, message)
            return self._record(self._freeze(), message)

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Commits reachable from `ref`, by default from this branch, newest first."""
        return list(self.hub.history.log(self.resolve(ref), limit=limit))

    def status(self) -> Status:
        with self._looking() as machine:
            image = self.hub.read_image(machine.look())
            head = self.head
            before = self.image_at(from_hex(head.oid)) if head else None
            return Status(
                name=self.name,
                engine=self.engine,
                head=head.oid if head else None,
                changes=diff_images(self.hub.trees, before, image),
                losses=self.losses,
            )

    def diff(self, ref: Ref = "HEAD", other: Ref | None = None) -> list[Change]:
        """From `ref` to `other`, or to the present files when `other` is not given."""
        before = self.image_at(self.resolve(ref))
        if other is not None:
            after = self.image_at(self.resolve(other))
            return diff_images(self.hub.trees, before, after)
        with self._looking() as machine:
            return diff_images(self.hub.trees, before, self.hub.read_image(machine.look()))

    # back and forth

    @anew
    def restore(
        self,
        ref: Ref,
        *,
        only: Collection[str] | None = None,
        paths: Sequence[str | bytes] | str | bytes | None = None,
        restart: bool = False,
    ) -> Report:
        """Make the files those of `ref` and move the branch there; uncommitted work is kept first.
        Processes of that commit come back too; with `only` {"files"} those that run stay instead.

        With `paths`, only these come back and the branch stays where it is; what they replace,
        when it was not committed, is one step back in the reflog. With `restart`, services that ran
        then and do not run now are started by their commands.
        """
        must_be(FLAG, restart=restart)
        may_be(SEVERAL, only=[] if isinstance(only, str) else only)
        parts = MACHINE if only is None else {only} if isinstance(only, str) else set(only)
        if not parts or not parts <= MACHINE:
            what = "a workspace holds files and processes only: use only={'files'}"
            raise Invalid("nothing_to_restore", what)
        chosen = [paths] if isinstance(paths, str | bytes) else paths
        may_be(SEVERAL, paths=chosen)
        for one in chosen or ():
            must_be(BYTES, **{"one of paths": one})
        with self.moving():
            processes = "processes" in parts
            target = self.resolve(ref)
            if restart:
                self.check_restart(target)
            report = self.go(target, "restore", chosen, processes=processes, named=True)
            return self.restart(target, report) if restart else report

    @anew
    def rewind(self, n: int = 1) -> Report:
        """Restore the n-th commit back on this branch."""
        must_be(TIMES, n=n)
        with self.moving():
            head = self.head
            if head is None:
                raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
            target = self.hub.history.nth_parent(from_hex(head.oid), n)
            return self.go(target, "rewind")

    @anew
    def fork(self, n: int = 1) -> list[Workspace]:
        """n private copies as of now, each a branch of its own; all or none."""
        must_be(TIMES, n=n)
        with self._looking() as machine, self.heralding(n):
            point = self._record(self._freeze(), "fork point")
            return self.hub.fork(self.row, machine, from_hex(point.oid), n, self._heirs)

    @contextmanager
    def heralding(self, n: int) -> Iterator[None]:
        """A commit and n forks of it are made within: these may begin before that is there."""
        machine = self._live()
        self._heirs = self.hub.herald(self.row, machine, n)
        try:
            yield
        finally:
            self._heirs = []
            machine.herald([])

    @anew
    def fork_at(
        self, point: Oid, n: int, *, minds: Callable[[Sequence[str]], Together]
    ) -> tuple[list[Workspace], list[Lease]]:
        """n private copies as of the commit just made, and what `minds` adds to them."""
        heirs, self._heirs = self._heirs, []  # which are there once
        with self._looking() as machine:
            return self.hub.fork_with(self.row, machine, point, n, minds=minds, ids=heirs)

    # together again

    def merge(
        self,
        other: Workspace | Ref,
        *,
        message: str | None = None,
        favor: Favor | None = None,
        dry_run: bool = False,
    ) -> MergeResult:
        """Bring in what `other` changed since the common ancestor.

        What a private workspace, given itself or by name, has not committed is committed first.
        Conflicts are data: Conflict("merge_conflict") lists them and nothing is touched. `favor`
        ("ours" or "theirs") settles them; `dry_run` only returns what would happen.
        """
        from ortet.workspaces import merge as merging  # here: a commit does without it

        must_be(FLAG, dry_run=dry_run)
        may_be(TEXT, message=message)
        if dry_run:
            return merging.try_merge(self, other, favor=favor)
        return merging.merge(self, other, message=message, favor=favor)

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply what this private workspace changed to the original directory, all or nothing."""
        from ortet.workspaces import merge as merging

        return merging.land(self, favor=favor)

    def close(self) -> None:
        """Stop the machine; a private one's files stay and are there at the next open."""
        if not self._closed:
            self._closed = True
            self.hub.forget(self)
            self._end_kernels()
            Live(self._machine, self._turn).close()

    # what merging is made of

    def image(self) -> records.Image:
        """The present files, not committed."""
        with self._looking() as machine:
            return self.hub.read_image(machine.look())

    @contextmanager
    def moving(self) -> Iterator[None]:
        """No other process looks at the files, or moves them, during the block."""
        self._live()
        with self._turn.moving(), self.hub.writing():
            yield

    def keep(self, message: str) -> Oid:
        """Within `moving`: commit what is not committed; returns the head."""
        return from_hex(self._record(self._freeze(), message).oid)

    def go(
        self,
        target: Oid,
        verb: str,
        paths: Sequence[str | bytes] | None = None,
        *,
        processes: bool = True,
        detail: str = "",
        named: bool = False,  # perhaps only its id leads to it
    ) -> Report:
        """Within `moving`: bring the files, or some, to a commit, and when all, the branch too."""
        if paths is not None:
            return self._go_some(target, verb, [os.fsencode(path) for path in paths])
        safety = self.keep(f"before {verb}")
        if target == safety:
            return Report()
        if named:
            rely_on(self.hub, target, of=safety, branch=self.name)
        reach("restore.before-thaw")
        image = self._wanted(target, processes=processes)
        self.company.going(safety)
        with self._undone_to(safety):
            report = self._machine.thaw(image)
            reach("restore.after-thaw")
            together = self.company.leaving(target)
            self._move([(safety, target)], verb, detail or to_hex(target), together)
            reach("restore.after-move")
        self._at(target)
        self.company.arrived()
        self._machine.settle(image)
        return report

    @anew
    def bring(self, target: Oid, *, processes: bool) -> Report:
        """The files of a commit, to be committed or not: the branch stays where it is."""
        with self.moving():
            head = self._head.oid if self._head else None
            rely_on(self.hub, target, of=head, branch=self.name)
            return self._machine.thaw(self._wanted(target, processes=processes))

    def apply(self, image: records.Image, message: str, parents: Sequence[Oid]) -> CommitInfo:
        """Within `moving`: make the files those of an image and commit them with these parents."""
        with self._undone_to(parents[0]):
            self._machine.thaw(self.hub.objects.put(Kind.IMAGE, encode(image)))
            return self._record(self._freeze(), message, parents, "merge")

    def _go_some(self, target: Oid, verb: str, paths: Sequence[bytes]) -> Report:
        """Bring some paths to a commit; done twice, the second time changes nothing at all."""
        from ortet.machines.restore.restore import is_at  # here: a commit does without it

        hub, image = self.hub, self.image_oid(target)
        current = self._machine.look()
        before, after = hub.read_image(current), hub.read_image(image)
        if is_at(hub.objects, hub.trees, before, after, paths):
            return Report()
        self._keep_aside(current, f"before {verb}")
        reach("restore.before-thaw")
        return self._machine.thaw(image, paths)

    def _keep_aside(self, image: Oid, message: str) -> None:
        """Commit what is not committed to the reflog only: the branch stays where it is."""
        state = self._put_state(image)
        if self._head is None:  # then there is no place to come back to
            self._record(image, message)
        elif not self._stands(state):
            before = self._head.oid
            safety = self._put_commit(state, message, [before])
            self._move([(before, safety), (safety, before)], "restore", message)
            self._machine.settle(image)

    @contextmanager
    def _looking(self) -> Iterator[Machine]:
        """No other process moves the files during the block, and no sweep takes objects."""
        machine = self._live()
        with self._turn.looking(), self.hub.writing():
            yield machine

    @contextmanager
    def _undone_to(self, commit: Oid) -> Iterator[None]:
        """When the block fails before the head has moved, the files are those of `commit` again."""
        moves = self._moves
        try:
            yield
        except BaseException:
            if self._moves == moves:
                with suppress(OrtetError):  # the cause is what counts, and nothing is lost
                    self._machine.thaw(self.image_oid(commit))
                    self.company.stayed()
            raise

    def come_back(self) -> Workspace:
        """If a process was killed between moving the files and moving the branch, its mind knows
        those of before, so they come back; what else is found is kept in the reflog."""
        if going(self.hub.catalog, self.name) is None:
            return self
        with self.moving():
            safety = going(self.hub.catalog, self.name)
            if safety is not None and self._head is not None and self._head.oid == safety:
                self._keep_aside(self._machine.freeze(), "found after a restore that was cut short")
                self._machine.thaw(self.image_oid(safety))
            reach("restore.back")
            self.company.stayed()
        return self

    def _live(self) -> Machine:
        if self._closed:
            raise Invalid(
                "closed", f"workspace {self.name!r} is closed: open it again with the hub"
            )
        return self._machine

    def _record(
        self, image: Oid, message: str, parents: Sequence[Oid] = (), verb: str = "commit"
    ) -> CommitInfo:
        hub, state = self.hub, self._put_state(image)
        if not parents and self._head and self._stands(state):
            self._machine.settle(image)
            return hub.history.info(self._head.oid)
        before = self._head.oid if self._head else None
        oid = self._put_commit(state, message, list(parents) or ([before] if before else []))
        self._move([(before, oid)], verb, hub.history.read(oid).message)
        reach("commit.after-move")
        self._state, self._journal = state, self._sealed
        self.company.recorded()
        self._machine.settle(image)
        return hub.history.info(oid)
