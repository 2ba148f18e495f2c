"""Briefing: the state of an agent as Markdown and as data, within a number of tokens.

Lines of the least worth are left out first. The briefing says how many were left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import (
    TokenCounter,
    check_tokens,
    clip,
    estimate_tokens,
    message_text,
    one_line,
    text_of,
)
from ortet.journal.state.around import (
    BrowserState,
    Collaboration,
    RateLimitWindow,
    ServiceToken,
    describe_browser,
    describe_collaboration,
    describe_token,
    describe_window,
)
from ortet.journal.state.records import Artifact, Decision, Effect, Fact, Message, Question

# Sections and lines of a briefing, each as text and as data, with their worth.

LONG_CHARS, SHORT_CHARS = 400, 160
_MAX_SECTION_ITEMS = 60
"""Largest number of items of a section. Briefings never have room for more."""


class FailedAction(msgspec.Struct, frozen=True):
    """A failed action with its error."""

    effect: Effect
    error: str = ""


class PendingApproval(msgspec.Struct, frozen=True):
    """An approval request without an answer."""

    id: str
    what: str
    why: str = ""


class BriefingItems(msgspec.Struct, frozen=True, kw_only=True):
    """All items that a briefing can show. Lists are in the order of events."""

    name: str
    status: str
    goal: str = ""
    plan: Sequence[str] = ()
    step: int = 0
    done: Sequence[Effect] = ()
    failed: Sequence[FailedAction] = ()
    lessons: Sequence[Fact] = ()
    decisions: Sequence[Decision] = ()
    questions: Sequence[Question] = ()
    artifacts: Sequence[Artifact] = ()
    unsettled: Sequence[Effect] = ()
    approvals: Sequence[PendingApproval] = ()
    limits: dict[str, float] = {}
    left: dict[str, float] = {}
    spent: dict[str, float] = {}
    facts: Sequence[Fact] = ()
    notes: dict[str, Any] = {}
    summary: str = ""
    messages: Sequence[Message] = ()
    collaborations: Sequence[Collaboration] = ()
    windows: Sequence[RateLimitWindow] = ()
    tokens: Sequence[ServiceToken] = ()
    browsers: Sequence[BrowserState] = ()
    # lines and data about the environment of the workspace
    environment: Sequence[tuple[str, Any]] = ()


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
    """Return the sections in reading order. The weight is the worth of the newest item."""
    return [
        BriefingSection("plan", "Where we are", _plan(items)),
        _section(
            "unsettled", "Unsettled: find out whether it was done", 100, items.unsettled, _effect
        ),
        _section("approvals", "Waiting for approval", 90, items.approvals, _approval),
        _section("collaborations", "With others", 65, items.collaborations, describe_collaboration),
        _section("questions", "Open questions", 60, items.questions, _question),
        _section("budget", "Budget left", 70, _budget(items), lambda pair: pair),
        _section("lessons", "Lessons", 50, items.lessons, _fact),
        _section("failed", "What failed", 40, items.failed, _failure),
        _section("decisions", "Decisions", 45, items.decisions, _decision),
        _section("done", "What is done", 15, items.done, _effect),
        _section("artifacts", "Artifacts", 25, items.artifacts, _artifact),
        _section("facts", "Facts", 30, items.facts, _fact),
        _section("windows", "Rate limits", 22, items.windows, describe_window),
        _section("browser", "Browser", 14, items.browsers, describe_browser),
        _section("tokens", "Tokens", 12, items.tokens, describe_token),
        _section("environment", "Environment", 28, items.environment, lambda pair: pair),
        _section("notes", "Notes", 10, list(items.notes.items()), _note),
        _section("summary", "Earlier", 35, [items.summary] if items.summary else [], _summary),
        _section("messages", "Last messages", 42, items.messages, _message),
    ]


def _section(
    key: str,
    title: str,
    weight: float,
    records: Sequence[Any],
    show: Callable[[Any], tuple[str, Any]],
) -> BriefingSection:
    """Make a section. Worth falls with age: weight, weight / 2, weight / 3, and so on."""
    newest = list(records)[-_MAX_SECTION_ITEMS:]
    items = []
    for age, thing in enumerate(reversed(newest)):
        line, data = show(thing)
        items.append(BriefingLine(f"- {line}", data, weight / (1 + age)))
    return BriefingSection(key, title, items[::-1], len(records) - len(newest))


def _plan(items: BriefingItems) -> list[BriefingLine]:
    """Return the plan steps. The current step has the most worth, then the steps near it."""
    found = []
    for number, text in enumerate(items.plan):
        state = "done" if number < items.step else "now" if number == items.step else "to do"
        mark = {"done": "[x]", "now": "[>]", "to do": "[ ]"}[state]
        line = f"- {mark} {number + 1}. {one_line(text, SHORT_CHARS)}"
        data = {"number": number, "step": clip(text, LONG_CHARS), "state": state}
        far = abs(number - items.step) * (1 if number > items.step else 2)
        found.append(BriefingLine(line, data, 95 / (1 + far / 4)))
    return found


# one function for each kind of item; returns its line and its data


def effect_label(effect: Effect) -> str:
    """Return the name of an effect and the command that it ran."""
    command = f": {one_line(effect.command, SHORT_CHARS)}" if effect.command else ""
    return f"{effect.name}{command}"


def _effect(effect: Effect) -> tuple[str, Any]:
    why = f": {one_line(effect.why, SHORT_CHARS)}" if effect.why else ""
    data = {"id": effect.id, "name": effect.name, "why": clip(effect.why, LONG_CHARS)}
    data |= {"state": effect.state, "replay": effect.replay, "key": effect.key}
    if effect.command:
        data["command"] = clip(effect.command, LONG_CHARS)
    shown = f"`{effect_label(effect)}`{why}"
    return (f"{shown} ({effect.id})" if effect.state in ("begun", "unsettled") else shown), data


def _failure(failure: FailedAction) -> tuple[str, Any]:
    line, data = _effect(failure.effect)
    error = f" failed with {one_line(failure.error, SHORT_CHARS)}" if failure.error else " failed"
    return line + error, {**data, "error": clip(failure.error, LONG_CHARS)}


def _fact(fact: Fact) -> tuple[str, Any]:
    about = f"{fact.about}: " if fact.about else ""
    data = {"id": fact.id, "text": clip(fact.text, LONG_CHARS), "about": fact.about}
    return about + one_line(fact.text, LONG_CHARS), data


def _decision(decision: Decision) -> tuple[str, Any]:
    line = one_line(decision.text, LONG_CHARS)
    if decision.why:
        line += f", because {one_line(decision.why, SHORT_CHARS)}"
    if decision.instead_of:
        line += f"; not taken: {one_line('; '.join(decision.instead_of), SHORT_CHARS)}"
    data = {
        "id": decision.id,
        "text": clip(decision.text, LONG_CHARS),
        "why": clip(decision.why, LONG_CHARS),
    }
    return line, {
        **data,
        "instead_of": [clip(road, SHORT_CHARS) for road in decision.instead_of[:10]],
    }


def _question(question: Question) -> tuple[str, Any]:
    return one_line(question.text, LONG_CHARS), {
        "id": question.id,
        "text": clip(question.text, LONG_CHARS),
    }


def _approval(approval: PendingApproval) -> tuple[str, Any]:
    why = f": {one_line(approval.why, SHORT_CHARS)}" if approval.why else ""
    data = {
        "id": approval.id,
        "what": clip(approval.what, LONG_CHARS),
        "why": clip(approval.why, LONG_CHARS),
    }
    return f"{one_line(approval.what, LONG_CHARS)}{why} ({approval.id})", data


def _artifact(artifact: Artifact) -> tuple[str, Any]:
    kind = f", {artifact.kind}" if artifact.kind else ""
    where = f", {artifact.link}" if artifact.link else ""
    data = {"name": artifact.name, "version": artifact.version, "kind": artifact.kind}
    data |= {"oid": artifact.oid, "size": artifact.size, "link": artifact.link}
    return f"{artifact.name} (version {artifact.version}{kind}{where})", data


def _budget(items: BriefingItems) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in sorted({*items.limits, *items.left, *items.spent}, reverse=True):
        limit, left = items.limits.get(name), items.left.get(name)
        spent = items.spent.get(name, 0.0)
        rest = f"{left:g} left" if left is not None else "no limit"
        line = f"{name}: {rest}, {spent:g} spent" + (f" of {limit:g}" if limit is not None else "")
        found.append((line, {"name": name, "limit": limit, "left": left, "spent": spent}))
    return found


def _note(pair: tuple[str, Any]) -> tuple[str, Any]:
    key, value = pair
    text = one_line(text_of(value), SHORT_CHARS)
    return f"{key} = {text}", {"key": key, "value": text}


def _summary(text: str) -> tuple[str, Any]:
    return one_line(text, LONG_CHARS * 3), clip(text, LONG_CHARS * 3)


def _message(message: Message) -> tuple[str, Any]:
    text = message_text(message.content, message.extra)
    line = f"{message.role}: {one_line(text, LONG_CHARS)}"
    return line, {"seq": message.seq, "role": message.role, "content": clip(text, LONG_CHARS)}


class Briefing(msgspec.Struct, frozen=True):
    """A briefing. `data` has the same content as `markdown`; `left_out` counts missing lines."""

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
    """Return the longest start of a text that fits, for limits too small for the goal."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(clip(text, middle)) <= tokens else (low, middle - 1)
    return clip(text, low)
