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
    """A loop that is closed with its thread, or with the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        weakref.finalize(self, loop.close)


_THREAD_LOCAL = threading.local()
_FOREIGN_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def run_in_thread_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """On the same loop each time, which `agent.run_sync` uses too: the connections of a model's
    client belong to the loop that they were made on, and the client is kept."""
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
        if not task.done():  # somebody pressed control-C: what was said until then is kept
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
            atexit.register(loop.close)  # asking may have made it, and then nobody else would
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
