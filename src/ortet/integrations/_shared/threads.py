"""Runs a function in a thread to its end, even if the awaiting task is cancelled.

This is a module of its own because all async adapters need this instead of `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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
