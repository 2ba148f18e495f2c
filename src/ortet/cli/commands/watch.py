"""Command watch: commit a workspace automatically when its files have settled."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ortet.cli.call import CliCall, as_text, verb, workspace_option
from ortet.cli.terminal import output
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError, Unsupported
from ortet.history.diff.tree_diff import is_directory_touch

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.records import Image
    from ortet.machines.base import Loss
    from ortet.workspaces.manager import WorkspaceManager
    from ortet.workspaces.workspace import Workspace

_MAX_NAMED_FILES = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RETRY_MIN_SECONDS, _RETRY_MAX_SECONDS = 0.5, 30.0
"""Seconds before a failed step is retried. The delay doubles each time."""


class WatchTiming(NamedTuple):
    """Times in seconds.

    `settle` is how long nothing must change before a commit. `at_most` is how long a change waits
    for that. `every` is the polling interval where changes cannot be watched.
    """

    settle: float = 2.0
    at_most: float = 60.0
    every: float = 5.0


_DEFAULT_TIMING = WatchTiming()
_SECONDS_RANGE = click.FloatRange(min=0)


@verb()
@click.option("-C", "directory", metavar="DIR", help="The workspace of this directory.")
@click.option(
    "--settle",
    type=_SECONDS_RANGE,
    default=_DEFAULT_TIMING.settle,
    show_default=True,
    metavar="SECONDS",
    help="Commit when nothing has changed for this time.",
)
@click.option(
    "--at-most",
    type=_SECONDS_RANGE,
    default=_DEFAULT_TIMING.at_most,
    show_default=True,
    metavar="SECONDS",
    help="Commit after this time even if changes do not end.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=_DEFAULT_TIMING.every,
    show_default=True,
    metavar="SECONDS",
    help="Scan at this interval if the system reports no changes.",
)
@click.option(
    "-m",
    "--message",
    default="",
    metavar="TEXT",
    help="The message of each commit; by default the changes.",
)
@click.option("--once", is_flag=True, help="End after the first commit.")
@workspace_option
def watch(
    call: CliCall,
    *,
    directory: str | None,
    settle: float,
    at_most: float,
    every: float,
    message: str,
    once: bool,
    name: str | None,
) -> None:
    """Commit a workspace automatically when its files have settled.

    Paths in `.ortetignore` do not count. An obstacle (a full disk, a missing directory, a secret in
    a file) is reported, and the commit is tried again until it works. Ctrl-C or SIGTERM commits the
    present state and ends with 0. With --json each commit is one object on a line.

    \b
    Example:
      ortet watch
      ortet watch --settle 0.5 -m "while I work" &
      ortet watch --once && make test
    """
    if directory is not None:
        call.enter(directory)
    stop = WatchStop()
    with stop.handle_signals():
        call.open_watching_hub()
        workspace = call.workspace(name)
        if workspace.row.files != "inplace":
            raise Invalid(
                "not_inplace",
                f"{workspace.name!r} is a private copy, which only changes by what you run in it: "
                f"`ortet commit -w {workspace.name}` records that",
            )
        watcher = Watcher(
            call.hub.workspaces,
            workspace,
            stop,
            timing=WatchTiming(settle, at_most, every),
            message=as_text(message),
            on_error=lambda error: _print_retry(call, error),
        )
        where = output.safe(str(workspace.row.directory))
        call.output.note(f"watching {where}: a commit when nothing has changed for {settle:g} s")
        for commit in watcher.commits():
            _print_commit(call, workspace, commit)
            if once:
                break


def _print_retry(call: CliCall, error: OrtetError) -> None:
    call.output.print_error(error)
    call.output.note("trying again until it works")
    sys.stderr.flush()


def _print_commit(call: CliCall, workspace: Workspace, commit: WatchedCommit) -> None:
    info = commit.info
    data = {
        **output.fields(info),
        "name": workspace.name,
        "created": True,
        "changed": len(commit.changes),
        "seconds": commit.seconds,
        "losses": commit.losses,
    }
    tag = call.output.paint(f"[{workspace.name} {output.short_id(info.oid)}]", fg="yellow")
    clock = time.strftime("%H:%M:%S")
    took = output.format_duration(commit.seconds)
    count = f"{len(commit.changes)} changed"
    call.output.emit(data, [f"{clock} {tag} {output.title(info.message)}  ({count}, {took})"])
    call.output.print_losses(commit.losses)
    sys.stdout.flush()


class WatchedCommit(NamedTuple):
    """A commit that the watcher made."""

    info: CommitInfo
    changes: list[TreeChange]
    losses: list[Loss]
    seconds: float


class WatchStop:
    """The request to stop, made by a signal.

    `wake_fd` becomes readable. A second signal interrupts.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self.wake_fd, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP as stop requests within the block."""
        before: dict[int, Any] = {}
        previous_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # not if nohup ignores it
                    before[number] = signal.signal(number, self._on_signal)
            yield
        finally:
            for known, handler in before.items():
                signal.signal(known, handler)
            signal.set_wakeup_fd(previous_fd)
            os.close(self.wake_fd)
            os.close(self._wake_writer)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds or until a stop is requested."""
        if not self.is_requested:
            select.select([self.wake_fd], [], [], max(0.0, seconds))

    def _on_signal(self, *_: object) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


class Watcher:
    """Watches one in-place workspace.

    `on_error` is called once for each new kind of error. `clock` returns seconds.
    """

    def __init__(
        self,
        manager: WorkspaceManager,
        workspace: Workspace,
        stop: WatchStop,
        *,
        timing: WatchTiming,
        message: str,
        on_error: Callable[[OrtetError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._workspace = workspace
        self._stop = stop
        self._timing = timing
        self._message = message
        self._on_error = on_error
        self._clock = clock
        self._last_image: Image | None = None  # the files at the last scan
        # Time of the first uncommitted change, which may predate the start.
        self._first_change = clock()
        self._last_change = self._first_change  # time of the last change
        self._has_uncommitted = True  # True if there may be something to commit
        self._has_unwatched = False  # True if changes are in directories not watched yet
        self._retry_delay = 0.0  # seconds before a failed step is retried
        self._reported_error_kind = ""  # the kind of the current error, already reported
        self._is_open = True

    def commits(self) -> Iterator[WatchedCommit]:
        """Yield each commit when it is made. After a stop request, make a last commit."""
        self._attempt(self._scan_files)
        while not self._stop.is_requested:
            self._wait_for_changes()
            if self._stop.is_requested or not self._is_due():
                continue
            if self._has_unwatched and not self._is_overdue():
                self._attempt(self._scan_files)  # these directories are watched from now on
                self._last_change = self._clock()
            elif (commit := self._attempt(self._commit)) is not None:
                yield commit
        if (commit := self._attempt(self._commit, last=True)) is not None:
            yield commit

    # timing

    def _wait_for_changes(self) -> None:
        if self._retry_delay:
            self._stop.wait(self._retry_delay)
            return
        seconds_left = self._seconds_until_due() if self._has_uncommitted else -1.0
        news = self._workspace.wait_for_changes(seconds_left, self._stop.wake_fd)
        if news is None:
            every = self._timing.every
            self._stop.wait(min(every, seconds_left) if self._has_uncommitted else every)
            before = self._last_image
            self._attempt(self._scan_files)
            if self._last_image == before:
                return
        elif not news.changed:
            return
        now = self._clock()
        if not self._has_uncommitted:
            self._has_uncommitted, self._first_change = True, now
        self._last_change = now
        self._has_unwatched = self._has_unwatched or (news is not None and news.fresh)

    def _seconds_until_due(self) -> float:
        """Return the seconds until a commit is due."""
        quiet = self._last_change + self._timing.settle
        late = self._first_change + self._timing.at_most
        return max(0.0, min(quiet, late) - self._clock())

    def _is_due(self) -> bool:
        return bool(self._retry_delay) or (self._has_uncommitted and self._seconds_until_due() == 0)

    def _is_overdue(self) -> bool:
        return self._clock() >= self._first_change + self._timing.at_most

    # actions

    def _scan_files(self) -> None:
        """Scan the files. All their directories are watched from then on."""
        self._has_unwatched = False
        self._last_image = self._workspace.files.current_image()

    def _commit(self) -> WatchedCommit | None:
        began = time.perf_counter()
        workspace = self._workspace
        self._has_unwatched = self._has_uncommitted = False
        status = workspace.status()
        if all(map(is_directory_touch, status.changes)):
            return None
        message = self._message or commit_message(status.changes)
        before = workspace.head
        info = workspace.commit(message)
        self._last_image = workspace.files.current_image()
        if before is not None and before.oid == info.oid:
            return None
        return WatchedCommit(info, status.changes, workspace.losses, time.perf_counter() - began)

    def _attempt(
        self, operation: Callable[[], WatchedCommit | None], *, last: bool = False
    ) -> WatchedCommit | None:
        """Run one step with the workspace open, and suspend the workspace afterwards.

        Other processes can use a suspended workspace. An error is reported and the step is retried
        later, except for errors that a retry cannot cure.
        """
        try:
            self._reacquire_workspace()
            try:
                commit = operation()
            finally:
                self._workspace.suspend()
        except (Corrupt, Unsupported):
            raise
        except OrtetError as error:
            if last or error.kind == "dropped":
                raise
            self._schedule_retry(error)
            return None
        self._retry_delay, self._reported_error_kind = 0.0, ""
        return commit

    def _reacquire_workspace(self) -> None:
        """Resume the workspace, or open it again.

        It must be opened again if another process was killed in a restore.
        """
        workspace = self._workspace
        if self._is_open and workspace.resume():
            return
        workspace.close()
        self._is_open = False
        if self._manager.table.get(workspace.name) is None:
            raise _dropped(workspace.name)
        self._workspace = self._manager.open(name=workspace.name)
        self._is_open = True

    def _schedule_retry(self, error: OrtetError) -> None:
        self._has_uncommitted = True
        if error.kind not in ("head_moved", self._reported_error_kind):
            self._reported_error_kind = error.kind
            self._on_error(error)
        self._retry_delay = min(_RETRY_MAX_SECONDS, max(_RETRY_MIN_SECONDS, 2 * self._retry_delay))


def commit_message(changes: list[TreeChange]) -> str:
    """Return a commit message: the number of changed files, and the first names."""
    shown = [one for one in changes if not _is_dir(one)] or changes
    names = [output.safe(one.path) for one in shown[:_MAX_NAMED_FILES]]
    more = ["..."] if len(shown) > _MAX_NAMED_FILES else []
    kinds = {one.kind for one in shown}
    did = kinds.pop() if kinds in ({"added"}, {"removed"}, {"renamed"}) else "changed"
    return f"{output.plural(len(shown), 'file')} {did}: {', '.join(names + more)}"


def _is_dir(change: TreeChange) -> bool:
    entry = change.new or change.old
    return entry is not None and entry.is_dir


def _dropped(name: str) -> NotFound:
    return NotFound(
        "dropped",
        f"workspace {name!r} was dropped, so there is nothing to commit to any more; your files "
        "are untouched: `ortet init` makes the directory a workspace again",
    )
