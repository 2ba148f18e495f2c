"""The world around a session: its surroundings, work with others, rate limits, tokens by name,
what a browser had open, and what is handed to the next worker. Secrets are named, never told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.journal.environment import Environment, EnvironmentDifference
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.external_state import BROWSER, Collaboration, RateLimitWindow, ServiceToken
from ortet.server.operations.memory import Id
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import EventInfo, OperationRequest, Ref, recorded_event_info
from ortet.sessions.environment import handover as handovers
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

Label = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Calls = Annotated[float, msgspec.Meta(ge=0, le=1e14)]


class Surroundings(msgspec.Struct, frozen=True):
    """Null: nobody has looked."""

    environment: Environment | None


@operation("GET", "/sessions/{session}/environment")
def show_environment(view: SessionReader) -> Surroundings:
    """Packages, variables, hosts and repository as they were when somebody last looked. Variables
    that are secret are there by reference."""
    found = SessionReader.environment(view)  # recorded only: an open session would probe
    return Surroundings(found)


@operation("POST", "/sessions/{session}/environment", needs_host=True)
def environment(session: Session) -> Surroundings:
    """Look at what surrounds the workspace, on the server's host, and record what changed."""
    return Surroundings(session.environment())


class Compare(OperationRequest, frozen=True):
    """`to` a commit; else to the head."""

    to: Ref | None = None


class Differences(msgspec.Struct, frozen=True):
    items: list[EnvironmentDifference]


@operation("POST", "/sessions/{session}/environment/compare", needs_host=True)
def compare_environment(session: Session, ask: Compare) -> Differences:
    """How the surroundings now differ from those of a commit; nothing is recorded."""
    return Differences(session.environment(compare=ask.to or True))


@operation("GET", "/sessions/{session}/collaborations")
def list_collaborations(view: SessionReader, ask: Paged) -> Page[Collaboration]:
    """What others see, or will: branches, pull requests, comments half written."""
    return paginate(view.collaborations(), ask, lambda one: one.name)


class Collaborate(OperationRequest, frozen=True):
    """What is not given stays as it was. A draft until it is done or withdrawn, which is final;
    `effect` is the action that made it."""

    name: Label
    kind: str | None = None
    link: str | None = None
    status: Literal["draft", "done", "withdrawn"] | None = None
    text: str | None = None
    effect: Id | None = None


@operation("POST", "/sessions/{session}/collaborations", status=201)
def collaborate(session: Session, ask: Collaborate) -> Collaboration:
    """Record something that others see, or change what is recorded of it."""
    return session.collaborate(
        ask.name,
        kind=ask.kind,
        link=ask.link,
        status=ask.status,
        text=ask.text,
        effect=ask.effect,
    )


@operation("GET", "/sessions/{session}/windows")
def list_windows(view: SessionReader, ask: Paged) -> Page[RateLimitWindow]:
    """Rate limits by service, as its agent knows them now."""
    return paginate(view.windows(), ask, lambda one: one.service)


class SetWindow(OperationRequest, frozen=True):
    """How many calls a service still takes until `reset`, in seconds since 1970."""

    service: Label
    remaining: Calls
    reset: Annotated[float, msgspec.Meta(gt=0, lt=9e9)]
    limit: Calls | None = None


@operation("POST", "/sessions/{session}/windows", status=201)
def window(session: Session, ask: SetWindow) -> EventInfo:
    """Record what a service said of its limit; all sessions of the agent know it then."""
    event = session.window(ask.service, remaining=ask.remaining, reset=ask.reset, limit=ask.limit)
    return recorded_event_info(session, event)


@operation("GET", "/sessions/{session}/tokens")
def list_tokens(view: SessionReader, ask: Paged) -> Page[ServiceToken]:
    """Which entry of the vault is for which service: names, no values."""
    return paginate(view.tokens(), ask, lambda one: one.service)


class NameToken(OperationRequest, frozen=True):
    """`vault` is the name under which the vault has it."""

    service: Label
    vault: Label


@operation("POST", "/sessions/{session}/tokens", status=201)
def token(session: Session, ask: NameToken) -> EventInfo:
    """Say which entry of the vault lets one into a service."""
    return recorded_event_info(session, session.token(ask.service, ask.vault))


class BrowserInfo(msgspec.Struct, frozen=True):
    """`storage` is the name under which the vault has cookies and local storage, "" for none: the
    state itself is full of secrets, and not told."""

    urls: list[str]
    storage: str


def _browser(view: SessionReader) -> BrowserInfo:
    known = view.state.browsers.get(BROWSER)
    return BrowserInfo(known.urls, known.storage) if known else BrowserInfo([], "")


@operation("GET", "/sessions/{session}/browser")
def show_browser(view: SessionReader) -> BrowserInfo:
    """What a browser had open."""
    return _browser(view)


class SetBrowser(OperationRequest, frozen=True):
    """`storage` is a storage state as Playwright gives it; it goes into the vault."""

    urls: list[str] | None = None
    storage: dict[str, Any] | None = None


@operation("POST", "/sessions/{session}/browser", status=201)
def browser(session: Session, ask: SetBrowser) -> BrowserInfo:
    """Record what a browser has open, and its storage state."""
    if ask.urls is not None or ask.storage is not None:
        session.browser(ask.urls, ask.storage)
    return _browser(session)


class HandoverText(msgspec.Struct, frozen=True):
    """Files by name, as text."""

    files: dict[str, str]


@operation("GET", "/sessions/{session}/handover")
def handover(view: SessionReader) -> HandoverText:
    """A feature list, a progress log and a briefing for the next worker; nothing is written."""
    files = handovers.contents(view, ProgressLog())
    return HandoverText({name: text.decode("utf-8", "replace") for name, text in files.items()})
