"""Commits a workspace whenever its files have settled, and tells what it did or met."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ortet.cli import output
from ortet.errors import Corrupt, NotFound, OrtetError, Unsupported
from ortet.history.diff.tree_diff import is_touch

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.history.diff.tree_diff import Change
    from ortet.history.records import Image
    from ortet.machines.base import Loss
    from ortet.workspaces.workspace import Workspace

_NAMED = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOONEST, _LATEST = 0.5, 30.0
"""Seconds until what failed is tried again: twice as long each time."""


class Pace(NamedTuple):
    """In seconds: how long nothing must change before a commit; how long a change waits for that at
    most; how often to look where changes cannot be heard of."""

    settle: float = 2.0
    at_most: float = 60.0
    every: float = 5.0


class Made(NamedTuple):
    """A commit it made."""

    info: CommitInfo
    changes: list[Change]
    losses: list[Loss]
    seconds: float


class Stop:
    """Whether to end: `asked` by a signal, which can also be read from `wake`. A second signal is
    an interrupt."""

    def __init__(self) -> None:
        self.asked = False
        self.wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Signals mean this for the time of the block."""
        before: dict[int, Any] = {}
        told = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    before[number] = signal.signal(number, self._signalled)
            yield
        finally:
            for known, handler in before.items():
                signal.signal(known, handler)
            signal.set_wakeup_fd(told)
            os.close(self.wake)
            os.close(self._woken)

    def wait(self, seconds: float) -> None:
        """So long, or until asked to end."""
        if not self.asked:
            select.select([self.wake], [], [], max(0.0, seconds))

    def _signalled(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Watcher:
    """One in-place workspace. `trouble` is told what is in the way, once for each; `clock` counts
    seconds."""

    def __init__(
        self,
        workspace: Workspace,
        stop: Stop,
        *,
        pace: Pace,
        message: str,
        trouble: Callable[[OrtetError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workspace = workspace
        self._stop = stop
        self._pace = pace
        self._message = message
        self._trouble = trouble
        self._clock = clock
        self._seen: Image | None = None  # the files, as last looked at
        self._since = clock()  # the first change that is not committed; it may be from before us
        self._last = self._since  # the last change
        self._waiting = True  # there may be something to commit
        self._fresh = False  # it is in directories of which nothing is heard yet
        self._delay = 0.0  # until what failed is tried again
        self._met = ""  # what is in the way, and was told
        self._open = True

    def commits(self) -> Iterator[Made]:
        """Each when it was made, until asked to stop: what is there then is the last."""
        self._attempt(self._look)
        while not self._stop.asked:
            self._listen()
            if self._stop.asked or not self._is_due():
                continue
            if self._fresh and not self._is_overdue():
                self._attempt(self._look)  # from now on we hear of these, too
                self._last = self._clock()
            elif (made := self._attempt(self._commit)) is not None:
                yield made
        if (made := self._attempt(self._commit, last=True)) is not None:
            yield made

    # when

    def _listen(self) -> None:
        if self._delay:
            self._stop.wait(self._delay)
            return
        left = self._left() if self._waiting else -1.0
        news = self._workspace.listen(left, self._stop.wake)
        if news is None:
            every = self._pace.every
            self._stop.wait(min(every, left) if self._waiting else every)
            before = self._seen
            self._attempt(self._look)
            if self._seen == before:
                return
        elif not news.changed:
            return
        now = self._clock()
        if not self._waiting:
            self._waiting, self._since = True, now
        self._last = now
        self._fresh = self._fresh or (news is not None and news.fresh)

    def _left(self) -> float:
        """Seconds until a commit is due."""
        quiet = self._last + self._pace.settle
        late = self._since + self._pace.at_most
        return max(0.0, min(quiet, late) - self._clock())

    def _is_due(self) -> bool:
        return bool(self._delay) or (self._waiting and self._left() == 0)

    def _is_overdue(self) -> bool:
        return self._clock() >= self._since + self._pace.at_most

    # what

    def _look(self) -> None:
        """Whose directories are watched from then on."""
        self._fresh = False
        self._seen = self._workspace.image()

    def _commit(self) -> Made | None:
        began = time.perf_counter()
        workspace = self._workspace
        self._fresh = self._waiting = False
        found = workspace.status()
        if all(map(is_touch, found.changes)):
            return None
        message = self._message or told(found.changes)
        before = workspace.head
        info = workspace.commit(message)
        self._seen = workspace.image()
        if before is not None and before.oid == info.oid:
            return None
        return Made(info, found.changes, workspace.losses, time.perf_counter() - began)

    def _attempt(self, deed: Callable[[], Made | None], *, last: bool = False) -> Made | None:
        """Do it, others meanwhile waiting for their turn; what is in the way is told, and it is
        tried again later."""
        try:
            self._take_again()
            try:
                made = deed()
            finally:
                self._workspace.rest()
        except (Corrupt, Unsupported):
            raise
        except OrtetError as error:
            if last or error.kind == "dropped":
                raise
            self._later(error)
            return None
        self._delay, self._met = 0.0, ""
        return made

    def _take_again(self) -> None:
        """As it was left, or opened anew: another process may have been killed in a restore."""
        workspace = self._workspace
        if self._open and workspace.resume():
            return
        workspace.close()
        self._open = False
        if workspace.hub.registry.get(workspace.name) is None:
            raise _dropped(workspace.name)
        self._workspace = workspace.hub.workspace(name=workspace.name)
        self._open = True

    def _later(self, error: OrtetError) -> None:
        self._waiting = True
        if error.kind not in ("head_moved", self._met):
            self._met = error.kind
            self._trouble(error)
        self._delay = min(_LATEST, max(_SOONEST, 2 * self._delay))


def told(changes: list[Change]) -> str:
    """A message for a commit of these: how many, and the first of them."""
    shown = [one for one in changes if not _is_dir(one)] or changes
    names = [output.safe(one.path) for one in shown[:_NAMED]]
    more = ["..."] if len(shown) > _NAMED else []
    kinds = {one.kind for one in shown}
    did = kinds.pop() if kinds in ({"added"}, {"removed"}, {"renamed"}) else "changed"
    return f"{output.plural(len(shown), 'file')} {did}: {', '.join(names + more)}"


def _is_dir(change: Change) -> bool:
    entry = change.new or change.old
    return entry is not None and entry.is_dir


def _dropped(name: str) -> NotFound:
    return NotFound(
        "dropped",
        f"workspace {name!r} was dropped, so there is nothing to commit to any more; your files "
        "are untouched: `ortet init` makes the directory a workspace again",
    )
