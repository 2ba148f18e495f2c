"""Turns of a conversation: new messages are recorded, and the context for the model is returned.
The state is in the store or in a carry token of the client, so any server of the store can answer.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ortet.errors import Invalid
from ortet.history.commits import CommitInfo
from ortet.journal.conversation.context import ModelContext
from ortet.journal.reports.briefing import Briefing
from ortet.server.auth.tokens import Caller
from ortet.server.operations.conversation import Say, as_message
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Agent, Name
from ortet.server.schemas import (
    EventInfo,
    OperationRequest,
    check_agent_visible,
    event_of,
    recorded_event_info,
)
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.portable.carry_token import CarryRecord, check_fresh, read_carry
from ortet.sessions.session import Session
from ortet.sessions.writing.idempotent_turns import is_key_used


class TurnRequest(OperationRequest, frozen=True):
    """The messages of the turn in order, which are recorded all or none. `context` and `briefing`:
    the number of tokens of each in the answer, 0 for none. `query`: the question that the context
    is for. `commit`: commit the session after the messages.
    """

    messages: Annotated[list[Say], msgspec.Meta(min_length=1, max_length=1000)]
    query: str = ""
    context: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 8000
    briefing: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    commit: bool = True


class Turned(msgspec.Struct, frozen=True):
    """`again`: the same turn was recorded before under the same key, and was not recorded again.
    `head`: the newest commit.
    """

    session: str
    name: str
    again: bool
    events: list[EventInfo]
    context: ModelContext | None
    briefing: Briefing | None
    head: CommitInfo | None


class CarriedTurn(TurnRequest, frozen=True):
    """`carry`: the carry token of the previous turn. Without it, the session with this name
    (`session`) and `agent` is opened, or begun with the `goal`.
    """

    carry: str | None = None
    session: Name | None = None
    agent: Agent = "default"
    goal: str = ""


class CarriedOn(Turned, frozen=True):
    """`carry`: the carry token for the next turn."""

    carry: str


def _turn(session: Session, ask: TurnRequest, key: str) -> Turned:
    messages = [as_message(one) for one in ask.messages]
    before = session.internals.event_log.tip().seq
    events = session.say_all(messages, key=key)
    again = events[0].seq <= before
    if ask.commit:
        session.commit("turn")
    return Turned(
        session=session.id,
        name=session.name,
        again=again,
        events=[event_of(one) if again else recorded_event_info(session, one) for one in events],
        context=session.context(ask.query, ask.context) if ask.context else None,
        briefing=session.briefing(ask.briefing) if ask.briefing else None,
        head=session.head,
    )


@operation("POST", "/sessions/{session}/turns", status=201)
def take_turn(session: Session, ask: TurnRequest, key: str) -> Turned:
    """Record a turn of a session that the servers store. With an Idempotency-Key the turn is
    recorded once, even if a server was killed during the request: repeat the request to any server.
    """
    return _turn(session, ask, key)


@operation("POST", "/turn", status=201, filtered=True)
def turn(pool: SessionPool, ask: CarriedTurn, caller: Caller, key: str) -> CarriedOn:
    """Record a turn of a session whose state the client carries. The same request again gets an
    answer but is recorded once. A request with a carry token that is not the newest is a conflict.
    """
    if ask.carry is None:
        if ask.session is None:
            raise Invalid("bad_request", "no session is given: give its name, or a carry token")
        name, agent = ask.session, check_agent_visible(caller, ask.agent)
        goal = ask.goal
        with pool.open_by_name(
            agent, name, lambda hub: hub.session(name, agent=agent, goal=goal), reopen=False
        ) as session:
            return _record_carried_turn(session, ask, key)
    if ask.session is not None or ask.goal:
        raise Invalid(
            "bad_request", "the carry token names the session: leave session and agent out"
        )
    with pool.hub() as hub:
        held = read_carry(hub.internals.session_manager.store, ask.carry)
    with pool.open_session(pool.row(held.session, caller.sees)) as session:
        try:
            # A position can be continued once, so its hash is the idempotency key.
            return _record_carried_turn(session, ask, key or f"carried-{held.hash.hex()}", held)
        except Invalid as error:
            if error.kind == "key_reused" and not key:
                check_fresh(
                    session.internals.context, held
                )  # another turn was continued from the same position
            raise


def _record_carried_turn(
    session: Session, ask: CarriedTurn, key: str, carried: CarryRecord | None = None
) -> CarriedOn:
    if carried is not None and not is_key_used(session.internals.context, key):
        check_fresh(session.internals.context, carried)
    done = _turn(session, ask, key)
    return CarriedOn(**msgspec.structs.asdict(done), carry=session.carry())
