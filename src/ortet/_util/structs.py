"""Struct types that bytes and values are decoded to."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_prepared_types: set[Any] = set()
_prepare_lock = RLock()
os.register_at_fork(
    before=_prepare_lock.acquire,
    after_in_parent=_prepare_lock.release,
    after_in_child=_prepare_lock.release,
)


def thread_safe_struct(type_: type[T]) -> type[T]:
    """The same type, safe to decode to in any thread.

    What msgspec has to find out about a struct it finds out at the first use, and another thread
    that uses it meanwhile brings the process down (0.22): so it is done once, by one at a time.
    """
    if type_ not in _prepared_types:
        with _prepare_lock:
            msgspec.msgpack.Decoder(type_)
            _prepared_types.add(type_)
    return type_
