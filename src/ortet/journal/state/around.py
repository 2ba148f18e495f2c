"""What a mind knows of the world around it: work with others, rate limits, tokens, a browser; what
events do to that, and how a briefing tells it. Secrets are named here, never held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.journal.conversation.text import clip, one_line
from ortet.journal.state.records import Thing

if TYPE_CHECKING:
    from ortet.journal.events import Event
    from ortet.journal.state.state import Mind

DRAFT, DONE, WITHDRAWN = "draft", "done", "withdrawn"
_FIELDS = ("kind", "link", "status", "text", "effect")
_LONG, _SHORT = 400, 160


class Collaboration(Thing, frozen=True):
    """What others see, or are about to: a branch, a pull request, a comment half written.

    `status`: draft, done, withdrawn. `effect` is the action that made it.
    """

    name: str
    kind: str = ""
    link: str = ""
    status: str = DRAFT
    text: str = ""
    effect: str = ""
    seq: int = 0
    time: int = 0


class Window(Thing, frozen=True):
    """How many calls a service still takes until `reset` (ns since 1970). `full`: that time has
    come, so it takes `limit` again, or a number that is not known (None)."""

    service: str
    remaining: float | None = None
    reset: int = 0
    limit: float | None = None
    full: bool = False
    seq: int = 0
    time: int = 0


class Token(Thing, frozen=True):
    """Which entry of the vault lets one into a service."""

    service: str
    vault: str
    seq: int = 0
    time: int = 0


class Browsing(Thing, frozen=True):
    """What a browser had open. `storage` names the entry of the vault that holds its cookies and
    local storage, "" for none."""

    urls: list[str] = []
    storage: str = ""
    seq: int = 0
    time: int = 0


BROWSER = "browser"
"""The one key of the table of browsers."""


def updated(old: Collaboration | None, data: dict[str, Any], seq: int, time: int) -> Collaboration:
    """A record after an event; what the event does not say stays."""
    given = {field: data[field] for field in _FIELDS if field in data}
    known = old or Collaboration(data["name"])
    return msgspec.structs.replace(known, **given, seq=seq, time=time)


def _collaboration(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    old = mind.collaborations.get(data["name"])
    mind.collaborations.set(data["name"], updated(old, data, event.seq, event.time))


def _window(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    window = Window(
        service=data["service"],
        remaining=data["remaining"],
        reset=data["reset"],
        limit=data.get("limit"),
        seq=event.seq,
        time=event.time,
    )
    mind.windows.set(window.service, window)


def _token(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    token = Token(data["service"], data["vault"], event.seq, event.time)
    mind.tokens.set(token.service, token)


def _browser(mind: Mind, event: Event, data: dict[str, Any]) -> None:
    known = mind.browsers.get(BROWSER) or Browsing()
    given = {field: data[field] for field in ("urls", "storage") if field in data}
    mind.browsers.set(
        BROWSER, msgspec.structs.replace(known, **given, seq=event.seq, time=event.time)
    )


FOLDS: dict[str, Callable[[Mind, Event, dict[str, Any]], None]] = {
    "collaboration": _collaboration,
    "window": _window,
    "token": _token,
    "browser": _browser,
}
"""Kinds of events, and what each does to a mind."""


def told(
    collaborations: Iterable[Collaboration], windows: Iterable[Window], tokens: Iterable[Token]
) -> list[tuple[str, dict[str, Any]]]:
    """The events that make another mind know it."""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in collaborations:
        fields = {field: getattr(one, field) for field in ("name", *_FIELDS)}
        found.append(("collaboration", {key: value for key, value in fields.items() if value}))
    for window in windows:
        data = {"service": window.service, "remaining": window.remaining, "reset": window.reset}
        found.append(("window", data if window.limit is None else {**data, "limit": window.limit}))
    found += [("token", {"service": one.service, "vault": one.vault}) for one in tokens]
    return found


# in a briefing: as a line, and as data


def tell_collaboration(one: Collaboration) -> tuple[str, Any]:
    kind = f" ({one.kind})" if one.kind else ""
    link = f", {one_line(one.link, _SHORT)}" if one.link else ""
    text = f": {one_line(one.text, _LONG)}" if one.text else ""
    data = {"name": one.name, "kind": one.kind, "status": one.status, "link": one.link}
    data |= {"text": clip(one.text, _LONG), "effect": one.effect}
    return f"[{one.status}] {one_line(one.name, _SHORT)}{kind}{link}{text}", data


def tell_window(window: Window) -> tuple[str, Any]:
    of = f" of {window.limit:g}" if window.limit is not None else ""
    until = datetime.fromtimestamp(window.reset / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data = {"service": window.service, "remaining": window.remaining, "limit": window.limit}
    line = f"{one_line(window.service, _SHORT)}: {window.remaining:g}{of} left until {until}"
    return line, {**data, "reset": window.reset}


def tell_token(token: Token) -> tuple[str, Any]:
    data = {"service": token.service, "vault": token.vault}
    return f"{one_line(token.service, _SHORT)}: in the vault as {token.vault}", data


def tell_browser(browsing: Browsing) -> tuple[str, Any]:
    urls = [clip(url, _SHORT) for url in browsing.urls[:20]]
    kept = "cookies and storage are kept" if browsing.storage else "no cookies are kept"
    open_ = f"open: {one_line(', '.join(urls), _LONG)}" if urls else "nothing open"
    return f"{open_}; {kept}", {"urls": urls, "storage": bool(browsing.storage)}
