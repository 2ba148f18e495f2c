"""Struct types that bytes and values are decoded to."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_known: set[Any] = set()
_learning = RLock()
os.register_at_fork(
    before=_learning.acquire,
    after_in_parent=_learning.release,
    after_in_child=_learning.release,
)


def known(type_: type[T]) -> type[T]:
    """The same type, safe to decode to in any thread.

    What msgspec has to find out about a struct it finds out at the first use, and another thread
    that uses it meanwhile brings the process down (0.22): so it is done once, by one at a time.
    """
    if type_ not in _known:
        with _learning:
            msgspec.msgpack.Decoder(type_)
            _known.add(type_)
    return type_
