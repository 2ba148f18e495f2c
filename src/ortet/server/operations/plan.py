"""Plan and decisions; and what a model, or whoever goes on, is given of a mind."""

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
    """`step` is the number of the current one, from 0; as many as there are: all are done."""

    goal: str
    plan: list[str]
    step: int


class Steps(OperationRequest, frozen=True):
    steps: Annotated[list[NonEmptyText], msgspec.Meta(max_length=1000)]


class Advance(OperationRequest, frozen=True):
    """`to` a step by its number from 0; else to the next."""

    to: Number | None = None


def _plan(view: SessionReader) -> Plan:
    return Plan(view.goal, view.steps, view.step)


@operation("GET", "/sessions/{session}/plan")
def show_plan(view: SessionReader) -> Plan:
    """What is to be done, in order, and which step is the current one."""
    return _plan(view)


@operation("PUT", "/sessions/{session}/plan")
def plan(session: Session, ask: Steps) -> Plan:
    """Make a new plan; its first step is the current one."""
    session.plan(ask.steps)
    return _plan(session)


@operation("POST", "/sessions/{session}/plan/advance")
def advance(session: Session, ask: Advance) -> Plan:
    """On to the next step, or to one by its number."""
    session.advance(ask.to)
    return _plan(session)


@operation("GET", "/sessions/{session}/decisions")
def decisions(view: SessionReader, ask: Paged) -> Page[Decision]:
    """What was decided, with the reason and the roads not taken."""
    return paginate(view.decisions(), ask, lambda one: one.id)


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
    """The mental state for whoever goes on: as Markdown, and as data."""
    return view.briefing(ask.tokens)


class AskContext(OperationRequest, frozen=True):
    """`query` is what it is for: what is remembered of it comes last."""

    query: str = ""
    tokens: Tokens = 8000


@operation("GET", "/sessions/{session}/context")
def context(view: SessionReader, ask: AskContext) -> ModelContext:
    """The summary and the newest messages that fit, for a model to go on with."""
    return view.context(ask.query, ask.tokens)


class AskShaped(AskContext, frozen=True):
    """`form`: chat, as chat completions take it; parts: rules apart, content in parts."""

    form: Literal["chat", "parts"] = "chat"


class Shaped(msgspec.Struct, frozen=True):
    """`given` is a list of messages (chat), or an object (parts)."""

    given: Any


@operation("GET", "/sessions/{session}/context/shaped")
def shaped_context(view: SessionReader, ask: AskShaped) -> Shaped:
    """The context for a query, in the shape that a model API takes."""
    found = view.context(ask.query, ask.tokens)
    return Shaped(found.chat() if ask.form == "chat" else found.parts())


class AskWorking(OperationRequest, frozen=True):
    messages: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


@operation("GET", "/sessions/{session}/working")
def working(view: SessionReader, ask: AskWorking) -> WorkingMemory:
    """What an agent has at hand: goal, plan, notes, open questions and effects, last messages."""
    return view.working(ask.messages)
