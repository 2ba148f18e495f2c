"""The state outside of a session: its environment, collaborations, rate limits, token names,
browser state and handover files. Values of secrets are never returned.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.journal.environment import Environment, EnvironmentDifference
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.records import BROWSER, Collaboration, RateLimitWindow, ServiceToken
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import EventInfo, Id, OperationRequest, Ref, recorded_event_info
from ortet.sessions.environment import handover as handovers
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

Label = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Calls = Annotated[float, msgspec.Meta(ge=0, le=1e14)]


class Surroundings(msgspec.Struct, frozen=True):
    """The recorded environment. It is null if it was never recorded."""

    environment: Environment | None


@operation("GET", "/sessions/{session}/environment")
def show_environment(view: SessionReader) -> Surroundings:
    """Show the last recorded environment of a session: packages, variables, hosts and repository.
    Secret variables are shown by reference.
    """
    recorded = SessionReader.environment(view)  # recorded only: an open session would probe
    return Surroundings(recorded)


@operation("POST", "/sessions/{session}/environment", needs_host=True)
def environment(session: Session) -> Surroundings:
    """Record the environment of the workspace on the server's host, and return the changes."""
    return Surroundings(session.environment())


class Compare(OperationRequest, frozen=True):
    """`to`: the commit to compare with, by default the head."""

    to: Ref | None = None


class Differences(msgspec.Struct, frozen=True):
    items: list[EnvironmentDifference]


@operation("POST", "/sessions/{session}/environment/compare", needs_host=True)
def compare_environment(session: Session, ask: Compare) -> Differences:
    """Compare the present environment with the environment of a commit. Nothing is recorded."""
    return Differences(session.environment(compare=ask.to or True))


@operation("GET", "/sessions/{session}/collaborations")
def list_collaborations(view: SessionReader, ask: Paged) -> Page[Collaboration]:
    """List the work of a session that others see or will see, such as branches, pull requests and
    draft comments.
    """
    return paginate(view.external.collaborations(), ask, lambda one: one.name)


class Collaborate(OperationRequest, frozen=True):
    """Fields that are not given stay unchanged. `status`: a collaboration is a draft until it is
    done or withdrawn, which is final. `effect`: the id of the action that made it.
    """

    name: Label
    kind: str | None = None
    link: str | None = None
    status: Literal["draft", "done", "withdrawn"] | None = None
    text: str | None = None
    effect: Id | None = None


@operation("POST", "/sessions/{session}/collaborations", status=201)
def collaborate(session: Session, ask: Collaborate) -> Collaboration:
    """Record a collaboration, or change its record. A collaboration is something that others see,
    such as a pull request.
    """
    return session.external.collaborate(
        ask.name,
        kind=ask.kind,
        link=ask.link,
        status=ask.status,
        text=ask.text,
        effect=ask.effect,
    )


@operation("GET", "/sessions/{session}/windows")
def list_windows(view: SessionReader, ask: Paged) -> Page[RateLimitWindow]:
    """List the rate limits of the agent by service."""
    return paginate(view.external.windows(), ask, lambda one: one.service)


class SetWindow(OperationRequest, frozen=True):
    """`remaining`: the number of calls that the service still accepts until `reset`, a time in
    seconds since 1970.
    """

    service: Label
    remaining: Calls
    reset: Annotated[float, msgspec.Meta(gt=0, lt=9e9)]
    limit: Calls | None = None


@operation("POST", "/sessions/{session}/windows", status=201)
def window(session: Session, ask: SetWindow) -> EventInfo:
    """Record the rate limit of a service. All sessions of the agent see it."""
    event = session.external.window(
        ask.service, remaining=ask.remaining, reset=ask.reset, limit=ask.limit
    )
    return recorded_event_info(session, event)


@operation("GET", "/sessions/{session}/tokens")
def list_tokens(view: SessionReader, ask: Paged) -> Page[ServiceToken]:
    """List the services of a session with the names of their secrets in the vault. Values are not
    returned.
    """
    return paginate(view.external.tokens(), ask, lambda one: one.service)


class NameToken(OperationRequest, frozen=True):
    """`vault`: the name of the secret in the vault."""

    service: Label
    vault: Label


@operation("POST", "/sessions/{session}/tokens", status=201)
def token(session: Session, ask: NameToken) -> EventInfo:
    """Record which secret of the vault gives access to a service."""
    return recorded_event_info(session, session.external.token(ask.service, ask.vault))


class BrowserInfo(msgspec.Struct, frozen=True):
    """`storage`: the name under which the vault has the cookies and the local storage, or "" for
    none. The storage state itself contains secrets and is not returned.
    """

    urls: list[str]
    storage: str


def _browser(view: SessionReader) -> BrowserInfo:
    known = view.internals.state.browsers.get(BROWSER)
    return BrowserInfo(known.urls, known.storage) if known else BrowserInfo([], "")


@operation("GET", "/sessions/{session}/browser")
def show_browser(view: SessionReader) -> BrowserInfo:
    """Show the recorded browser state of a session."""
    return _browser(view)


class SetBrowser(OperationRequest, frozen=True):
    """`storage`: a storage state in the format of Playwright. The vault stores it."""

    urls: list[str] | None = None
    storage: dict[str, Any] | None = None


@operation("POST", "/sessions/{session}/browser", status=201)
def browser(session: Session, ask: SetBrowser) -> BrowserInfo:
    """Record the open pages of a browser and its storage state."""
    if ask.urls is not None or ask.storage is not None:
        session.external.browser(ask.urls, ask.storage)
    return _browser(session)


class HandoverText(msgspec.Struct, frozen=True):
    """The handover files by name, as text."""

    files: dict[str, str]


@operation("GET", "/sessions/{session}/handover")
def handover(view: SessionReader) -> HandoverText:
    """Return a feature list, a progress log and a briefing for the next worker. Nothing is
    written.
    """
    files = handovers.contents(
        view.internals.context, ProgressLog(), view.briefing(handovers.BRIEFING_TOKENS).markdown
    )
    return HandoverText({name: text.decode("utf-8", "replace") for name, text in files.items()})
