"""What a briefing tells of a mind: each thing as a line and as data, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import clip, one_line, spoken, text_of
from ortet.journal.state.around import (
    Browsing,
    Collaboration,
    Token,
    Window,
    tell_browser,
    tell_collaboration,
    tell_token,
    tell_window,
)
from ortet.journal.state.records import Artifact, Decision, Effect, Fact, Message, Question

LONG, SHORT = 400, 160
_MOST = 60
"""Items of a section that are looked at: no limit of tokens that is meant has room for more."""


class Failure(msgspec.Struct, frozen=True):
    """An action that failed, and what it said."""

    effect: Effect
    error: str = ""


class Wish(msgspec.Struct, frozen=True):
    """What a human was asked to allow."""

    id: str
    what: str
    why: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that a briefing may tell; lists are in the order things happened."""

    name: str
    status: str
    goal: str = ""
    plan: Sequence[str] = ()
    step: int = 0
    done: Sequence[Effect] = ()
    failed: Sequence[Failure] = ()
    lessons: Sequence[Fact] = ()
    decisions: Sequence[Decision] = ()
    questions: Sequence[Question] = ()
    artifacts: Sequence[Artifact] = ()
    unsettled: Sequence[Effect] = ()
    approvals: Sequence[Wish] = ()
    limits: dict[str, float] = {}
    left: dict[str, float] = {}
    spent: dict[str, float] = {}
    facts: Sequence[Fact] = ()
    notes: dict[str, Any] = {}
    summary: str = ""
    messages: Sequence[Message] = ()
    collaborations: Sequence[Collaboration] = ()
    windows: Sequence[Window] = ()
    tokens: Sequence[Token] = ()
    browsers: Sequence[Browsing] = ()
    environment: Sequence[tuple[str, Any]] = ()  # what surrounds the workspace: lines and data


class Item(msgspec.Struct, frozen=True):
    """One line of a section. Of two items, the one with less `worth` is left out first."""

    line: str
    data: Any
    worth: float


class Section(msgspec.Struct, frozen=True):
    key: str
    title: str
    items: list[Item]
    hidden: int = 0  # not looked at


def sections_of(known: Known) -> list[Section]:
    """In the order they are read. A weight is what the first item of a section is worth."""
    return [
        Section("plan", "Where we are", _plan(known)),
        _listed(
            "unsettled", "Unsettled: find out whether it was done", 100, known.unsettled, _deed
        ),
        _listed("approvals", "Waiting for approval", 90, known.approvals, _wish),
        _listed("collaborations", "With others", 65, known.collaborations, tell_collaboration),
        _listed("questions", "Open questions", 60, known.questions, _question),
        _listed("budget", "Budget left", 70, _budget(known), lambda pair: pair),
        _listed("lessons", "Lessons", 50, known.lessons, _fact),
        _listed("failed", "What failed", 40, known.failed, _failure),
        _listed("decisions", "Decisions", 45, known.decisions, _decision),
        _listed("done", "What is done", 15, known.done, _deed),
        _listed("artifacts", "Artifacts", 25, known.artifacts, _artifact),
        _listed("facts", "Facts", 30, known.facts, _fact),
        _listed("windows", "Rate limits", 22, known.windows, tell_window),
        _listed("browser", "Browser", 14, known.browsers, tell_browser),
        _listed("tokens", "Tokens", 12, known.tokens, tell_token),
        _listed("environment", "Environment", 28, known.environment, lambda pair: pair),
        _listed("notes", "Notes", 10, list(known.notes.items()), _note),
        _listed("summary", "Earlier", 35, [known.summary] if known.summary else [], _summary),
        _listed("messages", "Last messages", 42, known.messages, _message),
    ]


def _listed(
    key: str,
    title: str,
    weight: float,
    things: Sequence[Any],
    show: Callable[[Any], tuple[str, Any]],
) -> Section:
    """The newest is worth the weight, the one before it half of that, then a third."""
    newest = list(things)[-_MOST:]
    items = []
    for age, thing in enumerate(reversed(newest)):
        line, data = show(thing)
        items.append(Item(f"- {line}", data, weight / (1 + age)))
    return Section(key, title, items[::-1], len(things) - len(newest))


def _plan(known: Known) -> list[Item]:
    """The current step is worth most, then those near it."""
    found = []
    for number, text in enumerate(known.plan):
        state = "done" if number < known.step else "now" if number == known.step else "to do"
        mark = {"done": "[x]", "now": "[>]", "to do": "[ ]"}[state]
        line = f"- {mark} {number + 1}. {one_line(text, SHORT)}"
        data = {"number": number, "step": clip(text, LONG), "state": state}
        far = abs(number - known.step) * (1 if number > known.step else 2)
        found.append(Item(line, data, 95 / (1 + far / 4)))
    return found


# how each thing is shown: as a line, and as data


def run_as(effect: Effect) -> str:
    """A deed by its name, and what was run by it."""
    command = f": {one_line(effect.command, SHORT)}" if effect.command else ""
    return f"{effect.name}{command}"


def _deed(effect: Effect) -> tuple[str, Any]:
    why = f": {one_line(effect.why, SHORT)}" if effect.why else ""
    data = {"id": effect.id, "name": effect.name, "why": clip(effect.why, LONG)}
    data |= {"state": effect.state, "replay": effect.replay, "key": effect.key}
    if effect.command:
        data["command"] = clip(effect.command, LONG)
    shown = f"`{run_as(effect)}`{why}"
    return (f"{shown} ({effect.id})" if effect.state in ("begun", "unsettled") else shown), data


def _failure(failure: Failure) -> tuple[str, Any]:
    line, data = _deed(failure.effect)
    error = f" failed with {one_line(failure.error, SHORT)}" if failure.error else " failed"
    return line + error, {**data, "error": clip(failure.error, LONG)}


def _fact(fact: Fact) -> tuple[str, Any]:
    about = f"{fact.about}: " if fact.about else ""
    data = {"id": fact.id, "text": clip(fact.text, LONG), "about": fact.about}
    return about + one_line(fact.text, LONG), data


def _decision(decision: Decision) -> tuple[str, Any]:
    line = one_line(decision.text, LONG)
    if decision.why:
        line += f", because {one_line(decision.why, SHORT)}"
    if decision.instead_of:
        line += f"; not taken: {one_line('; '.join(decision.instead_of), SHORT)}"
    data = {"id": decision.id, "text": clip(decision.text, LONG), "why": clip(decision.why, LONG)}
    return line, {**data, "instead_of": [clip(road, SHORT) for road in decision.instead_of[:10]]}


def _question(question: Question) -> tuple[str, Any]:
    return one_line(question.text, LONG), {
        "id": question.id,
        "text": clip(question.text, LONG),
    }


def _wish(wish: Wish) -> tuple[str, Any]:
    why = f": {one_line(wish.why, SHORT)}" if wish.why else ""
    data = {"id": wish.id, "what": clip(wish.what, LONG), "why": clip(wish.why, LONG)}
    return f"{one_line(wish.what, LONG)}{why} ({wish.id})", data


def _artifact(artifact: Artifact) -> tuple[str, Any]:
    kind = f", {artifact.kind}" if artifact.kind else ""
    where = f", {artifact.link}" if artifact.link else ""
    data = {"name": artifact.name, "version": artifact.version, "kind": artifact.kind}
    data |= {"oid": artifact.oid, "size": artifact.size, "link": artifact.link}
    return f"{artifact.name} (version {artifact.version}{kind}{where})", data


def _budget(known: Known) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in sorted({*known.limits, *known.left, *known.spent}, reverse=True):
        limit, left = known.limits.get(name), known.left.get(name)
        spent = known.spent.get(name, 0.0)
        rest = f"{left:g} left" if left is not None else "no limit"
        line = f"{name}: {rest}, {spent:g} spent" + (f" of {limit:g}" if limit is not None else "")
        found.append((line, {"name": name, "limit": limit, "left": left, "spent": spent}))
    return found


def _note(pair: tuple[str, Any]) -> tuple[str, Any]:
    key, value = pair
    text = one_line(text_of(value), SHORT)
    return f"{key} = {text}", {"key": key, "value": text}


def _summary(text: str) -> tuple[str, Any]:
    return one_line(text, LONG * 3), clip(text, LONG * 3)


def _message(message: Message) -> tuple[str, Any]:
    text = spoken(message.content, message.extra)
    line = f"{message.role}: {one_line(text, LONG)}"
    return line, {"seq": message.seq, "role": message.role, "content": clip(text, LONG)}
