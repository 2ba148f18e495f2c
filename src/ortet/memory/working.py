"""Working memory: the state of a session at one event of its timeline, read through a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Cache
from ortet.errors import Corrupt

CACHE_TTL_NS = 3600 * 1_000_000_000
"""Cache lifetime. Erased content leaves the caches of other processes within this time."""

_KEY_PREFIX = "working/1/"
"""Prefix of all cache keys. Raise the number with the format: releases may share a server."""


class WorkingNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A note. `expires` is in ns since 1970, or 0 for never."""

    key: str
    value: Any
    expires: int = 0


class WorkingMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a session after one event of a timeline, in plain values.

    Attributes:
        timeline: Id of the timeline.
        seq: Number of the event.
        goal: Goal of the session.
        status: Status of the session.
        plan: Steps of the plan.
        step: Number of the current step, from 0.
        notes: Notes.
        questions: Open questions.
        effects: Open effects.
        messages: The newest messages, oldest first.
        elsewhere: Effects that the family has done and this timeline does not know. They stay done.
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
    elsewhere: list[dict[str, Any]] = []

    @property
    def current(self) -> str:
        """The current plan step; "" without a plan, or if all steps are done."""
        return self.plan[self.step] if self.step < len(self.plan) else ""

    def without_expired_notes(self, now: int) -> WorkingMemory:
        """Return the working memory without expired notes."""
        live = [note for note in self.notes if not note.expires or note.expires > now]
        return self if len(live) == len(self.notes) else msgspec.structs.replace(self, notes=live)


def cache_key(timeline: str, seq: int, messages: int) -> str:
    """Return the cache key for a state with this number of messages.

    Events before `seq` never change, so a cached value is never stale. Only an erasure changes it;
    see `clear_working_memory`.
    """
    return f"{_KEY_PREFIX}{timeline}/{seq}/{messages}"


def read_through(
    cache: Cache, key: str, make: Callable[[], WorkingMemory], *, now: int
) -> WorkingMemory:
    """Return the cached value of the key, or make and cache it.

    Expired notes are removed on reading, so that both ways give the same result.
    """
    cached = cache.get(key)
    decoded = None if cached is None else _decode_cached(cached)
    if decoded is None or not key.startswith(f"{_KEY_PREFIX}{decoded.timeline}/{decoded.seq}/"):
        decoded = make()
        cache.put(key, encode(decoded), CACHE_TTL_NS)
    return decoded.without_expired_notes(now)


def clear_working_memory(cache: Cache) -> None:
    """Delete all working memory from the cache.

    After an erasure, the erased message may be in the working memory of any fork.
    """
    cache.drop(_KEY_PREFIX)


def forget_timeline(cache: Cache, timeline: str) -> None:
    """Delete the working memory of one timeline, whose session was removed."""
    cache.drop(f"{_KEY_PREFIX}{timeline}/")


def _decode_cached(data: bytes) -> WorkingMemory | None:
    """Decode a cached value. Return None for foreign bytes: a cache is not trusted."""
    try:
        return decode(WorkingMemory, data)
    except Corrupt:
        return None
