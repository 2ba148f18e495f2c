"""Progress of a session for the next worker: plan steps with outcomes, and a log.

The log says what was done, when, why and what failed. It is fed event by event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from ortet.journal.conversation.text import clip, one_line
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of

_LONG_CHARS, _SHORT_CHARS = 400, 200
_MAX_LOG_ENTRIES = 1000
"""Largest number of log entries. The log is for people; the journal has everything."""


class PlanStepProgress(msgspec.Struct):
    """A plan step. `passes` is True when the agent has moved past it."""

    id: int
    description: str
    passes: bool = False
    state: str = "to do"
    attempts: int = 0  # actions that ended while this step was the current one
    failed: int = 0
    last: dict[str, Any] | None = None  # the last of these actions


class ProgressLog:
    """Collects progress from events. `seq` is the number of the last event."""

    def __init__(self) -> None:
        self.seq = 0
        self.goal = ""
        self.features: list[PlanStepProgress] = []
        self.entries: deque[str] = deque(maxlen=_MAX_LOG_ENTRIES)
        self.dropped_entries = 0  # number of entries that were dropped
        self._step = 0
        self._open_actions: dict[str, tuple[str, str]] = {}

    def feed(self, events: Iterable[Event]) -> None:
        """Add events. Events that were added before are skipped."""
        for event in events:
            if event.waiting or event.seq <= self.seq:
                continue
            self.seq = event.seq
            line = "" if event.erased else self._apply_event(event, event.data)
            if line:
                self.dropped_entries += len(self.entries) == _MAX_LOG_ENTRIES
                self.entries.append(f"- {_when(event.time)} {line}")

    def log(self) -> list[str]:
        """Return the lines of the log, oldest first."""
        more = f"- ({self.dropped_entries} earlier entries are in the journal: `ortet journal`)"
        return [*([more] if self.dropped_entries else []), *self.entries]

    def _apply_event(self, event: Event, data: dict[str, Any]) -> str:
        match event.kind:
            case "goal":
                self.goal = str(data.get("text", ""))
                return f"goal: {_line(self.goal)}"
            case "plan":
                return self._set_plan([str(step) for step in data.get("steps", [])])
            case "step":
                return self._set_step(int(data.get("step", 0)))
            case "begun":
                self._open_actions[data["id"]] = (data.get("name", ""), data.get("why", ""))
                return ""
            case "ended":
                return self._record_outcome(event, data)
            case _:
                return kind_of(event.kind).progress(data)

    def _set_plan(self, steps: list[str]) -> str:
        self.features = [
            PlanStepProgress(number, clip(text, _LONG_CHARS))
            for number, text in enumerate(steps, 1)
        ]
        self._set_step(0)
        return f"planned: {_line('; '.join(steps))}"

    def _set_step(self, step: int) -> str:
        self._step = step
        for at, feature in enumerate(self.features):
            feature.passes = at < step
            feature.state = "done" if at < step else "now" if at == step else "to do"
        if step >= len(self.features):
            return "all steps done"
        return f"step {step + 1} of {len(self.features)}: {_line(self.features[step].description)}"

    def _record_outcome(self, event: Event, data: dict[str, Any]) -> str:
        name, why = self._open_actions.pop(data["id"], ("", ""))
        outcome, state = data.get("outcome"), data.get("state", "")
        code = outcome.get("exit_code") if isinstance(outcome, dict) else None
        failed = state == "failed" or (isinstance(code, int) and code != 0)
        if self._step < len(self.features):
            feature = self.features[self._step]
            feature.attempts += 1
            feature.failed += failed
            feature.last = {
                "action": name,
                "why": clip(why, _SHORT_CHARS),
                "state": state,
                "exit_code": code,
                "time": _when(event.time),
            }
        end = f"exit code {code}" if isinstance(code, int) else state
        if state == "failed":
            end = f"failed with {_line(str(data.get('error', '')))}"
        return f"`{name}`{f' ({_line(why)})' if why else ''}: {end}"


def _line(text: str) -> str:
    return one_line(text, _SHORT_CHARS)


def _when(time: int) -> str:
    return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
