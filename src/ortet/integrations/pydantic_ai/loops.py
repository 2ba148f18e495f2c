"""The event loop that synchronous runs of a thread share."""

from __future__ import annotations

import asyncio
import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ortet.errors import Invalid

T = TypeVar("T")


class _ThreadLoop:
    """An event loop that is closed with its thread or process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        weakref.finalize(self, loop.close)


_THREAD_LOCAL = threading.local()
_FOREIGN_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def run_in_thread_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine on the event loop of this thread, which `agent.run_sync` uses too.

    The client of a model is kept, and its connections belong to the loop they were made on. So all
    runs must use the same loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(_loop(), make())
    raise Invalid(
        "loop_running", "an event loop runs here, as in a notebook: await run() instead of run_sync"
    )


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # Interrupted by Ctrl-C: let the task store the messages so far.
            task.cancel()
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        raise


def _loop() -> asyncio.AbstractEventLoop:
    held: _ThreadLoop | None = getattr(_THREAD_LOCAL, "held", None)
    loop = _current()
    if loop is not None and not loop.is_closed():
        if loop not in _FOREIGN_LOOPS and (held is None or held.loop is not loop):
            _FOREIGN_LOOPS.add(loop)
            # get_event_loop() may have created it; then nobody else closes it.
            atexit.register(loop.close)
        return loop
    if held is None or held.loop.is_closed():
        held = _THREAD_LOCAL.held = _ThreadLoop(asyncio.new_event_loop())
    asyncio.set_event_loop(held.loop)
    return held.loop


def _current() -> asyncio.AbstractEventLoop | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return asyncio.get_event_loop()
        except RuntimeError:
            return None
