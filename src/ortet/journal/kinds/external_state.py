"""Event kinds of external state: collaborations, rate limits, tokens and a browser."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ortet.journal.conversation.text import clip, one_line
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import (
    LONG_CHARS,
    SHORT_CHARS,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
)
from ortet.journal.state.records import (
    BROWSER,
    BrowserState,
    Collaboration,
    RateLimitWindow,
    ServiceToken,
    update_collaboration,
)
from ortet.journal.state.state import SessionState

# reducers


def _fold_collaboration(state: SessionState, event: Event, data: EventData) -> None:
    old = state.collaborations.get(data["name"])
    state.collaborations.set(data["name"], update_collaboration(old, data, event.seq, event.time))


def _fold_window(state: SessionState, event: Event, data: EventData) -> None:
    window = RateLimitWindow(
        service=data["service"],
        remaining=data["remaining"],
        reset=data["reset"],
        limit=data.get("limit"),
        seq=event.seq,
        time=event.time,
    )
    state.windows.set(window.service, window)


def _fold_token(state: SessionState, event: Event, data: EventData) -> None:
    token = ServiceToken(data["service"], data["vault"], event.seq, event.time)
    state.tokens.set(token.service, token)


def _fold_browser(state: SessionState, event: Event, data: EventData) -> None:
    browser = state.browsers.get(BROWSER) or BrowserState()
    changes = {field: data[field] for field in ("urls", "storage") if field in data}
    state.browsers.set(
        BROWSER, msgspec.structs.replace(browser, **changes, seq=event.seq, time=event.time)
    )


# lines


def _collaboration_line(data: EventData) -> str:
    fields = [data.get(field, "") for field in ("name", "kind", "status", "link", "text")]
    return " ".join(filter(None, fields))


def _window_line(data: EventData) -> str:
    return f"{data.get('service', '')}: {data.get('remaining', 0):g} left"


def _token_line(data: EventData) -> str:
    return f"{data.get('service', '')}: {data.get('vault', '')} of the vault"


def _browser_line(data: EventData) -> str:
    return " ".join(data.get("urls", []))


# briefing


def _collaborations(items: BriefingItems) -> Sequence[Collaboration]:
    return items.collaborations


def describe_collaboration(collaboration: Collaboration) -> tuple[str, Any]:
    """Return a collaboration as a line of a briefing and as data."""
    kind = f" ({collaboration.kind})" if collaboration.kind else ""
    link = f", {one_line(collaboration.link, SHORT_CHARS)}" if collaboration.link else ""
    text = f": {one_line(collaboration.text, LONG_CHARS)}" if collaboration.text else ""
    data = {
        "name": collaboration.name,
        "kind": collaboration.kind,
        "status": collaboration.status,
        "link": collaboration.link,
    }
    data |= {"text": clip(collaboration.text, LONG_CHARS), "effect": collaboration.effect}
    return (
        f"[{collaboration.status}] {one_line(collaboration.name, SHORT_CHARS)}{kind}{link}{text}",
        data,
    )


def _windows(items: BriefingItems) -> Sequence[RateLimitWindow]:
    return items.windows


def describe_window(window: RateLimitWindow) -> tuple[str, Any]:
    """Return a rate limit as a line of a briefing and as data."""
    limit = f" of {window.limit:g}" if window.limit is not None else ""
    until = datetime.fromtimestamp(window.reset / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    data = {"service": window.service, "remaining": window.remaining, "limit": window.limit}
    rest = f"{window.remaining:g}{limit} left until {until}"
    return f"{one_line(window.service, SHORT_CHARS)}: {rest}", {**data, "reset": window.reset}


def _tokens(items: BriefingItems) -> Sequence[ServiceToken]:
    return items.tokens


def describe_token(token: ServiceToken) -> tuple[str, Any]:
    """Return the name of credentials as a line of a briefing and as data."""
    data = {"service": token.service, "vault": token.vault}
    return f"{one_line(token.service, SHORT_CHARS)}: in the vault as {token.vault}", data


def _browsers(items: BriefingItems) -> Sequence[BrowserState]:
    return list(items.state.browsers)


def describe_browser(browser: BrowserState) -> tuple[str, Any]:
    """Return the pages of a browser as a line of a briefing and as data."""
    urls = [clip(url, SHORT_CHARS) for url in browser.urls[:20]]
    storage = "cookies and storage are kept" if browser.storage else "no cookies are kept"
    pages = f"open: {one_line(', '.join(urls), LONG_CHARS)}" if urls else "nothing open"
    return f"{pages}; {storage}", {"urls": urls, "storage": bool(browser.storage)}


KINDS = (
    EventKind(
        name="collaboration",
        reducer=_fold_collaboration,
        line=_collaboration_line,
        briefing=(
            BriefingSectionSpec(
                40, "collaborations", "With others", 65, _collaborations, describe_collaboration
            ),
        ),
    ),
    EventKind(
        name="window",
        reducer=_fold_window,
        replay="skipped",
        line=_window_line,
        briefing=(
            BriefingSectionSpec(130, "windows", "Rate limits", 22, _windows, describe_window),
        ),
    ),
    EventKind(
        name="token",
        reducer=_fold_token,
        line=_token_line,
        briefing=(BriefingSectionSpec(150, "tokens", "Tokens", 12, _tokens, describe_token),),
    ),
    EventKind(
        name="browser",
        reducer=_fold_browser,
        replay="skipped",
        line=_browser_line,
        briefing=(BriefingSectionSpec(140, "browser", "Browser", 14, _browsers, describe_browser),),
    ),
)
