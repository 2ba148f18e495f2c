"""What an event loop has a thread do, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def to_thread_shielded(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As asyncio.to_thread; but who is cancelled meanwhile, which no thread can be, goes on only
    when it is done: what is written next must not come before it, nor repeat it."""
    doing = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({doing})
        if not doing.cancelled():
            doing.exception()  # told to nobody: the caller hears that it was cancelled
        raise
