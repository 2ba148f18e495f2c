"""Undo and redo, computed from the reflog of a branch.

The reflog is read like the history of an editor. Each move of the branch is a step. An undo goes
back along the steps, and a redo goes forward. Any other move after an undo discards the steps to
redo; they stay in the reflog.

Uncommitted files are a step too, and the first to be undone. A program that keeps writing a log
file must not block undo forever. So after an undo of uncommitted files only, new uncommitted files
are committed without becoming a step. A redo commits uncommitted files in the same way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from ortet._util.validation import FLAG, POSITIVE_COUNT, require
from ortet.backends.base import Op
from ortet.errors import NotFound
from ortet.history.diff.tree_diff import TreeChange, diff_images, is_directory_touch
from ortet.history.records import Image
from ortet.ids import Oid, to_hex
from ortet.machines.base import Report
from ortet.sessions.results import RestoreResult
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.kernels import WorkspaceKernelsMixin

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

UndoDirection = Literal["undo", "redo"]
UNDO: Final = "undo"
REDO: Final = "redo"

UNCOMMITTED_MESSAGE = "what was not committed"
"""Message of a commit of uncommitted files that are a step."""


class UndoStep(msgspec.Struct, frozen=True):
    """One move of a branch, from the reflog. The verb "work" means uncommitted files."""

    verb: str
    detail: str
    time: int = 0


class UndoResult(msgspec.Struct, frozen=True):
    """The result of an undo or redo, or of its dry run.

    `steps` are the undone or redone steps, in the order they were applied. `changes` are the file
    changes. If `kept` is True, uncommitted work was saved in the commit `was`. `events` is the
    number of events that the session state no longer includes.
    """

    steps: list[UndoStep]
    changes: list[TreeChange]
    restored: RestoreResult
    was: str
    kept: bool = False
    events: int = 0


class _UndoPosition(NamedTuple):
    """A state of the branch and the step that led to it."""

    oid: Oid | None
    step: UndoStep


class UndoHistory:
    """The steps that can be undone and redone, built from the moves of a branch, oldest first."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._positions = [_UndoPosition(ops[0].old if ops else None, UndoStep("", ""))]
        self._current = 0
        self.uncommitted_is_step = True  # uncommitted files count as a step
        before: Op | None = None
        for number, op in enumerate(ops, start=1):
            self._apply_move(op, ops[number] if number < len(ops) else None)
            if _is_path_restore(before, op):
                self.uncommitted_is_step = False
            before = op

    def add_uncommitted_step(self) -> None:
        """Add the uncommitted files as the last step."""
        self._current += 1
        self._positions.insert(
            self._current, _UndoPosition(Oid(b""), UndoStep("work", UNCOMMITTED_MESSAGE))
        )

    def find(self, direction: UndoDirection, n: int, here: Oid) -> tuple[Oid, int, list[UndoStep]]:
        """Return the commit n steps away, the distance, and the steps in between.

        An undo always leads to another state, so steps to an equal state are skipped.

        Raises:
            NotFound: there are not enough steps.
        """
        sign = -1 if direction == UNDO else 1
        end = self._current + sign * n
        while self._has(end) and self._positions[end].oid == here:
            end += sign
        if not self._has(end):
            raise self._no_more(direction)
        low, high = sorted((self._current, end))
        steps = [place.step for place in self._positions[low + 1 : high + 1]]
        oid = self._positions[end].oid
        assert oid is not None
        return oid, abs(end - self._current), steps[::sign]

    def _has(self, index: int) -> bool:
        return 0 <= index < len(self._positions) and self._positions[index].oid is not None

    def _no_more(self, direction: UndoDirection) -> NotFound:
        reach = (
            self._positions[: self._current]
            if direction == UNDO
            else self._positions[self._current + 1 :]
        )
        count = sum(place.oid is not None for place in reach)
        what = "undone" if direction == UNDO else "done again"
        if count:
            few = f"only {count} can be {what} here: give a number up to that"
            return NotFound(f"nothing_to_{direction}", few)
        hint = "the reflog (`ortet reflog`) lists where the branch has been"
        return NotFound(f"nothing_to_{direction}", f"nothing is there to be {what}: {hint}")

    def _apply_move(self, op: Op, after: Op | None) -> None:
        here, self.uncommitted_is_step = self._positions[self._current].step, True
        if op.verb in (UNDO, REDO):
            n = _count(op)
            self.uncommitted_is_step = (op.verb, n, here.detail) != (UNDO, 1, UNCOMMITTED_MESSAGE)
            self._jump(-n if op.verb == UNDO else n, op.new)
        elif after is not None and _is_safety_commit(op, after):
            self._positions[self._current] = _UndoPosition(op.new, here)
        else:
            self._current += 1
            work = after is not None and _is_uncommitted_step(op, after)
            rest = self._positions[self._current :] if work else []
            self._positions[self._current :] = [
                _UndoPosition(op.new, UndoStep(op.verb, op.detail, op.time)),
                *rest,
            ]

    def _jump(self, by: int, oid: Oid | None) -> None:
        """Jump by a number of steps. Older moves may have expired from the reflog."""
        self._current = min(max(self._current + by, 0), len(self._positions) - 1)
        self._positions[self._current] = _UndoPosition(oid, self._positions[self._current].step)


def load_undo_history(hub: Hub, branch: str) -> UndoHistory:
    return UndoHistory(hub.refs.reflog(branch)[::-1])


def detail_of(n: int) -> str:
    """Return the reflog detail of an undo or redo, which `UndoHistory` parses."""
    return "1 step" if n == 1 else f"{n} steps"


def _count(op: Op) -> int:
    digits = op.detail.partition(" ")[0]
    return int(digits) if digits.isdigit() else 1


def _is_safety_commit(op: Op, after: Op) -> bool:
    """Return True if a commit only saves uncommitted work before an undo or redo."""
    along = after.verb in (UNDO, REDO) and after.old == op.new
    return along and (op.verb, op.detail) == ("commit", f"before {after.verb}")


def _is_uncommitted_step(op: Op, after: Op) -> bool:
    """Return True if a commit holds uncommitted files that the next move undoes."""
    return (op.detail, after.verb, after.old) == (UNCOMMITTED_MESSAGE, UNDO, op.new)


def _is_path_restore(before: Op | None, op: Op) -> bool:
    """Return True if a branch returned at once: some paths were restored, the old ones saved."""
    if before is None or (before.old, before.new) != (op.new, op.old):
        return False
    return (before.verb, before.detail, before.time) == (op.verb, op.detail, op.time)


class UndoPlan(NamedTuple):
    """The plan of an undo or redo.

    If `dirty` is True, uncommitted work is committed first, with `message`.
    """

    target: Oid
    distance: int
    steps: list[UndoStep]
    changes: list[TreeChange]
    dirty: bool
    message: str

    @property
    def detail(self) -> str:
        return detail_of(self.distance)

    def preview(self, hub: Hub, branch: str) -> UndoResult:
        """Return the result of a dry run."""
        from ortet.sessions.history.lapsed import count_forgotten_on_branch

        deeds, secrets = hub.unrestorable_since(branch, self.target)
        restored = RestoreResult(to_hex(self.target), Report(), deeds, secrets=secrets)
        head = hub.refs.get(branch)
        assert head is not None  # a plan exists only with a head
        events = count_forgotten_on_branch(hub._session_manager(), branch, self.target)
        return UndoResult(self.steps, self.changes, restored, to_hex(head.oid), self.dirty, events)

    def result(self, hub: Hub, was: Oid, restored: RestoreResult, *, kept: bool) -> UndoResult:
        from ortet.sessions.history.lapsed import (
            count_forgotten_since,  # imported here: a commit does not need it
        )

        events = count_forgotten_since(hub._session_manager(), was, self.target)
        return UndoResult(self.steps, self.changes, restored, to_hex(was), kept, events)


class UndoFiles(NamedTuple):
    """The files of a workspace: now, and at a commit."""

    current: Image
    at_commit: Callable[[Oid], Image]


def plan_undo(
    hub: Hub, branch: str, direction: UndoDirection, n: int, *, files: UndoFiles | None, dirty: bool
) -> UndoPlan:
    """Plan an undo or redo.

    Args:
        files: the files of the workspace; None if the session has none.
        dirty: True if something other than files is uncommitted.

    Raises:
        NotFound: there is no commit, or there are not enough steps.
    """
    head = hub.refs.get(branch)
    if head is None:
        raise NotFound("no_commit", f"{branch!r} has no commit yet: commit first")
    trail, changed = load_undo_history(hub, branch), dirty
    if files is not None:
        found = diff_images(hub.trees, files.at_commit(head.oid), files.current)
        changed = not all(map(is_directory_touch, found))
    own = changed and trail.uncommitted_is_step and direction == UNDO
    if own:
        trail.add_uncommitted_step()
    target, far, steps = trail.find(direction, n, Oid(b"") if changed else head.oid)
    changes = diff_images(hub.trees, files.current, files.at_commit(target)) if files else []
    message = UNCOMMITTED_MESSAGE if own else f"before {direction}"
    return UndoPlan(target, far, steps, changes, changed or dirty, message)


class WorkspaceUndoMixin(WorkspaceKernelsMixin):
    """The undo and redo verbs of Workspace."""

    commit_pending: Callable[[str], Oid]
    restore_commit: Callable[..., Report]

    @abstractmethod
    def exclusive_access(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def current_image(self) -> Image: ...

    def undo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Undo the last n moves of the branch, files and session state together.

        Uncommitted files count as the first move. `redo` reverts an undo.

        Args:
            n: the number of moves.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_undo" if there are fewer moves.
        """
        return self._undo_or_redo(UNDO, n, dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Redo the last n undone moves, unless another move followed the undo.

        Args:
            n: the number of moves.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_redo" if there are fewer moves.
        """
        return self._undo_or_redo(REDO, n, dry_run)

    @retry_on_sweep
    def _undo_or_redo(self, direction: UndoDirection, n: int, dry_run: bool) -> UndoResult:
        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        hub, name = self.hub, self.name
        if dry_run:
            files = UndoFiles(self.current_image(), self.image_at)
            return plan_undo(hub, name, direction, n, files=files, dirty=False).preview(hub, name)
        with self.exclusive_access():
            self.refresh_head()
            before = self._head
            files = UndoFiles(hub.read_image(self._open_machine().snapshot_files()), self.image_at)
            found = plan_undo(hub, name, direction, n, files=files, dirty=False)
            safety = self.commit_pending(found.message)
            deeds, secrets = hub.unrestorable_since(name, found.target)
            report = self.restore_commit(found.target, direction, detail=found.detail)
        restored = RestoreResult(to_hex(found.target), report, deeds, secrets=secrets)
        assert before is not None  # a plan exists only with a head
        return found.result(
            hub, safety, restored, kept=found.dirty or self._has_new_events(before.oid, safety)
        )

    def _has_new_events(self, before: Oid, after: Oid) -> bool:
        """Return True if the session recorded events between two commits."""
        old, new = (self.hub.history.state(oid).journal for oid in (before, after))
        return old != new
