"""Compare two runs: where they diverge, and what each did from there on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

import msgspec

from ortet._util.codec import encode
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of

# Equality of events from different runs. Times, salts and ids are ignored.

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
    stable = {key: value for key, value in data.items() if key not in _VOLATILE_KEYS}
    if not with_amounts and kind_of(kind).measured and isinstance(stable.get("amounts"), dict):
        stable["amounts"] = spend_counters(stable)
    return encode([kind, stable])


class EventPair(msgspec.Struct, frozen=True):
    """The events of one step in both runs. None means that a run has no such step."""

    left: Event | None
    right: Event | None
    same: bool


class RunDiff(msgspec.Struct, frozen=True):
    """Comparison of two runs. `str()` of it is readable text.

    Attributes:
        pairs: The events of both runs, side by side.
        first: The first pair that differs, or None.
        seq: Number of its left event, or of its right event if the left run has ended.
    """

    pairs: list[EventPair]
    first: EventPair | None = None
    seq: int = 0

    def __str__(self) -> str:
        return render(self)


def diff_runs(a: Iterable[Event], b: Iterable[Event]) -> RunDiff:
    """Compare two runs event by event. Times, salts and ids are ignored."""
    left, right = _comparable_events(a), _comparable_events(b)
    keys = [_key(event) for event in left], [_key(event) for event in right]
    begin = 0
    while begin < min(len(left), len(right)) and keys[0][begin] == keys[1][begin]:
        begin += 1
    pairs = [EventPair(*both, same=True) for both in zip(left[:begin], right[:begin], strict=True)]
    matcher = SequenceMatcher(None, keys[0][begin:], keys[1][begin:], autojunk=False)
    for tag, low, high, other_low, other_high in matcher.get_opcodes():
        ours = left[begin + low : begin + high]
        theirs = right[begin + other_low : begin + other_high]
        pairs += _side_by_side(ours, theirs, same=tag == "equal")
    first = next((pair for pair in pairs if not pair.same), None)
    if first is None:
        return RunDiff(pairs)
    known = first.left or first.right
    return RunDiff(pairs, first, known.seq if known is not None else 0)


def render(diff: RunDiff, *, width: int = 120, context_lines: int = 3) -> str:
    """Return the comparison as text, one line for each pair. Equal pairs far away are skipped."""
    if diff.first is None:
        return f"the runs are the same: {len(diff.pairs)} events"
    half = max(20, (width - 3) // 2)
    near = {
        place
        for at, pair in enumerate(diff.pairs)
        if not pair.same
        for place in range(at - context_lines, at + context_lines + 1)
    }
    lines, skipped = [f"they part at event {diff.seq}"], 0
    for at, pair in enumerate(diff.pairs):
        if at not in near:
            skipped += 1
            continue
        if skipped:
            lines.append(f"... {skipped} the same")
            skipped = 0
        mark = (
            "=" if pair.same else "<" if pair.right is None else ">" if pair.left is None else "|"
        )
        lines.append(f"{_cell(pair.left, half):{half}} {mark} {_cell(pair.right, half)}".rstrip())
    if skipped:
        lines.append(f"... {skipped} the same")
    return "\n".join(lines)


def _comparable_events(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if kind_of(event.kind).compared and not event.waiting]


def _key(event: Event) -> bytes:
    return equality_key(event.kind, event.data) if not event.erased else event.hash


def _side_by_side(left: list[Event], right: list[Event], *, same: bool) -> list[EventPair]:
    """Pair events in order. The shorter list is filled with None."""
    count = max(len(left), len(right))
    return [
        EventPair(
            left[at] if at < len(left) else None, right[at] if at < len(right) else None, same=same
        )
        for at in range(count)
    ]


def _cell(event: Event | None, width: int) -> str:
    if event is None:
        return ""
    text = f"{event.seq} {event.kind} {short_text(event.data)}".replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def short_text(data: dict[str, Any]) -> str:
    """Return the most useful part of event data for a reader."""
    for key in ("content", "text", "outcome", "error", "steps", "what", "amounts"):
        if data.get(key) is not None:
            label = data.get("role") or data.get("state") or ""
            return f"{label} {data[key]}".strip()
    if "name" in data:
        return f"{data['name']} {data.get('args', '')}".strip()
    return " ".join(f"{key}={value}" for key, value in data.items() if key != "id")
