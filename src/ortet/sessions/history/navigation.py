"""The verbs of a session that lead to another state of mind and files: commit, restore, fork."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import msgspec

from ortet._util.validation import FLAG, TIMES, check_text, must_be
from ortet.errors import NotFound
from ortet.history.commits import CommitInfo
from ortet.history.records import State
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Report
from ortet.sessions.environment.environments import recorded_in, recorded_of
from ortet.sessions.environment.external_state import staying
from ortet.sessions.environment.tracker import Surrounded
from ortet.sessions.history.commit import Branch
from ortet.sessions.history.lapsed import deeds_since, lapsed
from ortet.sessions.memory.believing import publish
from ortet.sessions.results import MACHINE, PARTS, Parts, Restored, check_parts
from ortet.sessions.table import Roll, SessionRow
from ortet.store.commit import check_message
from ortet.store.pin_commit import rely_on
from ortet.store.sweep_retry import anew

if TYPE_CHECKING:
    from ortet.history.diff.tree_diff import Change
    from ortet.history.merge.text_merge import Favor
    from ortet.history.refs import Ref
    from ortet.objects.store import Durable
    from ortet.sessions.history.merge import Merged
    from ortet.sessions.reader import View
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import Halt, Interrupted, Losers, SwarmResult, Task, Watcher
    from ortet.workspaces.undo import Undone, Way
    from ortet.workspaces.workspace import Workspace


class Moving(Surrounded):
    """The half of Session that knows its branch."""

    _branch: Branch
    _image: bytes

    @property
    @abstractmethod
    def machine(self) -> Workspace: ...

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durable | None = None
    ) -> CommitInfo:
        """Record mind and files together; with nothing new, the head is returned. One that would
        hold a secret that is known is Refused("secret_found"), unless you allow it.

        `durable` is where it is on return, in a store that hosts share: "remote", in its bucket, or
        "local", on this host's disk, from where it is uploaded later; None: as the store was
        opened. Until then other hosts cannot read it, and it is lost with this disk."""
        check_text(message=message)
        must_be(FLAG, allow_secrets=allow_secrets)
        with self._hub.allowing(allow_secrets), self._hub.objects.promising(durable):
            return self._commit(message)

    def _commit(self, message: str) -> CommitInfo:
        self._live()
        self._take_in()
        began = self._now()
        self._before_commit()
        info = self._record(message)
        self._publish()
        now = self._now()
        self._pace.committed(now, now - began)
        return info

    def _publish(self, upto: int | None = None) -> None:
        """Tell others what was learned for them, and is committed."""
        ledger = self._ledger
        seq = ledger.line.base.seq if upto is None else upto
        lease = self.holding.lease
        self._is(
            publish(
                self._sessions, self._row, line=ledger.line, mind=ledger.mind, upto=seq, lease=lease
            )
        )

    def _is(self, row: SessionRow) -> None:
        self._row = self._host.row = row

    def refresh(self) -> None:
        """Believe what the memories that it shares say now: a session that was restored, and each
        fork, believes what they said then, until it tells them something itself."""
        self._live()
        if self._row.beliefs is not None:
            self._host.dirty = self._host.dirty or bool(self._row.beliefs)
            self._believe(None)
            self._host.dirty = self._host.dirty or bool(self.shared())

    def _believe(self, memory: bytes | None) -> None:
        """Of what is shared: as that Memory says, or all there is."""
        if self._row.beliefs != memory:
            row = msgspec.structs.replace(self._row, beliefs=memory)
            self._hub.catalog.move(
                [], verb="refresh", lease=self.holding.lease, rows=[Roll.changed(row)]
            )
            self._is(row)

    @contextmanager
    def _staying_up_to_date(self) -> Iterator[None]:
        """Who knew all there is goes on to: what is taken over from another is no way back."""
        live = self._host.up_to_date = self._row.beliefs is None
        try:
            yield
        finally:
            self._host.up_to_date = False
        self._publish()
        if live:  # also where nothing moved
            self._believe(None)

    def _record(self, message: str) -> CommitInfo:
        files = self._workspace()
        if files is not None:
            return files.commit(message)
        return self._record_mind(message)

    def commit_last(self, message: str) -> CommitInfo:
        """The same with what alone is no reason for a commit. When the directory is gone, files
        are those of the head."""
        self._host.dirty = self._host.dirty or self._ledger.tip.seq != self.line.base.seq
        try:
            return self.commit(message)
        except NotFound as error:
            if error.kind != "no_directory":
                raise
            return self._record_mind(message)

    @anew
    def _record_mind(self, message: str) -> CommitInfo:
        at = self._branch.head
        if at is not None and self._host.unchanged(at, self._image):
            return self._hub.history.info(at)
        with self._hub.writing():
            check_message(self._hub.objects, message)
            head = self._hub.history.state(at) if at else State()
            journal = self._host.journal(head.journal)
            state = State(journal, self._host.memory(head.memory), self._image)
            info = self._branch.record(state, message, lease=self.holding.lease)
            self._host.recorded()
        return info

    def restore(
        self, ref: str, *, only: Collection[str] | None = None, restart: bool = False
    ) -> Restored:
        """Go to a commit: mind, files and processes, or `only` some; what is uncommitted is kept
        first. Processes come with the files they were frozen with; those that run stay where only
        files are asked for. With `restart`, services that ran then and do not run now are started.

        Deeds stay done and money stays spent: the report says which deeds.
        """
        self._live()
        parts = check_parts(only)
        target = self._hub.refs.resolve(ref, default_branch=self._row.branch)
        if restart and (files := self._workspace()) is not None:
            files.check_restart(target)
        found = self._go(target, "restore", parts, named=True)
        if not restart or self._files is None:
            return found
        report = self._files.restart(target, found.files)
        return msgspec.structs.replace(found, files=report)

    def rewind(self, n: int = 1) -> Restored:
        """Restore the n-th commit back on this branch, mind and files together."""
        self._live()
        must_be(TIMES, n=n)
        head = self.head
        if head is None:
            raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
        target = self._hub.history.nth_parent(from_hex(head.oid), n)
        return self._go(target, "rewind", PARTS)

    def undo(self, n: int = 1, *, dry_run: bool = False) -> Undone:
        """Go back to before the last n things that moved this session's branch, mind and files
        together; files that are not committed are the first of them, or without files what was
        said since. Deeds stay done: the report says which. `redo` goes forth again."""
        return self._travel("undo", n, dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> Undone:
        """Do the last n things again that were undone, unless something else was done since."""
        return self._travel("redo", n, dry_run)

    def _travel(self, way: Way, n: int, dry_run: bool) -> Undone:
        from ortet.workspaces.undo import Files, plan

        must_be(TIMES, n=n)
        must_be(FLAG, dry_run=dry_run)
        self._live()
        self._must_move(way)
        hub, branch, machine = self._hub, self._row.branch, self._workspace()
        files = Files(machine.image(), machine.image_at) if machine is not None else None
        found = plan(hub, branch, way, n, files=files, dirty=self._host.dirty)
        if dry_run:
            self._settle()
            return found.foreseen(hub, branch)
        was = self.commit(found.message).oid
        restored = self._go(found.target, way, PARTS, detail=found.detail)
        return found.done(hub, from_hex(was), restored, kept=found.dirty)

    def _go(
        self, target: Oid, verb: str, parts: Parts, *, detail: str = "", named: bool = False
    ) -> Restored:
        self._budget.count()  # a killed process's time is counted from here on
        safety = from_hex(self.commit(f"before {verb}").oid)
        files, report = self._workspace(), Report()
        if target != safety and "mind" in parts:
            self._leave_behind(verb)
        processes = "processes" in parts
        if target != safety and files is not None and parts & MACHINE:
            if "mind" in parts:
                report = self._go_files(target, verb, detail, processes=processes, named=named)
            else:
                report = files.bring(target, processes=processes)
        elif target != safety and "mind" in parts:
            self._go_mind(target, verb, detail, whole="files" in parts, named=named)
        elif "mind" in parts:
            self._believe(self._hub.history.state(target).memory)
        deeds = deeds_since(self._hub, self._row, target)
        around = self._since_restore(mind="mind" in parts)
        then = recorded_of(self)[1] if "mind" in parts else recorded_in(self._sessions, target)
        secrets = lapsed(self._sessions, target, then)
        return Restored(to_hex(target), report, deeds, staying(self, deeds), around, secrets)

    def _leave_behind(self, verb: str) -> None:
        """What belongs to the state that it is in, and to no other: that is committed."""

    @anew
    def _go_files(
        self, target: Oid, verb: str, detail: str, *, processes: bool, named: bool
    ) -> Report:
        with self.machine.moving():
            return self.machine.go(target, verb, processes=processes, detail=detail, named=named)

    @anew
    def _go_mind(
        self, target: Oid, verb: str, detail: str = "", *, whole: bool, named: bool = False
    ) -> None:
        with self._hub.writing():
            if named:
                rely_on(self._hub, target, of=self._branch.head, branch=self._row.branch)
            together = self._host.leaving(target)
            if whole:
                self._branch.move(
                    target,
                    verb,
                    detail or to_hex(target),
                    lease=together.lease,
                    rows=together.rows,
                    timelines=together.timelines,
                    appends=together.appends,
                )
                self._branch.look()
                self._image = self._hub.history.state(target).machine
            else:
                rows, lines, lease = together.rows, together.timelines, together.lease
                self._hub.catalog.move([], verb=verb, lease=lease, rows=rows, timelines=lines)
            self._host.arrived()
            if not whole:
                self._host.dirty = True

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        """n sessions that go on from here, with minds of their own, and files unless `machine` is
        False; all or none."""
        from ortet.sessions.history.forking import fork_files, fork_minds

        must_be(FLAG, machine=machine)
        must_be(TIMES, n=n)
        self._live()
        self._take_in()
        files = self._workspace()
        point = self._branch.head if files is None else None
        fork = fork_files if machine and files is not None else fork_minds
        with files.heralding(n) if fork is fork_files and files is not None else nullcontext():
            if point is None or not self._host.unchanged(point, self._image):
                point = from_hex(self.commit("fork point").oid)
            self._budget.give_back()  # so that the forks find it
            forks = fork(self._sessions, self, point, n)
        for one in forks:
            one.take_after(self)
        return forks

    def swarm(
        self,
        task: Task | None = None,
        n: int = 8,
        *,
        score: Task | None = None,
        keep: int | str = 1,
        parallel: int = 2,
        budget: Mapping[str, float] | None = None,
        stop_when: Callable[[SwarmResult], bool] | float | None = None,
        timeout: float | None = None,
        harvest: bool = False,
        losers: Losers = "drop",
        name: str | None = None,
        at: Ref | None = None,
        interrupted: Interrupted = "again",
        on: str | None = None,
        needs: Mapping[str, float] | None = None,
        progress: Watcher | None = None,
        halt: Halt | None = None,
    ) -> SwarmResult:
        """n attempts at a task from here, or from the commit `at`: each in a process and a fork of
        its own, `parallel` at once; scored, and the best adopted.

        `task(session, i)` is a function that can be imported, or a command for the machine. `score`
        likewise, higher is better; a command's is the number it prints last, else 0 for exit code 0
        and less for others; without one it is what the task returned or printed. `keep`: 1 adopts
        the best, k > 1 leaves the k best as sessions, 0 none, "merge" (or "merge:K") brings all (or
        the K best) together here. `budget` is each attempt's share of the family's; `stop_when`, a
        score or asked after each, ends the others. An attempt that fails, dies or takes longer than
        `timeout` seconds costs itself only. `harvest`: learn what the losers learned. `on`
        "ray" or "ray://HOST:PORT" they run on nodes that have what one `needs`, as {"cpu": 2}.

        A swarm whose process was killed goes on when it is called again with the same `name`;
        attempts that were `interrupted` are repeated, or "count". `halt`: another thread ends it.
        """
        from ortet.sessions.swarm_api import Wish

        wish = Wish(
            task=task,
            n=n,
            score=score,
            keep=keep,
            parallel=parallel,
            budget=budget,
            stop_when=stop_when,
            timeout=timeout,
            harvest=harvest,
            losers=losers,
            name=name,
            at=at,
            interrupted=interrupted,
            on=on,
            needs=needs,
            progress=progress,
            halt=halt,
        )
        self._live()
        self._must_move("swarm")
        return self._hub.swarms.run(cast("Session", self), wish)

    def merge(self, other: View | Ref, *, message: str = "", favor: Favor | None = None) -> Merged:
        """Bring in what another session, branch or commit knows and changed: one commit of both.

        Conversation, plan and processes stay ours; facts, lessons, decisions and artifacts are
        united, files merged. Contradictions are in the report; file conflicts are
        Conflict("merge_conflict"), and nothing was changed, unless `favor` says who wins.
        """
        from ortet.sessions.history.merge import merge

        check_text(message=message)
        self._live()
        self._take_in()
        self._must_move("merge")
        with self._staying_up_to_date():
            return merge(self, self._sessions, other, message=message, favor=favor)

    def adopt(self, other: View | Ref) -> Restored:
        """Take the state of another session, branch or commit, mind and files: it is ours now.

        What was here is committed first and stays in the reflog; deeds stay done. Of a session
        without files only the mind is taken.
        """
        from ortet.sessions.history.merge import other_of

        self._live()
        self._must_move("adopt")
        found = other_of(self, self._sessions, other)
        mind_only = self._workspace() is not None and not found.has_files
        with self._staying_up_to_date():
            parts = frozenset({"mind"}) if mind_only else PARTS
            report = self._go(found.commit, "adopt", parts, named=found.row is None)
            if mind_only:
                self.commit(f"adopted {found.label}")
        return report

    def _must_move(self, verb: str) -> None:
        """A session that is replayed stays where it is."""

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply what this session changed to the original directory, all or nothing."""
        return self.machine.land(favor=favor)

    def diff(self, ref: str = "HEAD", other: str | None = None) -> list[Change]:
        """Files, from `ref` to `other`, or to the present ones when `other` is not given."""
        return self.machine.diff(ref, other)
