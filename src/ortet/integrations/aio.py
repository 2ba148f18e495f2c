"""Actions that are async functions: awaited here, while the session, which is not, waits beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from threading import Event
from typing import TYPE_CHECKING, Any

from ortet.sessions.actions.actions import is_async

if TYPE_CHECKING:
    from ortet.sessions.session import Session


async def act(session: Session, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`session.act` for any function, async or not; the event loop goes on meanwhile.

    When the caller is cancelled, so is the function, and the action has failed.
    """
    loop = asyncio.get_running_loop()
    running: list[Future[Any]] = []
    stopped = Event()

    @wraps(function)
    def call(*call_args: Any, **call_kwargs: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(function(*call_args, **call_kwargs), loop)
        running.append(future)
        if stopped.is_set():  # the caller was cancelled before it could know of this one
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
        acting.exception()  # it was looked at
        raise
