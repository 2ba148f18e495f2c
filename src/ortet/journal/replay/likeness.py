"""When two events say the same: times, salts and ids aside, which differ between any two runs."""

from __future__ import annotations

from typing import Any

from ortet._util.codec import encode

_VOLATILE_KEYS = frozenset({"id", "time", "expires", "sent", "approval", "action", "whatif"})
"""Keys of data that no two runs share, and the mark of a what-if."""


TIME_COUNTER = "seconds"
"""The counter that goes on by itself."""


def spend_counters(spend: dict[str, Any]) -> list[str]:
    """What was spent of, time aside."""
    return sorted(name for name in spend.get("amounts", {}) if name != TIME_COUNTER)


def equality_key(kind: str, data: dict[str, Any], *, with_amounts: bool = True) -> bytes:
    """The same bytes for events that say the same. Without `amounts`, what is spent is alike
    whatever it comes to: two runs do not take the same time."""
    kept = {key: value for key, value in data.items() if key not in _VOLATILE_KEYS}
    if not with_amounts and kind == "spend" and isinstance(kept.get("amounts"), dict):
        kept["amounts"] = spend_counters(kept)
    return encode([kind, kept])
