"""Plan and decisions; and what a model, or whoever goes on, is given of a mind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.journal.conversation.context import Context
from ortet.journal.reports.briefing import Briefing
from ortet.journal.state.records import Decision
from ortet.memory.working import Working
from ortet.server.operations.registry import operation
from ortet.server.paging import Page, Paged, page_of
from ortet.server.schemas import Ask, Made, Number, Words
from ortet.sessions.reader import View
from ortet.sessions.session import Session

Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Plan(msgspec.Struct, frozen=True):
    """`step` is the number of the current one, from 0; as many as there are: all are done."""

    goal: str
    plan: list[str]
    step: int


class Steps(Ask, frozen=True):
    steps: Annotated[list[Words], msgspec.Meta(max_length=1000)]


class Advance(Ask, frozen=True):
    """`to` a step by its number from 0; else to the next."""

    to: Number | None = None


def _plan(view: View) -> Plan:
    return Plan(view.goal, view.steps, view.step)


@operation("GET", "/sessions/{session}/plan")
def show_plan(view: View) -> Plan:
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
def decisions(view: View, ask: Paged) -> Page[Decision]:
    """What was decided, with the reason and the roads not taken."""
    return page_of(view.decisions(), ask, lambda one: one.id)


class Decide(Ask, frozen=True):
    text: Words
    why: str = ""
    instead_of: list[str] = []


@operation("POST", "/sessions/{session}/decisions", status=201)
def decide(session: Session, ask: Decide) -> Made:
    """Record a decision."""
    return Made(session.decide(ask.text, why=ask.why, instead_of=ask.instead_of))


class Brief(Ask, frozen=True):
    tokens: Tokens = 2000


@operation("GET", "/sessions/{session}/briefing")
def briefing(view: View, ask: Brief) -> Briefing:
    """The mental state for whoever goes on: as Markdown, and as data."""
    return view.briefing(ask.tokens)


class AskContext(Ask, frozen=True):
    """`query` is what it is for: what is remembered of it comes last."""

    query: str = ""
    tokens: Tokens = 8000


@operation("GET", "/sessions/{session}/context")
def context(view: View, ask: AskContext) -> Context:
    """The summary and the newest messages that fit, for a model to go on with."""
    return view.context(ask.query, ask.tokens)


class AskShaped(AskContext, frozen=True):
    """`form`: chat, as chat completions take it; parts: rules apart, content in parts."""

    form: Literal["chat", "parts"] = "chat"


class Shaped(msgspec.Struct, frozen=True):
    """`given` is a list of messages (chat), or an object (parts)."""

    given: Any


@operation("GET", "/sessions/{session}/context/shaped")
def shaped_context(view: View, ask: AskShaped) -> Shaped:
    """The same in the shape that a model API takes."""
    found = view.context(ask.query, ask.tokens)
    return Shaped(found.chat() if ask.form == "chat" else found.parts())


class AskWorking(Ask, frozen=True):
    messages: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


@operation("GET", "/sessions/{session}/working")
def working(view: View, ask: AskWorking) -> Working:
    """What an agent has at hand: goal, plan, notes, open questions and effects, last messages."""
    return view.working(ask.messages)
