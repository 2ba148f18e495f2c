"""Undo and redo: back to where a branch was before the last things that moved it, and forth again.

The reflog is all they need: it is read as an editor reads its history. A move is a step; an undo
goes back along the steps and a redo forth; whatever else moves the branch after an undo begins a
new way forth, and the old one stays in the reflog.

Files that are not committed are a step too, and the first to be undone. But a log that some program
goes on to write must not stop an undo for good: right behind an undo of nothing but such files,
those that are there again are kept in their place, and the undo goes on; so are those that a redo
finds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from ortet._util.validation import FLAG, TIMES, must_be
from ortet.backends.base import Op
from ortet.errors import NotFound
from ortet.history.diff.tree_diff import Change, diff_images, is_touch
from ortet.history.records import Image
from ortet.ids import Oid, to_hex
from ortet.machines.base import Report
from ortet.sessions.results import Restored
from ortet.store.sweep_retry import anew
from ortet.workspaces.kernels import Seated

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

Way = Literal["undo", "redo"]
UNDO: Final = "undo"
REDO: Final = "redo"

WORK = "what was not committed"
"""The message of a commit of files that are a step of their own."""


class Step(msgspec.Struct, frozen=True):
    """One thing that moved a branch, as the reflog has it; "work" is what was not committed."""

    verb: str
    detail: str
    time: int = 0


class Undone(msgspec.Struct, frozen=True):
    """Where an undo or redo went, or with a dry run would go. `steps` are undone or done again,
    the first of them first; `changes` are those it makes to the files. What was not committed is
    `kept` in the commit `was`, or would be. `events`: so many, that the mind does not know of any
    more."""

    steps: list[Step]
    changes: list[Change]
    restored: Restored
    was: str
    kept: bool = False
    events: int = 0


class _Place(NamedTuple):
    """A state that a branch was in, and what led there."""

    oid: Oid | None
    step: Step


class Trail:
    """What can be undone and done again, from the moves of a branch, the oldest first."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._places = [_Place(ops[0].old if ops else None, Step("", ""))]
        self._at = 0
        self.fresh = True  # files that are not committed are a step of their own
        before: Op | None = None
        for number, op in enumerate(ops, start=1):
            self._take(op, ops[number] if number < len(ops) else None)
            if _is_aside(before, op):
                self.fresh = False
            before = op

    def work(self) -> None:
        """Files that are not committed are the last step."""
        self._at += 1
        self._places.insert(self._at, _Place(Oid(b""), Step("work", WORK)))

    def find(self, way: Way, n: int, here: Oid) -> tuple[Oid, int, list[Step]]:
        """The commit n steps from here, how many those are, and the steps between: an undo always
        leads to another state. NotFound where there are not as many."""
        sign = -1 if way == UNDO else 1
        end = self._at + sign * n
        while self._has(end) and self._places[end].oid == here:
            end += sign
        if not self._has(end):
            raise self._no_more(way)
        low, high = sorted((self._at, end))
        steps = [place.step for place in self._places[low + 1 : high + 1]]
        oid = self._places[end].oid
        assert oid is not None
        return oid, abs(end - self._at), steps[::sign]

    def _has(self, index: int) -> bool:
        return 0 <= index < len(self._places) and self._places[index].oid is not None

    def _no_more(self, way: Way) -> NotFound:
        reach = self._places[: self._at] if way == UNDO else self._places[self._at + 1 :]
        count = sum(place.oid is not None for place in reach)
        what = "undone" if way == UNDO else "done again"
        if count:
            few = f"only {count} can be {what} here: give a number up to that"
            return NotFound(f"nothing_to_{way}", few)
        hint = "the reflog (`ortet reflog`) lists where the branch has been"
        return NotFound(f"nothing_to_{way}", f"nothing is there to be {what}: {hint}")

    def _take(self, op: Op, after: Op | None) -> None:
        here, self.fresh = self._places[self._at].step, True
        if op.verb in (UNDO, REDO):
            n = _count(op)
            self.fresh = (op.verb, n, here.detail) != (UNDO, 1, WORK)
            self._jump(-n if op.verb == UNDO else n, op.new)
        elif after is not None and _is_kept_for(op, after):
            self._places[self._at] = _Place(op.new, here)
        else:
            self._at += 1
            work = after is not None and _is_work_before(op, after)
            rest = self._places[self._at :] if work else []
            self._places[self._at :] = [_Place(op.new, Step(op.verb, op.detail, op.time)), *rest]

    def _jump(self, by: int, oid: Oid | None) -> None:
        """To a place that was known then; moves before it may be forgotten by now."""
        self._at = min(max(self._at + by, 0), len(self._places) - 1)
        self._places[self._at] = _Place(oid, self._places[self._at].step)


def trail_of(hub: Hub, branch: str) -> Trail:
    return Trail(hub.refs.reflog(branch)[::-1])


def detail_of(n: int) -> str:
    """What the reflog says of an undo or redo, and `Trail` reads."""
    return "1 step" if n == 1 else f"{n} steps"


def _count(op: Op) -> int:
    digits = op.detail.partition(" ")[0]
    return int(digits) if digits.isdigit() else 1


def _is_kept_for(op: Op, after: Op) -> bool:
    """Whether a commit only keeps what an undo, which comes after it, finds."""
    along = after.verb in (UNDO, REDO) and after.old == op.new
    return along and (op.verb, op.detail) == ("commit", f"before {after.verb}")


def _is_work_before(op: Op, after: Op) -> bool:
    """Whether a commit is of files that an undo found, and took back."""
    return (op.detail, after.verb, after.old) == (WORK, UNDO, op.new)


def _is_aside(before: Op | None, op: Op) -> bool:
    """Whether a branch came back at once: some paths were restored, and what they replaced kept."""
    if before is None or (before.old, before.new) != (op.new, op.old):
        return False
    return (before.verb, before.detail, before.time) == (op.verb, op.detail, op.time)


class Plan(NamedTuple):
    """What an undo is going to do. `dirty`: something has to be kept first, in a commit with this
    `message`."""

    target: Oid
    far: int
    steps: list[Step]
    changes: list[Change]
    dirty: bool
    message: str

    @property
    def detail(self) -> str:
        return detail_of(self.far)

    def foreseen(self, hub: Hub, branch: str) -> Undone:
        """What a dry run answers."""
        from ortet.sessions.history.lapsed import forgotten_on

        deeds, secrets = hub.since(branch, self.target)
        restored = Restored(to_hex(self.target), Report(), deeds, secrets=secrets)
        head = hub.refs.get(branch)
        assert head is not None  # or there was nothing to plan
        events = forgotten_on(hub._minds(), branch, self.target)
        return Undone(self.steps, self.changes, restored, to_hex(head.oid), self.dirty, events)

    def done(self, hub: Hub, was: Oid, restored: Restored, *, kept: bool) -> Undone:
        from ortet.sessions.history.lapsed import forgotten_since  # here: a commit does without it

        events = forgotten_since(hub._minds(), was, self.target)
        return Undone(self.steps, self.changes, restored, to_hex(was), kept, events)


class Files(NamedTuple):
    """The files of a workspace: as they are now, and in a commit."""

    now: Image
    at: Callable[[Oid], Image]


def plan(hub: Hub, branch: str, way: Way, n: int, *, files: Files | None, dirty: bool) -> Plan:
    """`dirty`: there is something to keep beside files that differ from the head's."""
    head = hub.refs.get(branch)
    if head is None:
        raise NotFound("no_commit", f"{branch!r} has no commit yet: commit first")
    trail, changed = trail_of(hub, branch), dirty
    if files is not None:
        found = diff_images(hub.trees, files.at(head.oid), files.now)
        changed = not all(map(is_touch, found))
    own = changed and trail.fresh and way == UNDO
    if own:
        trail.work()
    target, far, steps = trail.find(way, n, Oid(b"") if changed else head.oid)
    changes = diff_images(hub.trees, files.now, files.at(target)) if files else []
    message = WORK if own else f"before {way}"
    return Plan(target, far, steps, changes, changed or dirty, message)


class Undoing(Seated):
    """The half of Workspace that takes back what moved its branch."""

    keep: Callable[[str], Oid]
    go: Callable[..., Report]

    @abstractmethod
    def moving(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def image(self) -> Image: ...

    def undo(self, n: int = 1, *, dry_run: bool = False) -> Undone:
        """Go back to before the last n things that moved this branch, files and mind together;
        files that are not committed are the first of them. `redo` goes forth again."""
        return self._travel(UNDO, n, dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> Undone:
        """Do the last n things again that were undone, unless something else was done since."""
        return self._travel(REDO, n, dry_run)

    @anew
    def _travel(self, way: Way, n: int, dry_run: bool) -> Undone:
        must_be(TIMES, n=n)
        must_be(FLAG, dry_run=dry_run)
        hub, name = self.hub, self.name
        if dry_run:
            files = Files(self.image(), self.image_at)
            return plan(hub, name, way, n, files=files, dirty=False).foreseen(hub, name)
        with self.moving():
            self.look()
            before = self._head
            files = Files(hub.read_image(self._live().look()), self.image_at)
            found = plan(hub, name, way, n, files=files, dirty=False)
            safety = self.keep(found.message)
            deeds, secrets = hub.since(name, found.target)
            report = self.go(found.target, way, detail=found.detail)
        restored = Restored(to_hex(found.target), report, deeds, secrets=secrets)
        assert before is not None  # or there was nothing to plan
        return found.done(hub, safety, restored, kept=found.dirty or self._told(before.oid, safety))

    def _told(self, before: Oid, after: Oid) -> bool:
        """Whether its mind was told something between two commits."""
        old, new = (self.hub.history.state(oid).journal for oid in (before, after))
        return old != new
