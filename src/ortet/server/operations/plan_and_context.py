"""The plan and decisions of a session, and texts for a model: context, briefing and working
memory.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.journal.conversation.context import ModelContext
from ortet.journal.reports.briefing import Briefing
from ortet.journal.state.records import Decision
from ortet.memory.working import WorkingMemory
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import CreatedId, NonEmptyText, Number, OperationRequest
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Plan(msgspec.Struct, frozen=True):
    """`step`: the number of the current step, from 0. If it equals the number of steps, all steps
    are done.
    """

    goal: str
    plan: list[str]
    step: int


class Steps(OperationRequest, frozen=True):
    steps: Annotated[list[NonEmptyText], msgspec.Meta(max_length=1000)]


class Advance(OperationRequest, frozen=True):
    """`to`: the number of the new current step, from 0; by default the next step."""

    to: Number | None = None


def _plan(view: SessionReader) -> Plan:
    return Plan(view.goal, view.steps, view.step)


@operation("GET", "/sessions/{session}/plan")
def show_plan(view: SessionReader) -> Plan:
    """Show the plan: its steps in order, and the number of the current step."""
    return _plan(view)


@operation("PUT", "/sessions/{session}/plan")
def plan(session: Session, ask: Steps) -> Plan:
    """Replace the plan. Its first step becomes the current step."""
    session.plan(ask.steps)
    return _plan(session)


@operation("POST", "/sessions/{session}/plan/advance")
def advance(session: Session, ask: Advance) -> Plan:
    """Make the next step, or the step with the given number, the current step."""
    session.advance(ask.to)
    return _plan(session)


@operation("GET", "/sessions/{session}/decisions")
def decisions(view: SessionReader, ask: Paged) -> Page[Decision]:
    """List the decisions of a session, with their reasons and rejected options."""
    return paginate(view.conversation.decisions(), ask, lambda one: one.id)


class Decide(OperationRequest, frozen=True):
    text: NonEmptyText
    why: str = ""
    instead_of: list[str] = []


@operation("POST", "/sessions/{session}/decisions", status=201)
def decide(session: Session, ask: Decide) -> CreatedId:
    """Record a decision."""
    return CreatedId(session.decide(ask.text, why=ask.why, instead_of=ask.instead_of))


class Brief(OperationRequest, frozen=True):
    tokens: Tokens = 2000


@operation("GET", "/sessions/{session}/briefing")
def briefing(view: SessionReader, ask: Brief) -> Briefing:
    """Return a briefing for whoever continues the session, as Markdown and as data."""
    return view.briefing(ask.tokens)


class AskContext(OperationRequest, frozen=True):
    """`query`: the question that the context is for. Memories of it come last."""

    query: str = ""
    tokens: Tokens = 8000


@operation("GET", "/sessions/{session}/context")
def context(view: SessionReader, ask: AskContext) -> ModelContext:
    """Return the context for a model: the summary and the newest messages that fit into the token
    limit.
    """
    return view.context(ask.query, ask.tokens)


class AskShaped(AskContext, frozen=True):
    """`form`: chat, for chat completions; or parts, with the system text apart and content in
    parts.
    """

    form: Literal["chat", "parts"] = "chat"


class Shaped(msgspec.Struct, frozen=True):
    """`given`: a list of messages (chat), or an object (parts)."""

    given: Any


@operation("GET", "/sessions/{session}/context/shaped")
def shaped_context(view: SessionReader, ask: AskShaped) -> Shaped:
    """Return the context for a query in the format of a model API."""
    model_context = view.context(ask.query, ask.tokens)
    return Shaped(model_context.chat() if ask.form == "chat" else model_context.parts())


class AskWorking(OperationRequest, frozen=True):
    messages: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


@operation("GET", "/sessions/{session}/working")
def working(view: SessionReader, ask: AskWorking) -> WorkingMemory:
    """Return the working memory of a session: goal, plan, notes, open questions and effects, and
    the last messages.
    """
    return view.memory.working(ask.messages)
