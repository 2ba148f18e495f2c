"""The session pool, session names and thread helper that the ADK services share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations._shared.lentkeeper import require_hub
from ortet.integrations._shared.session_pool import AdapterSessionPool, session_name
from ortet.integrations._shared.whole import to_thread_shielded

T = TypeVar("T")

_POOLS_ATTRIBUTE = "lent_to_adk"
_LEASE_TIMEOUT_SECONDS = 20.0
"""Seconds to wait for another process. A late write is reported by ADK as a stale session."""


def get_adk_session_pool(hub: Hub, agent: str) -> AdapterSessionPool:
    """Return the session pool of this hub and agent.

    All services of a hub share it: with separate pools they would have to request sessions from
    each other.
    """
    shared: dict[str, AdapterSessionPool] = vars(require_hub(hub)).setdefault(_POOLS_ATTRIBUTE, {})
    if agent not in shared:
        shared[agent] = AdapterSessionPool(hub, agent=agent, lease_timeout=_LEASE_TIMEOUT_SECONDS)
    return shared[agent]


def close_session_pool(hub: Hub, pool: AdapterSessionPool) -> None:
    """Close the pool for all services of a hub. A service made later gets a new pool."""
    shared: dict[str, AdapterSessionPool] = vars(hub).get(_POOLS_ATTRIBUTE, {})
    if shared.get(pool.agent) is pool:
        del shared[pool.agent]
    pool.close()


def adk_session_name(app: str, user: str, *session: str) -> str:
    """Return the session name of a conversation, or without `session`, of the user's own data."""
    for what, id_ in zip(
        ("app_name", "user_id", "session_id"), (app, user, *session), strict=False
    ):
        if not isinstance(id_, str) or not id_ or not _is_text(id_):
            raise _bad_id(what, id_)
    return session_name(app, user, *session)


def strip_session_id(session_id: object) -> str:
    """Strip the session id, as ADK's own services do."""
    if not isinstance(session_id, str):
        raise _bad_id("session_id", session_id)
    return session_id.strip()


def _bad_id(field: str, id_: object) -> Invalid:
    return Invalid("bad_id", f"{field}={id_!r}: give some text")


async def run_in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await to_thread_shielded(function, *args, **kwargs)


def _is_text(id_: str) -> bool:
    try:
        id_.encode()
    except UnicodeEncodeError:
        return False
    return True
