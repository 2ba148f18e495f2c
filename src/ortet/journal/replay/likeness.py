"""Equality of events from different runs. Times, salts and ids are ignored.

This is a module of its own because both `cursor` and `run_diff` use it.
"""

from __future__ import annotations

from typing import Any

from ortet._util.codec import encode

_VOLATILE_KEYS = frozenset({"id", "time", "expires", "sent", "approval", "action", "whatif"})
"""Keys of event data that differ between runs, and the marker of a what-if fork."""


TIME_COUNTER = "seconds"
"""Spending counter that increases with time, whatever the program does."""


def spend_counters(spend: dict[str, Any]) -> list[str]:
    """Return the names of the counters in a spend event, without the time counter."""
    return sorted(name for name in spend.get("amounts", {}) if name != TIME_COUNTER)


def equality_key(kind: str, data: dict[str, Any], *, with_amounts: bool = True) -> bytes:
    """Return a key that is equal for events with equal content.

    Without `with_amounts`, spent amounts are ignored, because two runs never take the same time.
    """
    kept = {key: value for key, value in data.items() if key not in _VOLATILE_KEYS}
    if not with_amounts and kind == "spend" and isinstance(kept.get("amounts"), dict):
        kept["amounts"] = spend_counters(kept)
    return encode([kind, kept])
