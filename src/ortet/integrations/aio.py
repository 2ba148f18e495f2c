"""Helpers for async programs: actions on an event loop, and threads that outlive a cancellation.

This is a module of its own because it belongs to no framework: any async program may call `act`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from ortet.sessions.actions.actions import is_async

if TYPE_CHECKING:
    from ortet.sessions.session import Session

T = TypeVar("T")


async def act(session: Session, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run `session.act` for an async or a plain function without blocking the event loop.

    If the caller is cancelled, the function is cancelled too and the action is recorded as failed.
    """
    loop = asyncio.get_running_loop()
    running: list[Future[Any]] = []
    stopped = Event()

    @wraps(function)
    def call(*call_args: Any, **call_kwargs: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(function(*call_args, **call_kwargs), loop)
        running.append(future)
        if stopped.is_set():  # The caller was cancelled before this future was in `running`.
            future.cancel()
        return future.result()

    body = call if is_async(function) else function
    acting = asyncio.ensure_future(asyncio.to_thread(session.act, body, *args, **options))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        stopped.set()
        for future in running:
            future.cancel()
        await asyncio.wait([acting])
        acting.exception()  # Retrieve the exception, so that asyncio does not log it.
        raise


async def to_thread_shielded(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call the function in a thread; if the caller is cancelled, wait until the function is done.

    A thread cannot be cancelled. Waiting prevents that the next write overtakes or repeats this
    one.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({doing})
        if not doing.cancelled():
            # Retrieve the exception, so that asyncio does not log it. The caller gets
            # CancelledError.
            doing.exception()
        raise
