"""What the services of one hub share: the sessions that are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations._shared.lentkeeper import opened
from ortet.integrations._shared.session_pool import Lent, session_name
from ortet.integrations._shared.whole import whole

T = TypeVar("T")

_SHARED = "lent_to_adk"
_PATIENCE = 20.0
"""Seconds to wait for another process: ADK itself tells who came too late, by a stale session."""


def lent_by(hub: Hub, agent: str) -> Lent:
    """One for all services of a hub: each with its own would have to ask the others for a session
    that they work on together."""
    shared: dict[str, Lent] = vars(opened(hub)).setdefault(_SHARED, {})
    if agent not in shared:
        shared[agent] = Lent(hub, agent=agent, patience=_PATIENCE)
    return shared[agent]


def let_go(hub: Hub, lent: Lent) -> None:
    """Of all services of a hub; one that is made later begins anew."""
    shared: dict[str, Lent] = vars(hub).get(_SHARED, {})
    if shared.get(lent.agent) is lent:
        del shared[lent.agent]
    lent.close()


def name_of(app: str, user: str, *session: str) -> str:
    """Of the session that a conversation is, or without one, of what a user keeps between them."""
    for what, id_ in zip(
        ("app_name", "user_id", "session_id"), (app, user, *session), strict=False
    ):
        if not isinstance(id_, str) or not id_ or not _is_text(id_):
            raise _bad_id(what, id_)
    return session_name(app, user, *session)


def stripped(session_id: object) -> str:
    """As ADK's own services take it."""
    if not isinstance(session_id, str):
        raise _bad_id("session_id", session_id)
    return session_id.strip()


def _bad_id(what: str, id_: object) -> Invalid:
    return Invalid("bad_id", f"{what}={id_!r}: give some text")


async def in_thread(function: Callable[..., T], *args: Any, **given: Any) -> T:
    return await whole(function, *args, **given)


def _is_text(id_: str) -> bool:
    try:
        id_.encode()
    except UnicodeEncodeError:
        return False
    return True
