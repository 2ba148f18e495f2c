"""External state of a session: collaborations, rate limits, tokens and a browser.

This module holds the records, their reducers and their lines in a briefing. Secrets are named here
and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.journal.conversation.text import clip, one_line
from ortet.journal.state.records import StateRecord

if TYPE_CHECKING:
    from ortet.journal.events import Event
    from ortet.journal.state.state import SessionState

DRAFT, DONE, WITHDRAWN = "draft", "done", "withdrawn"
_FIELDS = ("kind", "link", "status", "text", "effect")
_LONG_CHARS, _SHORT_CHARS = 400, 160


class Collaboration(StateRecord, frozen=True):
    """Something that others see or will see: a branch, a pull request, a draft comment.

    `status` is "draft", "done" or "withdrawn". `effect` is the id of the action that made it.
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
    """Rate limit of a service: calls that remain until `reset` (ns since 1970).

    `full` means that the reset time has passed. The service then accepts `limit` calls again; None
    means that the number is unknown.
    """

    service: str
    remaining: float | None = None
    reset: int = 0
    limit: float | None = None
    full: bool = False
    seq: int = 0
    time: int = 0


class ServiceToken(StateRecord, frozen=True):
    """Name of the vault entry with the credentials of a service."""

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
    given = {field: data[field] for field in _FIELDS if field in data}
    known = old or Collaboration(data["name"])
    return msgspec.structs.replace(known, **given, seq=seq, time=time)


def _fold_collaboration(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    old = state.collaborations.get(data["name"])
    state.collaborations.set(data["name"], update_collaboration(old, data, event.seq, event.time))


def _fold_window(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    window = RateLimitWindow(
        service=data["service"],
        remaining=data["remaining"],
        reset=data["reset"],
        limit=data.get("limit"),
        seq=event.seq,
        time=event.time,
    )
    state.windows.set(window.service, window)


def _fold_token(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    token = ServiceToken(data["service"], data["vault"], event.seq, event.time)
    state.tokens.set(token.service, token)


def _fold_browser(state: SessionState, event: Event, data: dict[str, Any]) -> None:
    known = state.browsers.get(BROWSER) or BrowserState()
    given = {field: data[field] for field in ("urls", "storage") if field in data}
    state.browsers.set(
        BROWSER, msgspec.structs.replace(known, **given, seq=event.seq, time=event.time)
    )


EXTERNAL_STATE_REDUCERS: dict[str, Callable[[SessionState, Event, dict[str, Any]], None]] = {
    "collaboration": _fold_collaboration,
    "window": _fold_window,
    "token": _fold_token,
    "browser": _fold_browser,
}
"""Reducers of external state by event kind."""


def external_state_events(
    collaborations: Iterable[Collaboration],
    windows: Iterable[RateLimitWindow],
    tokens: Iterable[ServiceToken],
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that give another session the same external state."""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in collaborations:
        fields = {field: getattr(one, field) for field in ("name", *_FIELDS)}
        found.append(("collaboration", {key: value for key, value in fields.items() if value}))
    for window in windows:
        data = {"service": window.service, "remaining": window.remaining, "reset": window.reset}
        found.append(("window", data if window.limit is None else {**data, "limit": window.limit}))
    found += [("token", {"service": one.service, "vault": one.vault}) for one in tokens]
    return found


# lines of a briefing, as text and as data


def describe_collaboration(collaboration: Collaboration) -> tuple[str, Any]:
    kind = f" ({collaboration.kind})" if collaboration.kind else ""
    link = f", {one_line(collaboration.link, _SHORT_CHARS)}" if collaboration.link else ""
    text = f": {one_line(collaboration.text, _LONG_CHARS)}" if collaboration.text else ""
    data = {
        "name": collaboration.name,
        "kind": collaboration.kind,
        "status": collaboration.status,
        "link": collaboration.link,
    }
    data |= {"text": clip(collaboration.text, _LONG_CHARS), "effect": collaboration.effect}
    return (
        f"[{collaboration.status}] {one_line(collaboration.name, _SHORT_CHARS)}{kind}{link}{text}",
        data,
    )


def describe_window(window: RateLimitWindow) -> tuple[str, Any]:
    of = f" of {window.limit:g}" if window.limit is not None else ""
    until = datetime.fromtimestamp(window.reset / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data = {"service": window.service, "remaining": window.remaining, "limit": window.limit}
    line = f"{one_line(window.service, _SHORT_CHARS)}: {window.remaining:g}{of} left until {until}"
    return line, {**data, "reset": window.reset}


def describe_token(token: ServiceToken) -> tuple[str, Any]:
    data = {"service": token.service, "vault": token.vault}
    return f"{one_line(token.service, _SHORT_CHARS)}: in the vault as {token.vault}", data


def describe_browser(browser: BrowserState) -> tuple[str, Any]:
    urls = [clip(url, _SHORT_CHARS) for url in browser.urls[:20]]
    kept = "cookies and storage are kept" if browser.storage else "no cookies are kept"
    open_ = f"open: {one_line(', '.join(urls), _LONG_CHARS)}" if urls else "nothing open"
    return f"{open_}; {kept}", {"urls": urls, "storage": bool(browser.storage)}
