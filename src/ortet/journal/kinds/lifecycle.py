"""Event kinds that the session itself writes: status, environment, merges and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.events import Event
from ortet.journal.kinds.budget import add_spent
from ortet.journal.kinds.event_kind import (
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    always,
    progress_text,
)
from ortet.journal.state.state import SessionState


class _LifecycleData(msgspec.Struct):
    to: str = ""
    why: str = ""


def _fold_lifecycle(state: SessionState, event: Event, data: EventData) -> None:
    del event
    state.change_core(status=data["to"])


def _fold_environment(state: SessionState, event: Event, data: EventData) -> None:
    """Record which events hold each part. The environment itself stays in those events."""
    parts = dict.fromkeys(data["parts"], event.seq)
    core = state.core
    state.change_core(
        environment={**core.environment, **parts},
        environment_first={**parts, **core.environment_first},
    )


def _fold_merge(state: SessionState, event: Event, data: EventData) -> None:
    """Add their spending. Facts and other records are merged by events of their own."""
    del event
    add_spent(state, data.get("spent", {}))


def _lifecycle_line(data: EventData) -> str:
    return f"{data.get('from', '')} -> {data.get('to', '')}"


def _warning_progress(data: EventData) -> str:
    return f"warning: {progress_text(str(data.get('error') or data.get('what', '')))}"


def _was_automatic(data: EventData) -> bool:
    """Return True if nobody asked for this record of the environment."""
    return not data.get("asked")


def _environment(items: BriefingItems) -> Sequence[tuple[str, Any]]:
    return items.environment


def _describe_environment(line_and_data: tuple[str, Any]) -> tuple[str, Any]:
    return line_and_data


KINDS = (
    EventKind(
        name="lifecycle",
        automatic=True,
        schema=_LifecycleData,
        reducer=_fold_lifecycle,
        bookkeeping=always,
        replay="never_requested",
        compared=False,
        in_episodes=False,
        line=_lifecycle_line,
        listed=False,
    ),
    EventKind(
        name="environment",
        automatic=True,
        reducer=_fold_environment,
        survives_rewind=True,
        bookkeeping=_was_automatic,
        replay="skipped",
        compared=False,
        in_episodes=False,
        briefing=(
            BriefingSectionSpec(
                160, "environment", "Environment", 28, _environment, _describe_environment
            ),
        ),
    ),
    EventKind(
        name="merge",
        reducer=_fold_merge,
        replay="never_requested",
        importance=0.05,
    ),
    EventKind(
        name="record",
    ),
    EventKind(
        name="warning",
        automatic=True,
        replay="never_requested",
        progress=_warning_progress,
    ),
)
