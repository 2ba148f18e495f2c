"""What a briefing can show, before lines are made and chosen.

It is a module of its own because event kinds say how these items are shown, and `briefing` asks the
event kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.state.records import (
    Artifact,
    Collaboration,
    Effect,
    Fact,
    Message,
    Question,
    RateLimitWindow,
    ServiceToken,
)
from ortet.journal.state.state import SessionState

LONG_CHARS, SHORT_CHARS = 400, 160
"""Largest length of a main text, and of a text beside it, in a line of a briefing."""


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
    """All items that a briefing can show: the state, and what is not in the state alone.

    Lists are in the order of events.
    """

    name: str
    status: str
    state: SessionState
    done: Sequence[Effect] = ()
    failed: Sequence[FailedAction] = ()
    lessons: Sequence[Fact] = ()
    questions: Sequence[Question] = ()
    artifacts: Sequence[Artifact] = ()
    unsettled: Sequence[Effect] = ()
    elsewhere: Sequence[Effect] = ()  # done by the family, and not on this timeline
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
    # lines and data about the environment of the workspace
    environment: Sequence[tuple[str, Any]] = ()
