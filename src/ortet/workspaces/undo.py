"""Undo and redo, computed from the reflog of a branch.

The reflog is read like the history of an editor. Each move of the branch is a step. An undo goes
back along the steps, and a redo goes forward. Any other move after an undo discards the steps to
redo; they stay in the reflog.

A step that changed nothing visible is not counted: the user sees no difference, and would have to
repeat the undo. Files and the conversation are visible.

Uncommitted files are a step too, and the first to be undone. A program that keeps writing a log
file must not block undo forever. So after an undo of uncommitted files only, new uncommitted files
are committed without becoming a step. A redo commits uncommitted files in the same way.

An undo by turn leads to the state before a message of the user, which need not be a step. It counts
as the steps since then, so that a redo goes forward along them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from ortet.backends.base import Op
from ortet.errors import NotFound
from ortet.history.diff.tree_diff import TreeChange, diff_images, is_directory_touch
from ortet.history.records import Image
from ortet.ids import Oid, to_hex
from ortet.machines.base import Report
from ortet.store.context import StoreContext
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.commit_participant import CommitParticipant
from ortet.workspaces.files import WorkspaceFiles
from ortet.workspaces.results import RestoreResult

UndoDirection = Literal["undo", "redo"]
UndoUnit = Literal["move", "turn"]
"""What an undo counts: moves of the branch, or messages of the user."""
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

    Attributes:
        steps: The undone or redone steps, in the order they were applied.
        changes: The file changes.
        restored: Report of the restore.
        was: The commit before the undo.
        kept: True if uncommitted work was saved in the commit `was`.
        events: Number of events that the session state no longer includes.
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

    def find(
        self,
        direction: UndoDirection,
        n: int,
        here: Oid,
        differs: Callable[[Oid, Oid], bool] = operator.ne,
    ) -> tuple[Oid, int, list[UndoStep]]:
        """Return the commit n steps away, the distance, and the steps in between.

        Args:
            direction: the direction of the steps.
            n: the number of steps.
            here: the present commit.
            differs: True if two commits differ visibly. A step to a commit that does not differ
                from the one before is not counted.

        Raises:
            NotFound: there are not enough steps.
        """
        sign = -1 if direction == UNDO else 1
        end, last, count = self._current, here, 0
        while count < n:
            end += sign
            if not 0 <= end < len(self._positions):
                raise self._no_more(direction, count)
            oid = self._positions[end].oid
            if oid is None:
                raise self._no_more(direction, count)
            if differs(last, oid):
                last, count = oid, count + 1
        return last, abs(end - self._current), self._steps_to(end)

    def find_back(self, is_reached: Callable[[Oid], bool]) -> tuple[int, list[UndoStep]]:
        """Return the distance to the newest position that `is_reached`, and the steps since.

        Without such a position it is the distance to the first one.
        """
        end = self._current
        while end > 0:
            oid = self._positions[end].oid
            if oid and is_reached(oid):
                break
            end -= 1
        return self._current - end, self._steps_to(end)

    def _steps_to(self, end: int) -> list[UndoStep]:
        """Return the steps between here and another position, in the order they are applied."""
        low, high = sorted((self._current, end))
        steps = [place.step for place in self._positions[low + 1 : high + 1]]
        return steps[::-1] if end < self._current else steps

    @staticmethod
    def _no_more(direction: UndoDirection, count: int) -> NotFound:
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


def load_undo_history(store: StoreContext, branch: str) -> UndoHistory:
    return UndoHistory(store.refs.reflog(branch)[::-1])


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

    def preview(
        self, store: StoreContext, branch: str, participant: CommitParticipant
    ) -> UndoResult:
        """Return the result of a dry run."""
        effects, secrets = participant.unrestorable_since(self.target)
        restored = RestoreResult(to_hex(self.target), Report(), effects, secrets=secrets)
        head = store.refs.get(branch)
        assert head is not None  # a plan exists only with a head
        events = participant.count_forgotten(self.target)
        return UndoResult(self.steps, self.changes, restored, to_hex(head.oid), self.dirty, events)

    def result(
        self, participant: CommitParticipant, was: Oid, restored: RestoreResult, *, kept: bool
    ) -> UndoResult:
        """Return the result of the move from the commit `was`."""
        events = participant.count_forgotten(self.target, since=was)
        return UndoResult(self.steps, self.changes, restored, to_hex(was), kept, events)


class UndoFiles(NamedTuple):
    """The files of a workspace: now, and at a commit."""

    current: Image
    at_commit: Callable[[Oid], Image]


class TurnStart(NamedTuple):
    """The state before a message of the user, as a commit.

    `is_reached` returns True for a commit that has no later event.
    """

    oid: Oid
    is_reached: Callable[[Oid], bool]


def plan_undo(
    store: StoreContext,
    branch: str,
    direction: UndoDirection,
    n: int,
    *,
    files: UndoFiles | None,
    dirty: bool,
    turn: TurnStart | None = None,
) -> UndoPlan:
    """Plan an undo or redo.

    Args:
        files: the files of the workspace; None if the session has none.
        dirty: True if something other than files is uncommitted.
        turn: where an undo by turn leads; `n` is not used then.

    Raises:
        NotFound: there is no commit, or there are not enough steps.
    """
    head = store.refs.get(branch)
    if head is None:
        raise NotFound("no_commit", f"{branch!r} has no commit yet: commit first")
    trail, changed = load_undo_history(store, branch), dirty
    if files is not None:
        found = diff_images(store.trees, files.at_commit(head.oid), files.current)
        changed = not all(map(is_directory_touch, found))
    own = changed and trail.uncommitted_is_step and direction == UNDO
    if own:
        trail.add_uncommitted_step()
    if turn is not None:
        target, (far, steps) = turn.oid, trail.find_back(turn.is_reached)
    else:
        here = Oid(b"") if changed else head.oid
        target, far, steps = trail.find(
            direction, n, here, lambda before, after: _differ_visibly(store, before, after)
        )
    changes = diff_images(store.trees, files.current, files.at_commit(target)) if files else []
    message = UNCOMMITTED_MESSAGE if own else f"before {direction}"
    return UndoPlan(target, far, steps, changes, changed or dirty, message)


def _differ_visibly(store: StoreContext, before: Oid, after: Oid) -> bool:
    """Return True if two commits differ in files or in the conversation.

    An empty id stands for uncommitted files, which always differ.
    """
    if before == after or not before or not after:
        return before != after
    old, new = store.history.state(before), store.history.state(after)
    if old.journal != new.journal or bool(old.machine) != bool(new.machine):
        return True
    if old.machine == new.machine:
        return False
    images = store.read_image(Oid(old.machine)), store.read_image(Oid(new.machine))
    return not all(map(is_directory_touch, diff_images(store.trees, *images)))


@retry_on_sweep
def undo_or_redo(
    files: WorkspaceFiles, direction: UndoDirection, n: int, *, dry_run: bool
) -> UndoResult:
    """Move the branch of a workspace n steps back or forward; see `Workspace.undo`."""
    store, branch = files.store, files.branch
    name, participant = branch.name, branch.participant
    if dry_run:
        present = UndoFiles(files.current_image(), branch.image_at)
        plan = plan_undo(store, name, direction, n, files=present, dirty=False)
        return plan.preview(store, name, participant)
    with files.exclusive_access():
        branch.refresh_head()
        before = branch.head
        image = store.read_image(files.open_machine().snapshot_files())
        present = UndoFiles(image, branch.image_at)
        plan = plan_undo(store, name, direction, n, files=present, dirty=False)
        safety = files.commit_pending(plan.message)
        effects, secrets = participant.unrestorable_since(plan.target)
        report = files.restore_commit(plan.target, direction, detail=plan.detail)
    restored = RestoreResult(to_hex(plan.target), report, effects, secrets=secrets)
    assert before is not None  # a plan exists only with a head
    kept = plan.dirty or _has_new_events(store, before.oid, safety)
    return plan.result(participant, safety, restored, kept=kept)


def _has_new_events(store: StoreContext, before: Oid, after: Oid) -> bool:
    """Return True if the session recorded events between two commits."""
    old, new = (store.history.state(oid).journal for oid in (before, after))
    return old != new
