"""A briefing: the mental state of an agent for whoever goes on, as Markdown and as data, within a
number of tokens. What matters least is left out first, and the briefing says how much it was."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import Counter, check_tokens, clip, estimate, one_line
from ortet.journal.reports.known import LONG, Known, Section, sections_of


class Briefing(msgspec.Struct, frozen=True):
    """`data` is what `markdown` says, for programs; `left_out` counts what did not fit."""

    markdown: str
    data: dict[str, Any]
    tokens: int
    left_out: dict[str, int] = {}

    def __str__(self) -> str:
        return self.markdown


def brief(known: Known, tokens: int, count: Counter = estimate) -> Briefing:
    """As much as fits: the goal in any case, then what is worth most."""
    check_tokens(tokens)
    every = sections_of(known)
    sections = [section for section in every if section.items]
    ranked = sorted(
        (item for section in sections for item in section.items), key=lambda item: item.worth
    )
    head = _head(known)

    def written(left_out: int) -> str:
        return _written(head, sections, {id(item) for item in ranked[left_out:]})

    start = bisect_left(
        range(len(ranked)), True, key=lambda left_out: count(written(left_out)) <= tokens
    )
    kept = {id(item) for item in ranked[start:]}
    shown = written(start)
    size = count(shown)
    if size > tokens:
        shown = _cut(shown, tokens, count)
        size = count(shown)
    return Briefing(shown, _data(known, every, kept), size, _gone(sections, kept))


def _head(known: Known) -> str:
    lines = [f"# Briefing: {known.name}", ""]
    lines.append(f"Goal: {one_line(known.goal, LONG) or 'none was set'}")
    where = known.status
    if known.plan:
        at = min(known.step, len(known.plan))
        now = f"step {at + 1} of {len(known.plan)}" if at < len(known.plan) else "all steps done"
        where += f", {now}"
    lines.append(f"Status: {where}")
    return "\n".join(lines) + "\n"


def _written(head: str, sections: Sequence[Section], kept: set[int]) -> str:
    parts = [head]
    for section in sections:
        lines = [item.line for item in section.items if id(item) in kept]
        gone = len(section.items) + section.hidden - len(lines)
        if lines:
            more = [f"({gone} more)"] if gone else []
            parts.append("\n".join([f"## {section.title}", *more, *lines]) + "\n")
    return "\n".join(parts)


def _data(known: Known, sections: Sequence[Section], kept: set[int]) -> dict[str, Any]:
    at = known.step
    current = clip(known.plan[at], LONG) if at < len(known.plan) else ""
    data: dict[str, Any] = {
        "name": known.name,
        "status": known.status,
        "goal": clip(known.goal, LONG),
        "step": at,
        "current_step": current,
    }
    for section in sections:
        data[section.key] = [item.data for item in section.items if id(item) in kept]
    return data


def _gone(sections: Sequence[Section], kept: set[int]) -> dict[str, int]:
    counts = {
        section.key: section.hidden + sum(id(item) not in kept for item in section.items)
        for section in sections
    }
    return {key: count for key, count in counts.items() if count}


def _cut(text: str, tokens: int, count: Counter) -> str:
    """The longest beginning that fits: for limits that not even the goal fits."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(clip(text, middle)) <= tokens else (low, middle - 1)
    return clip(text, low)
