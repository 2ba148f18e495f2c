"""Thread-safe preparation of msgspec Struct types for decoding.

A module of its own, because it is a workaround that goes away when msgspec fixes the race.
"""

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
    """Return `type_` unchanged, after making it safe to decode to from any thread.

    msgspec 0.22 inspects a Struct type at its first use. A second thread that uses the type at the
    same time crashes the process. This function does the inspection once, under a lock.
    """
    if type_ not in _prepared_types:
        with _prepare_lock:
            msgspec.msgpack.Decoder(type_)
            _prepared_types.add(type_)
    return type_
