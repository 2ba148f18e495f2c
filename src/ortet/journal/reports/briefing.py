"""Briefing: the state of an agent as Markdown and as data, within a number of tokens.

The event kinds define the sections, their lines and their worth. Lines of the least worth are left
out first. The briefing says how many were left out.
"""

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
from ortet.journal.kinds.event_kind import LONG_CHARS, BriefingItems, BriefingSectionSpec
from ortet.journal.kinds.registry import EVENT_KINDS

_MAX_SECTION_ITEMS = 60
"""Largest number of items of a section. Briefings never have room for more."""


class BriefingLine(msgspec.Struct, frozen=True):
    """One line of a section. Lines with less `worth` are left out first."""

    line: str
    data: Any
    worth: float


class BriefingSection(msgspec.Struct, frozen=True):
    """One section of a briefing."""

    key: str
    title: str
    items: list[BriefingLine]
    hidden: int = 0  # number of items that were not considered


def sections_of(items: BriefingItems) -> list[BriefingSection]:
    """Return the sections in reading order."""
    specs = [spec for kind in EVENT_KINDS.values() for spec in kind.briefing]
    return [_section(spec, items) for spec in sorted(specs, key=lambda spec: spec.position)]


def _section(spec: BriefingSectionSpec, items: BriefingItems) -> BriefingSection:
    """Make a section. Worth falls with age: weight, weight / 2, weight / 3, and so on."""
    records = spec.select(items)
    shown = records if spec.worth is not None else records[-_MAX_SECTION_ITEMS:]
    lines = []
    for age, record in enumerate(reversed(shown)):
        line, data = spec.describe(record)
        worth = spec.weight / (1 + age) if spec.worth is None else spec.worth(record)
        lines.append(BriefingLine(f"- {line}", data, worth))
    return BriefingSection(spec.key, spec.title, lines[::-1], len(records) - len(shown))


class Briefing(msgspec.Struct, frozen=True):
    """A briefing for the next worker.

    Attributes:
        markdown: The briefing as text.
        data: The same content as data.
        tokens: Estimated size of the text.
        left_out: Number of lines that did not fit, by section.
    """

    markdown: str
    data: dict[str, Any]
    tokens: int
    left_out: dict[str, int] = {}

    def __str__(self) -> str:
        return self.markdown


def make_briefing(
    items: BriefingItems, tokens: int, count: TokenCounter = estimate_tokens
) -> Briefing:
    """Make a briefing of at most `tokens` tokens.

    The goal is always included, then lines by their worth.
    """
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
    shown_lines = {id(item) for item in ranked[start:]}
    markdown = written(start)
    size = count(markdown)
    if size > tokens:
        markdown = _cut(markdown, tokens, count)
        size = count(markdown)
    return Briefing(
        markdown, _data(items, every, shown_lines), size, _left_out_counts(sections, shown_lines)
    )


def _head(items: BriefingItems) -> str:
    core = items.state.core
    lines = [f"# Briefing: {items.name}", ""]
    lines.append(f"Goal: {one_line(core.goal, LONG_CHARS) or 'none was set'}")
    status = items.status
    if core.plan:
        at, count = min(core.step, len(core.plan)), len(core.plan)
        now = f"step {at + 1} of {count}" if at < count else "all steps done"
        status += f", {now}"
    lines.append(f"Status: {status}")
    return "\n".join(lines) + "\n"


def _render(head: str, sections: Sequence[BriefingSection], kept: set[int]) -> str:
    parts = [head]
    for section in sections:
        lines = [item.line for item in section.items if id(item) in kept]
        missing = len(section.items) + section.hidden - len(lines)
        if lines:
            more = [f"({missing} more)"] if missing else []
            parts.append("\n".join([f"## {section.title}", *more, *lines]) + "\n")
    return "\n".join(parts)


def _data(
    items: BriefingItems, sections: Sequence[BriefingSection], kept: set[int]
) -> dict[str, Any]:
    core = items.state.core
    current = clip(core.plan[core.step], LONG_CHARS) if core.step < len(core.plan) else ""
    data: dict[str, Any] = {
        "name": items.name,
        "status": items.status,
        "goal": clip(core.goal, LONG_CHARS),
        "step": core.step,
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
    """Return the longest start of a text that fits, for limits too small for the goal."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(clip(text, middle)) <= tokens else (low, middle - 1)
    return clip(text, low)
