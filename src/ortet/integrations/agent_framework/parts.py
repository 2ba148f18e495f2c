"""Large values in parts, each stored once: of a list that grows, only its end is new each time."""

from __future__ import annotations

from typing import Any

from ortet._util.codec import decode, encode
from ortet.errors import Corrupt
from ortet.hub.hub import Hub
from ortet.integrations.agent_framework.values import MARK
from ortet.journal.events import Ref
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.artifacts import Content

_SMALL = 4096
_TOGETHER = 64
"""Items of a list that are one part."""
_MOST = 1 << 19
"""Bytes that an event says itself."""


class Parts:
    """Within hub.writing(): `refs` are what the event has to name."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.refs: list[Ref] = []

    def split(self, plain: dict[str, Any]) -> dict[str, Any]:
        """The same with places in the store for what is large."""
        small = {key: self._split(value) for key, value in plain.items()}
        return small if len(encode(small)) <= _MOST else {"all": self._put(plain)}

    def _split(self, plain: Any) -> Any:
        if isinstance(plain, str) and len(plain) > _SMALL:
            return self._put(plain)
        if not isinstance(plain, dict | list) or len(encode(plain)) <= _SMALL:
            return plain
        if isinstance(plain, dict):
            return {key: self._split(value) for key, value in plain.items()}
        parts = [plain[at : at + _TOGETHER] for at in range(0, len(plain), _TOGETHER)]
        return {MARK: "parts", "v": [self._put(part) for part in parts]}

    def _put(self, plain: Any) -> dict[str, Any]:
        data = self._hub.without_secrets(encode(plain))
        stored = artifacts.store(self._hub.objects, data)
        self.refs += stored.refs
        return {MARK: "at", "o": stored.oid, "n": stored.size}


def joined(hub: Hub, split: Any) -> Any:
    """What was split."""
    if isinstance(split, list):
        return [joined(hub, one) for one in split]
    if not isinstance(split, dict):
        return split
    if split.get(MARK) == "at":
        try:
            content = Content(split["o"], split["n"])
        except KeyError as error:
            raise Corrupt("bad_checkpoint", "a part of this checkpoint has no place") from error
        return decode(Any, artifacts.load(hub.objects, content))
    if split.get(MARK) == "parts":
        return [one for part in split["v"] for one in joined(hub, part)]
    return {key: joined(hub, value) for key, value in split.items()}
