"""Runs one call at a time in a thread. A cancelled call is ended, not abandoned."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run

_Result = TypeVar("_Result")


class CallWorker:
    """Runs calls one at a time, because the core is synchronous and not thread-safe."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Wait for the previous call, then run `work` and return its result.

        If the caller is cancelled, the command of the call is killed. The method returns when the
        session is released.
        """
        done: list[_Result] = []
        failed: list[Exception] = []

        def attempt() -> None:
            try:
                done.append(work())
            except Exception as error:  # unwrapped: a task group would wrap it
                failed.append(error)

        async with self._lock, anyio.create_task_group() as tasks:
            tasks.start_soon(_kill_when_cancelled, done, failed)
            # Not abandoned on cancellation: the thread still has the session open.
            await anyio.to_thread.run_sync(attempt)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return done[0]

    async def stop(self, timeout: float) -> None:
        """Kill the running command, and wait until its call has ended."""
        await anyio.to_thread.run_sync(kill_commands)
        with anyio.move_on_after(timeout):
            await self._lock.acquire()


async def _kill_when_cancelled(*outcomes: list[Any]) -> None:
    """Run beside a call, and kill its command if the call is cancelled without an outcome."""
    try:
        await anyio.sleep_forever()
    finally:
        if not any(outcomes):
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(kill_commands)


def kill_commands() -> None:
    """Kill the commands that this process runs and waits for, with all their children.

    These are child processes with a run mark of their own. A process that a command left in the
    background has another parent and is not killed.
    """
    ours = _marks(os.getpid())
    for pid in _children():
        marks = _marks(pid)
        if marks and marks != ours:
            kill_run(marks[-1].decode(), pid)


def _children() -> list[int]:
    pids: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                pids += map(int, file.read().split())
    except OSError:  # not Linux, or a thread that just ended
        return pids
    return pids


def _marks(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = file.read().split(b"\0")
    except OSError:
        return []
    key = f"{RUN_MARK_VARIABLE}=".encode()
    return next((name[len(key) :].split(b":") for name in names if name.startswith(key)), [])
