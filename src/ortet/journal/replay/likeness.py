"""When two events say the same: times, salts and ids aside, which differ between any two runs."""

from __future__ import annotations

from typing import Any

from ortet._util.codec import encode

_CHANCE = frozenset({"id", "time", "expires", "sent", "approval", "action", "whatif"})
"""Keys of data that no two runs share, and the mark of a what-if."""


TIME = "seconds"
"""The counter that goes on by itself."""


def counters(spend: dict[str, Any]) -> list[str]:
    """What was spent of, time aside."""
    return sorted(name for name in spend.get("amounts", {}) if name != TIME)


def likeness(kind: str, data: dict[str, Any], *, amounts: bool = True) -> bytes:
    """The same bytes for events that say the same. Without `amounts`, what is spent is alike
    whatever it comes to: two runs do not take the same time."""
    kept = {key: value for key, value in data.items() if key not in _CHANCE}
    if not amounts and kind == "spend" and isinstance(kept.get("amounts"), dict):
        kept["amounts"] = counters(kept)
    return encode([kind, kept])
