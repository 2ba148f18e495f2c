"""Splits large values into parts that are stored once; a list that grows adds only its end."""

from __future__ import annotations

from typing import Any

from ortet._util.codec import decode, encode
from ortet.errors import Corrupt
from ortet.hub.hub import Hub
from ortet.integrations.agent_framework.values import TYPE_KEY
from ortet.journal.events import ObjectRef
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.artifacts import StoredContent

_MAX_INLINE_BYTES = 4096
_LIST_CHUNK_ITEMS = 64
"""Number of list items in one part."""
_MAX_EVENT_BYTES = 1 << 19
"""Maximum size in bytes of the event itself."""


class ChunkedValues:
    """Stores large values as objects; use it inside `hub.writing()`.

    `refs` are the object references that the event must name.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.refs: list[ObjectRef] = []

    def split(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return the value with large parts replaced by references."""
        small = {key: self._split(value) for key, value in plain.items()}
        return small if len(encode(small)) <= _MAX_EVENT_BYTES else {"all": self._put(plain)}

    def _split(self, plain: Any) -> Any:
        if isinstance(plain, str) and len(plain) > _MAX_INLINE_BYTES:
            return self._put(plain)
        if not isinstance(plain, dict | list) or len(encode(plain)) <= _MAX_INLINE_BYTES:
            return plain
        if isinstance(plain, dict):
            return {key: self._split(value) for key, value in plain.items()}
        parts = [
            plain[at : at + _LIST_CHUNK_ITEMS] for at in range(0, len(plain), _LIST_CHUNK_ITEMS)
        ]
        return {TYPE_KEY: "parts", "v": [self._put(part) for part in parts]}

    def _put(self, plain: Any) -> dict[str, Any]:
        data = self._hub.redact_bytes(encode(plain))
        stored = artifacts.store(self._hub.objects, data)
        self.refs += stored.refs
        return {TYPE_KEY: "at", "o": stored.oid, "n": stored.size}


def join_parts(hub: Hub, stored: Any) -> Any:
    """Return the value with references replaced by the stored parts."""
    if isinstance(stored, list):
        return [join_parts(hub, one) for one in stored]
    if not isinstance(stored, dict):
        return stored
    if stored.get(TYPE_KEY) == "at":
        try:
            content = StoredContent(stored["o"], stored["n"])
        except KeyError as error:
            raise Corrupt("bad_checkpoint", "a part of this checkpoint has no place") from error
        return decode(Any, artifacts.load(hub.objects, content))
    if stored.get(TYPE_KEY) == "parts":
        return [one for part in stored["v"] for one in join_parts(hub, part)]
    return {key: join_parts(hub, value) for key, value in stored.items()}
