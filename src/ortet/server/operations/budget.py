"""The budget of a session, the bill, and calls of models with their cost."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from ortet.errors import Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.journal.events import Event
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Amount
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    EventInfo,
    Number,
    OperationRequest,
    When,
    parse_time,
    recorded_event_info,
)
from ortet.sessions.actions.accounting import ModelCall
from ortet.sessions.actions.artifacts import StoredContent
from ortet.sessions.actions.bill import Bill, GroupBy, bill
from ortet.sessions.actions.budget import levels
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

_Amount = TypeVar("_Amount", float, float | None)
Counter = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class BudgetInfo(msgspec.Struct, frozen=True):
    """Amounts by counter, for the whole family of the session. `limits`: the hard limits. `soft`:
    the limits that cause a warning. `spent`: the amount that was spent. `left`: the amount that is
    left, here or in the budget of the session that this session works for.
    """

    limits: dict[str, float]
    soft: dict[str, float]
    spent: dict[str, float]
    left: dict[str, float]


def _counters(amounts: dict[str, _Amount]) -> dict[str, _Amount]:
    """Return the amounts, or raise Invalid if a counter has the name of a parameter of the verb."""
    taken = sorted({"self", "soft", "model"} & amounts.keys())
    if taken:
        raise Invalid("bad_budget", f"{taken[0]!r} cannot be a counter: give it another name")
    return amounts


def _budget(view: SessionReader) -> BudgetInfo:
    account = levels(view.internals.store.catalog, view.internals.row)[0].account
    return BudgetInfo(
        view.accounting.limits(),
        account.soft,
        view.accounting.spent(),
        view.accounting.budget_left(),
    )


@operation("GET", "/sessions/{session}/budget")
def show_budget(view: SessionReader) -> BudgetInfo:
    """Show the limits of a session and the amounts that were spent. A restore refunds nothing."""
    return _budget(view)


class SetBudget(OperationRequest, frozen=True):
    """A null removes a limit. Limits that are not given stay. If a hard limit is exceeded, the
    session is paused. If a `soft` limit is exceeded, a warning is recorded once.
    """

    limits: dict[Counter, Amount | None] = {}
    soft: dict[Counter, Amount | None] = {}


@operation("PUT", "/sessions/{session}/budget")
def budget(session: Session, ask: SetBudget) -> BudgetInfo:
    """Set the limits of a session and its forks."""
    session.budget(soft=ask.soft, **_counters(ask.limits))
    return _budget(session)


class Spend(OperationRequest, frozen=True):
    """The amounts by counter, such as {"tokens": 1200, "usd": 0.01}. A counter can have any
    name.
    """

    amounts: Annotated[dict[Counter, Amount], msgspec.Meta(min_length=1, max_length=100)]
    model: str = ""


class Spent(msgspec.Struct, frozen=True):
    """The amounts were recorded in any case. `stopped`: a hard limit was exceeded, so the session
    is paused until a limit is raised.
    """

    event: EventInfo
    left: dict[str, float]
    stopped: str | None = None


@operation("POST", "/sessions/{session}/spend", status=201)
def spend(session: Session, ask: Spend) -> Spent:
    """Record that a part of the budget was spent."""
    before, stopped = session.internals.event_log.tip().seq, None
    try:
        event = session.spend(model=ask.model, **_counters(ask.amounts))
    except Refused as error:
        event, stopped = _find_recorded_event(session, before, "spend", error), str(error)
    return Spent(recorded_event_info(session, event), session.accounting.budget_left(), stopped)


def _find_recorded_event(session: Session, after: int, kind: str, error: Refused) -> Event:
    """Return the event that was recorded although the budget was exceeded, else raise the error."""
    if error.kind == "budget_spent":
        for event in session.events(after):
            if event.kind == kind:
                return event
    raise error


class CallModel(OperationRequest, frozen=True):
    """A call of a model that the client made. Each number in `usage` is spent. If `usage` has only
    parts of the tokens, their sum is spent as `tokens`. `request` and `response`: text or any JSON,
    stored as objects.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    provider: str = ""
    params: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    request: Any = None
    response: Any = None


@operation("POST", "/sessions/{session}/model-calls", status=201)
def model_call(session: Session, ask: CallModel) -> Spent:
    """Record a call of a model, and spend its usage."""
    before, stopped = session.internals.event_log.tip().seq, None
    fields = (ask.provider, ask.model, ask.params, ask.usage, ask.request, ask.response)
    try:
        event = session.accounting.model_call(*fields)
    except Refused as error:
        event, stopped = _find_recorded_event(session, before, "model", error), str(error)
    return Spent(recorded_event_info(session, event), session.accounting.budget_left(), stopped)


class ListCalls(Paged, frozen=True):
    model: str | None = None
    provider: str | None = None


@operation("GET", "/sessions/{session}/model-calls")
def model_calls(view: SessionReader, ask: ListCalls) -> Page[ModelCall]:
    """List calls of models in order. A request or response is shown by its size and hash."""
    calls = [
        one
        for one in view.accounting.model_calls()
        if ask.model in (None, one.model) and ask.provider in (None, one.provider)
    ]
    return paginate(calls, ask, lambda one: one.seq)


class OneCall(OperationRequest, frozen=True):
    seq: Number


class WholeCall(msgspec.Struct, frozen=True):
    """A call of a model, with its request and response as text. They are null if they were not
    stored.
    """

    call: ModelCall
    request: str | None
    response: str | None


@operation("GET", "/sessions/{session}/model-calls/{seq:int}")
def show_model_call(view: SessionReader, ask: OneCall) -> WholeCall:
    """Show a call of a model by the number of its event, with its request and response."""
    call = next((one for one in view.accounting.model_calls() if one.seq == ask.seq), None)
    if call is None:
        raise NotFound("no_call", f"event {ask.seq} is no call of a model: list them")
    return WholeCall(call, _text(view, call.request), _text(view, call.response))


def _text(view: SessionReader, content: StoredContent) -> str | None:
    if not content.oid and not content.size:
        return None
    return view.accounting.content(content).decode("utf-8", "replace")


class AskBill(OperationRequest, frozen=True):
    """`by`: group the amounts by session, agent, model or day."""

    since: When | None = None
    by: GroupBy = "session"


class Bills(msgspec.Struct, frozen=True):
    items: list[Bill]


@operation("GET", "/bill", filtered=True)
def show_bill(hub: Hub, ask: AskBill, caller: Caller) -> Bills:
    """Show the amounts that were spent by the agents that the token may see. The bill includes
    sessions that were removed.
    """
    since = parse_time(hub, "since", ask.since)
    return Bills(bill(hub.catalog, since, ask.by, sees=caller.sees))
