"""A briefing: the mental state of an agent for whoever goes on, as Markdown and as data, within a
number of tokens. What matters least is left out first, and the briefing says how much it was."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import (
    TokenCounter,
    check_tokens,
    clip,
    estimate_tokens,
    one_line,
)
from ortet.journal.reports.known import LONG_CHARS, BriefingItems, BriefingSection, sections_of


class Briefing(msgspec.Struct, frozen=True):
    """`data` is what `markdown` says, for programs; `left_out` counts what did not fit."""

    markdown: str
    data: dict[str, Any]
    tokens: int
    left_out: dict[str, int] = {}

    def __str__(self) -> str:
        return self.markdown


def make_briefing(
    items: BriefingItems, tokens: int, count: TokenCounter = estimate_tokens
) -> Briefing:
    """As much as fits: the goal in any case, then what is worth most."""
    check_tokens(tokens)
    every = sections_of(items)
    sections = [section for section in every if section.items]
    ranked = sorted(
        (item for section in sections for item in section.items), key=lambda item: item.worth
    )
    head = _head(items)

    def written(left_out: int) -> str:
        return _render(head, sections, {id(item) for item in ranked[left_out:]})

    start = bisect_left(
        range(len(ranked)), True, key=lambda left_out: count(written(left_out)) <= tokens
    )
    kept = {id(item) for item in ranked[start:]}
    shown = written(start)
    size = count(shown)
    if size > tokens:
        shown = _cut(shown, tokens, count)
        size = count(shown)
    return Briefing(shown, _data(items, every, kept), size, _left_out_counts(sections, kept))


def _head(items: BriefingItems) -> str:
    lines = [f"# Briefing: {items.name}", ""]
    lines.append(f"Goal: {one_line(items.goal, LONG_CHARS) or 'none was set'}")
    where = items.status
    if items.plan:
        at = min(items.step, len(items.plan))
        now = f"step {at + 1} of {len(items.plan)}" if at < len(items.plan) else "all steps done"
        where += f", {now}"
    lines.append(f"Status: {where}")
    return "\n".join(lines) + "\n"


def _render(head: str, sections: Sequence[BriefingSection], kept: set[int]) -> str:
    parts = [head]
    for section in sections:
        lines = [item.line for item in section.items if id(item) in kept]
        gone = len(section.items) + section.hidden - len(lines)
        if lines:
            more = [f"({gone} more)"] if gone else []
            parts.append("\n".join([f"## {section.title}", *more, *lines]) + "\n")
    return "\n".join(parts)


def _data(
    items: BriefingItems, sections: Sequence[BriefingSection], kept: set[int]
) -> dict[str, Any]:
    at = items.step
    current = clip(items.plan[at], LONG_CHARS) if at < len(items.plan) else ""
    data: dict[str, Any] = {
        "name": items.name,
        "status": items.status,
        "goal": clip(items.goal, LONG_CHARS),
        "step": at,
        "current_step": current,
    }
    for section in sections:
        data[section.key] = [item.data for item in section.items if id(item) in kept]
    return data


def _left_out_counts(sections: Sequence[BriefingSection], kept: set[int]) -> dict[str, int]:
    counts = {
        section.key: section.hidden + sum(id(item) not in kept for item in section.items)
        for section in sections
    }
    return {key: count for key, count in counts.items() if count}


def _cut(text: str, tokens: int, count: TokenCounter) -> str:
    """The longest beginning that fits: for limits that not even the goal fits."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(clip(text, middle)) <= tokens else (low, middle - 1)
    return clip(text, low)
