"""Event kinds of the goal, the plan and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ortet.journal.conversation.text import clip, one_line, text_of
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import (
    LONG_CHARS,
    SHORT_CHARS,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    ReasonText,
    progress_text,
    text_field,
)
from ortet.journal.state.records import Decision
from ortet.journal.state.state import SessionState


class _GoalData(msgspec.Struct):
    text: str = ""


class _PlanData(msgspec.Struct):
    steps: list[str] = []


class _StepData(msgspec.Struct):
    step: int = 0


class _DecisionData(msgspec.Struct):
    id: str = ""
    text: str = ""
    why: str = ""
    instead_of: list[str] = []


# reducers


def _fold_goal(state: SessionState, event: Event, data: EventData) -> None:
    del event
    state.change_core(goal=data["text"])


def _fold_plan(state: SessionState, event: Event, data: EventData) -> None:
    del event
    state.change_core(plan=list(data["steps"]), step=0)


def _fold_step(state: SessionState, event: Event, data: EventData) -> None:
    del event
    state.change_core(step=data["step"])


def _fold_decision(state: SessionState, event: Event, data: EventData) -> None:
    decision = Decision(
        id=data["id"],
        text=data["text"],
        why=data.get("why", ""),
        instead_of=data.get("instead_of", []),
        seq=event.seq,
        time=event.time,
    )
    state.decisions.set(decision.id, decision)


# lines


def _plan_line(data: EventData) -> str:
    return "; ".join(map(str, data.get("steps", [])))


def _plan_reason(data: EventData) -> str:
    return "\n".join(map(str, data.get("steps", [])))


def _step_reason(data: EventData) -> str:
    return str(data.get("step", ""))


def _decision_progress(data: EventData) -> str:
    text = progress_text(text_of(data.get("text", "")))
    because = f", because {progress_text(data['why'])}" if data.get("why") else ""
    rejected = "; ".join(map(str, data.get("instead_of", [])))
    not_taken = f"; not taken: {progress_text(rejected)}" if rejected else ""
    return f"decided: {text}{because}{not_taken}"


# briefing


class _PlanStep(NamedTuple):
    number: int
    text: str
    state: str
    distance: int
    """Distance to the current step. Steps before it count twice."""


_STEP_MARKS = {"done": "[x]", "now": "[>]", "to do": "[ ]"}


def _plan_steps(items: BriefingItems) -> Sequence[_PlanStep]:
    steps, current = [], items.state.core.step
    for index, text in enumerate(items.state.core.plan):
        state = "done" if index < current else "now" if index == current else "to do"
        distance = abs(index - current) * (1 if index > current else 2)
        steps.append(_PlanStep(index + 1, text, state, distance))
    return steps


def _describe_step(step: _PlanStep) -> tuple[str, Any]:
    line = f"{_STEP_MARKS[step.state]} {step.number}. {one_line(step.text, SHORT_CHARS)}"
    text = clip(step.text, LONG_CHARS)
    return line, {"number": step.number, "step": text, "state": step.state}


def _step_worth(step: _PlanStep) -> float:
    """Return the worth of a step: the current step has the most, then the steps near it."""
    return _PLAN_WEIGHT / (1 + step.distance / 4)


def _decisions(items: BriefingItems) -> Sequence[Decision]:
    return sorted(items.state.decisions, key=lambda decision: decision.seq)


def _describe_decision(decision: Decision) -> tuple[str, Any]:
    line = one_line(decision.text, LONG_CHARS)
    if decision.why:
        line += f", because {one_line(decision.why, SHORT_CHARS)}"
    if decision.instead_of:
        line += f"; not taken: {one_line('; '.join(decision.instead_of), SHORT_CHARS)}"
    return line, {
        "id": decision.id,
        "text": clip(decision.text, LONG_CHARS),
        "why": clip(decision.why, LONG_CHARS),
        "instead_of": [clip(text, SHORT_CHARS) for text in decision.instead_of[:10]],
    }


_PLAN_WEIGHT = 95

KINDS = (
    EventKind(
        name="goal",
        schema=_GoalData,
        reducer=_fold_goal,
        survives_rewind=True,
        replay="skipped",
        group="reasoning",
        reason=ReasonText("goal", text_field),
    ),
    EventKind(
        name="plan",
        schema=_PlanData,
        reducer=_fold_plan,
        survives_rewind=True,
        line=_plan_line,
        group="reasoning",
        reason=ReasonText("plan", _plan_reason),
        briefing=(
            BriefingSectionSpec(
                10,
                "plan",
                "Where we are",
                _PLAN_WEIGHT,
                _plan_steps,
                _describe_step,
                worth=_step_worth,
            ),
        ),
    ),
    EventKind(
        name="step",
        schema=_StepData,
        reducer=_fold_step,
        survives_rewind=True,
        milestone=True,
        group="reasoning",
        reason=ReasonText("step", _step_reason),
    ),
    EventKind(
        name="decision",
        schema=_DecisionData,
        reducer=_fold_decision,
        survives_rewind=True,
        milestone=True,
        importance=0.1,
        group="reasoning",
        progress=_decision_progress,
        reason=ReasonText("decision", text_field),
        briefing=(
            BriefingSectionSpec(90, "decisions", "Decisions", 45, _decisions, _describe_decision),
        ),
    ),
)
