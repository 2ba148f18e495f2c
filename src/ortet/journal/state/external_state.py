"""External state of a session: collaborations, rate limits, tokens and a browser.

Secrets are named here and never stored. `kinds.external_state` has the events that make these
records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ortet.journal.state.records import StateRecord

DRAFT, DONE, WITHDRAWN = "draft", "done", "withdrawn"
_FIELDS = ("kind", "link", "status", "text", "effect")


class Collaboration(StateRecord, frozen=True):
    """Something that others see or will see: a branch, a pull request, a draft comment.

    Attributes:
        name: Name of the collaboration.
        kind: What it is, for example "pull_request".
        link: Address of it.
        status: "draft", "done" or "withdrawn".
        text: Its text.
        effect: Id of the action that made it.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    name: str
    kind: str = ""
    link: str = ""
    status: str = DRAFT
    text: str = ""
    effect: str = ""
    seq: int = 0
    time: int = 0


class RateLimitWindow(StateRecord, frozen=True):
    """Rate limit of a service.

    Attributes:
        service: Name of the service.
        remaining: Calls that remain until `reset`, or None if the number is unknown.
        reset: When the limit is reset, in ns since 1970.
        limit: Calls that the service accepts after a reset, or None if the number is unknown.
        full: True if the reset time has passed, so that `limit` calls are accepted again.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    service: str
    remaining: float | None = None
    reset: int = 0
    limit: float | None = None
    full: bool = False
    seq: int = 0
    time: int = 0


class ServiceToken(StateRecord, frozen=True):
    """Name of the vault entry with the credentials of a service.

    Attributes:
        service: Name of the service.
        vault: Name of the vault entry.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    service: str
    vault: str
    seq: int = 0
    time: int = 0


class BrowserState(StateRecord, frozen=True):
    """Pages that a browser had open.

    `storage` is the vault entry with its cookies and local storage, or "".
    """

    urls: list[str] = []
    storage: str = ""
    seq: int = 0
    time: int = 0


BROWSER = "browser"
"""The only key of the browser table."""


def update_collaboration(
    old: Collaboration | None, data: dict[str, Any], seq: int, time: int
) -> Collaboration:
    """Return the record after an event. Fields that the event does not have stay."""
    changes = {field: data[field] for field in _FIELDS if field in data}
    collaboration = old or Collaboration(data["name"])
    return msgspec.structs.replace(collaboration, **changes, seq=seq, time=time)


def external_state_events(
    collaborations: Iterable[Collaboration],
    windows: Iterable[RateLimitWindow],
    tokens: Iterable[ServiceToken],
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that give another session the same external state."""
    events: list[tuple[str, dict[str, Any]]] = []
    for collaboration in collaborations:
        fields = {field: getattr(collaboration, field) for field in ("name", *_FIELDS)}
        events.append(("collaboration", {key: value for key, value in fields.items() if value}))
    for window in windows:
        data = {"service": window.service, "remaining": window.remaining, "reset": window.reset}
        events.append(("window", data if window.limit is None else {**data, "limit": window.limit}))
    events += [("token", {"service": token.service, "vault": token.vault}) for token in tokens]
    return events
