"""Working memory: where a session stands, at one place of its timeline, read through a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Cache
from ortet.errors import Corrupt

TTL_NS = 3600 * 1_000_000_000
"""How long it is kept: what another process erases is forgotten here by then."""

_KEY_PREFIX = "working/1/"
"""What every key begins with. The number goes up with the shape: releases may share a server."""


class WorkingNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A note. `expires` is in ns since 1970, 0 for never."""

    key: str
    value: Any
    expires: int = 0


class WorkingMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What events up to number `seq` of a timeline come to, in plain values.

    `questions` and `effects` are those that are open; `messages` are the last ones, oldest first.
    """

    timeline: str
    seq: int
    goal: str = ""
    status: str = ""
    plan: list[str] = []
    step: int = 0
    notes: list[WorkingNote] = []
    questions: list[dict[str, Any]] = []
    effects: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []

    @property
    def current(self) -> str:
        """The step that is being done; "" without a plan, and when all is done."""
        return self.plan[self.step] if self.step < len(self.plan) else ""

    def without_expired_notes(self, now: int) -> WorkingMemory:
        """Without the notes whose time has run out."""
        live = [note for note in self.notes if not note.expires or note.expires > now]
        return self if len(live) == len(self.notes) else msgspec.structs.replace(self, notes=live)


def cache_key(timeline: str, seq: int, messages: int) -> str:
    """Where it is kept, with so many messages. What lies before an event never changes, so what is
    found there cannot be stale; only an erasure changes it, see `let_go`."""
    return f"{_KEY_PREFIX}{timeline}/{seq}/{messages}"


def read_through(
    cache: Cache, key: str, make: Callable[[], WorkingMemory], *, now: int
) -> WorkingMemory:
    """What the cache has under this key, else what `make` reads from the journal.

    Both are the same: time is looked at when it is read, not when it is kept.
    """
    kept = cache.get(key)
    found = None if kept is None else _decode_cached(kept)
    if found is None or not key.startswith(f"{_KEY_PREFIX}{found.timeline}/{found.seq}/"):
        found = make()
        cache.put(key, encode(found), TTL_NS)
    return found.without_expired_notes(now)


def clear_working_memory(cache: Cache) -> None:
    """Forget all of it. An erased message may be in the working memory of any fork of its session,
    so after an erasure nothing less will do."""
    cache.drop(_KEY_PREFIX)


def forget_timeline(cache: Cache, timeline: str) -> None:
    """That of one timeline, whose session was removed."""
    cache.drop(f"{_KEY_PREFIX}{timeline}/")


def _decode_cached(data: bytes) -> WorkingMemory | None:
    """None for bytes that somebody else put there: a cache is not the truth."""
    try:
        return decode(WorkingMemory, data)
    except Corrupt:
        return None
