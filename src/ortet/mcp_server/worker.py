"""One call at a time, in a thread beside the event loop; one that is cancelled is brought to its
end, not left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run

_Result = TypeVar("_Result")


class CallWorker:
    """The core is synchronous and for one thread at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Wait for one's turn and do it. Cancelled meanwhile, the command that it runs is killed,
        and it returns when the session is let go."""
        done: list[_Result] = []
        failed: list[Exception] = []

        def attempt() -> None:
            try:
                done.append(work())
            except Exception as error:  # as it is: a task group would wrap it
                failed.append(error)

        async with self._lock, anyio.create_task_group() as tasks:
            tasks.start_soon(_kill_when_cancelled, done, failed)
            # not abandoned: what goes on in a thread still has the session open
            await anyio.to_thread.run_sync(attempt)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return done[0]

    async def stop(self, timeout: float) -> None:
        """End what goes on, and wait until it has."""
        await anyio.to_thread.run_sync(kill_commands)
        with anyio.move_on_after(timeout):
            await self._lock.acquire()


async def _kill_when_cancelled(*outcomes: list[Any]) -> None:
    """Waits beside a call; it is cancelled with it, or when that has an outcome."""
    try:
        await anyio.sleep_forever()
    finally:
        if not any(outcomes):
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(kill_commands)


def kill_commands() -> None:
    """Kill the commands that this process runs and waits for, with all they started.

    They are its children that carry a mark of their own; what a command left behind on purpose has
    lost its parent, and lives on.
    """
    ours = _marks(os.getpid())
    for pid in _children():
        marks = _marks(pid)
        if marks and marks != ours:
            kill_run(marks[-1].decode(), pid)


def _children() -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # no Linux, or a thread that has just ended
        return found
    return found


def _marks(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = file.read().split(b"\0")
    except OSError:
        return []
    key = f"{RUN_MARK_VARIABLE}=".encode()
    return next((name[len(key) :].split(b":") for name in names if name.startswith(key)), [])
