"""External state of a session: collaborations, rate limits, tokens and browser state.

A restore moves the session state but not the outside world. So each fact about the world is also a
catalog row, written with its event. Readers get the later of the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import urlsplit

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import FLAG, TEXT, optional, require
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Invalid, NotFound
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import (
    BROWSER,
    DONE,
    DRAFT,
    WITHDRAWN,
    BrowserState,
    Collaboration,
    Effect,
    RateLimitWindow,
    ServiceToken,
    update_collaboration,
)
from ortet.sessions.actions.actions import no_effect
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation_state import known_effects
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer
from ortet.vault.vault import BROWSER_PREFIX, Secret

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext

LEGAL = {
    DRAFT: (DRAFT, DONE, WITHDRAWN),
    DONE: (DONE, WITHDRAWN),
    WITHDRAWN: (),
}
"""Legal changes of the status of a collaboration."""

WINDOW = "window"
_MAX_TEXT_LENGTH = 64 << 10
_MAX_NAME_LENGTH = 200
_MAX_URL_LENGTH = 8 << 10
_MAX_URLS = 1000
_MAX_TIME_SECONDS = 9e9  # as ns it still fits into 64 bits


class RateLimitRow(msgspec.Struct, frozen=True):
    """A row about a rate limit, with the timeline on which it was learned."""

    window: RateLimitWindow
    timeline: str


class Browser(msgspec.Struct, frozen=True):
    """The open pages and the storage state of a browser.

    Attributes:
        urls: Addresses of the open pages.
        storage: Cookies and storage, or None if none were recorded. They hold secrets, so they are
            not printed.
    """

    urls: list[str]
    storage: dict[str, Any] | None = None

    def __repr__(self) -> str:
        kept = "with" if self.storage is not None else "without"
        return f"<Browser of {len(self.urls)} URLs, {kept} storage>"


# collaborations


def collaboration_rows(session: str) -> str:
    """Return the row kind of the collaborations of a session."""
    return f"collaboration/{session}"


def collaborations_of(view: SessionContext) -> list[Collaboration]:
    """Return the collaborations by name. Those that an effect created survive a restore."""
    found = {one.name: one for one in view.state.collaborations}
    for real in [] if view.is_replaying else _effect_collaborations(view):
        known = found.get(real.name)
        if known is None or known.time <= real.time:
            text = known.text if known is not None else ""
            found[real.name] = msgspec.structs.replace(real, text=text)
    return [found[name] for name in sorted(found)]


def surviving_collaborations(
    view: SessionContext, effects: Sequence[Effect]
) -> list[Collaboration]:
    """Return the collaborations that these effects created."""
    ids = {effect.id for effect in effects}
    return [one for one in _effect_collaborations(view) if one.effect in ids]


def _effect_collaborations(view: SessionContext) -> list[Collaboration]:
    rows = all_rows(view.store.catalog, collaboration_rows(view.id))
    return [decode(Collaboration, value) for _, value in rows]


def check_collaboration(
    view: SessionContext, old: Collaboration | None, data: dict[str, Any]
) -> None:
    for field in ("kind", "link", "status", "text", "effect"):
        if not isinstance(data.get(field, ""), str):
            raise Invalid("bad_record", f"{field}={data[field]!r}: give text")
    if len(data.get("text", "")) > _MAX_TEXT_LENGTH:
        raise Invalid(
            "payload_too_large",
            f"a text of more than {_MAX_TEXT_LENGTH} characters: keep it as an artifact and give "
            "its "
            "name",
        )
    status = data.get("status", DRAFT)
    if status not in LEGAL:
        raise Invalid("bad_status", f"status={status!r}: give one of {', '.join(LEGAL)}")
    if old is not None:
        legal = LEGAL[old.status]
        if data.get("status", old.status) not in legal:
            ways = f"it can be {' or '.join(legal)}" if legal else "that is final: give a new name"
            raise Conflict(
                "illegal_move",
                f"{old.name!r} is {old.status} and cannot become {data.get('status', 'another')}: "
                f"{ways}",
                status=old.status,
            )
    effect = data.get("effect")
    if effect and effect not in {one.effect.id for one in known_effects(view)}:
        raise no_effect(effect)


# rate limits


def windows_of(view: SessionContext) -> list[RateLimitWindow]:
    """Return the latest rate limit of each service, known to any session of the agent."""
    now = view.store.clock.now_ns()
    found = {window.service: window for window in view.state.windows}
    prefix = f"{view.agent}/"
    rows = [] if view.is_replaying else all_rows(view.store.catalog, WINDOW, prefix)
    for key, value in rows:
        real = decode(RateLimitRow, value).window
        service = key.removeprefix(prefix)
        if service not in found or found[service].time <= real.time:
            found[service] = real
    return [_window_now(found[service], now) for service in sorted(found)]


def _window_now(window: RateLimitWindow, now: int) -> RateLimitWindow:
    if window.reset > now:
        return window
    return msgspec.structs.replace(window, remaining=window.limit, full=True)


def window_data(
    service: str, remaining: float, reset: datetime | float, limit: float | None
) -> dict[str, Any]:
    data = {"service": check_label(service, "a service"), "remaining": _count(remaining)}
    if limit is not None:
        if _count(limit) < remaining:
            raise Invalid("bad_window", f"{remaining:g} of {limit:g} are left: give limit or less")
        data["limit"] = limit
    return {**data, "reset": _ns(reset)}


def _count(number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e15:
        raise Invalid("bad_window", f"{number!r} calls: give a number from 0")
    return number


def _ns(time: Any) -> int:
    if isinstance(time, datetime) and time.tzinfo is not None:
        seconds = time.timestamp()
        if 0 < seconds < _MAX_TIME_SECONDS:
            return int(seconds * 1e9)
    if (
        isinstance(time, int | float)
        and not isinstance(time, bool)
        and 0 < time < _MAX_TIME_SECONDS
    ):
        return int(time * 1_000_000_000)
    raise Invalid(
        "bad_window",
        f"reset={time!r}: give seconds since 1970, or a datetime that has a time zone",
    )


# tokens and browsers


def token_of(view: SessionContext, service: str) -> Secret:
    found: ServiceToken | None = view.state.tokens.get(check_label(service, "a service"))
    if found is None:
        raise NotFound(
            "no_token",
            f"no token for {service!r} was named: "
            f"s.external.token({service!r}, 'name in the vault')",
        )
    return view.store.vault.get(found.vault)


def browser_of(view: SessionContext, *, current: bool) -> Browser:
    """Return the browser state of this session state, or with `current` the last saved one."""
    found = view.state.browsers.get(BROWSER)
    if current and (row := view.store.catalog.row(BROWSER, view.id)) is not None:
        found = decode(BrowserState, row.value)
    if found is None:
        return Browser([])
    if not found.storage:
        return Browser(found.urls)
    return Browser(found.urls, msgspec.json.decode(view.store.vault.get(found.storage).encode()))


def storage_text(storage: Any) -> str:
    """Return a storage state as JSON. Error messages must not show its content."""
    if isinstance(storage, str | os.PathLike):
        try:
            storage = msgspec.json.decode(Path(storage).read_bytes())
        except (OSError, msgspec.DecodeError, ValueError):
            raise Invalid("bad_storage", f"{storage} is no readable JSON file") from None
    if not isinstance(storage, dict):
        raise Invalid("bad_storage", "give a storage state as a dict, or the path of one")
    try:
        return msgspec.json.encode(storage, order="sorted").decode()
    except (TypeError, ValueError, RecursionError):
        raise Invalid("bad_storage", "the storage state is no plain JSON") from None


def check_urls(urls: Sequence[str]) -> list[str]:
    found = [urls] if isinstance(urls, str) else list(urls) if isinstance(urls, Iterable) else [""]
    if len(found) > _MAX_URLS:
        raise Invalid("bad_url", f"{len(found)} URLs: give at most {_MAX_URLS}")
    for url in found:
        if not isinstance(url, str) or not 0 < len(url) <= _MAX_URL_LENGTH:
            raise Invalid("bad_url", f"give each URL as text of 1 to {_MAX_URL_LENGTH} characters")
        try:
            secret = urlsplit(url).password
        except ValueError:
            secret = None
        if secret:
            raise Invalid("secret_in_url", "a URL holds a password: put that into the vault")
    return found


# helpers


def check_label(name: Any, what: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= _MAX_NAME_LENGTH and name.isprintable():
        return name
    raise Invalid("bad_name", f"give {what} a name of 1 to {_MAX_NAME_LENGTH} printable characters")


def all_rows(catalog: Catalog, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
    """Return keys and values of the rows whose keys start with `prefix`."""
    found: list[tuple[str, bytes]] = []
    after = prefix
    while page := catalog.rows(kind, after):
        found += [(row.key, row.value) for row in page if row.key.startswith(prefix)]
        after = page[-1].key
        if not after.startswith(prefix):
            break
    return found


def put_row_change(kind: str, key: str, record: msgspec.Struct) -> RowChange:
    return RowChange(kind, key, encode(record))


# The external facet of a session: collaborations, rate limits, tokens and browser state.


class ExternalState:
    """Facts about the outside world that a session recorded."""

    def __init__(self, context: SessionContext, pipeline: VerbPipeline | None = None) -> None:
        self._context = context
        self._pipeline = pipeline

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def collaborate(
        self,
        name: str,
        *,
        kind: str | None = None,
        link: str | None = None,
        status: str | None = None,
        text: str | None = None,
        effect: str | None = None,
    ) -> Collaboration:
        """Record something that others see or will see: a branch, a pull request, a comment.

        The same name again changes the given fields. If an effect created it, a restore does not
        undo it; `collaborations()` keeps listing it.

        Args:
            name: its name.
            kind: what it is.
            link: where it is.
            status: "draft", "done" or "withdrawn". Done can be withdrawn; withdrawn is final.
            text: its content.
            effect: the id of the effect that created it; by default the action in progress.

        Raises:
            Conflict: "illegal_move" if the status cannot change in this way.
        """
        self._verbs.begin_change()
        check_label(name, "a collaboration")
        optional(TEXT, effect=effect)
        given = {"kind": kind, "link": link, "status": status, "text": text}
        data = {"name": name, **{key: value for key, value in given.items() if value is not None}}
        if made := effect or self._verbs.effects.current():
            data["effect"] = made
        with self._verbs.writer.exclusive():
            known = {one.name: one for one in self.collaborations()}
            check_collaboration(self._context, known.get(name), data)
            real = update_collaboration(
                known.get(name), data, self._verbs.writer.tip.seq + 1, self._context.now()
            )
            rows = []
            if real.effect:
                bare = msgspec.structs.replace(real, text="")
                rows = [put_row_change(collaboration_rows(self._context.id), name, bare)]
            event = self._verbs.writer.add(
                Draft("collaboration", data, self._context.store.author), rows=rows
            )[0]
        self._verbs.auto_commit_if_due("collaboration", data)
        return msgspec.structs.replace(real, seq=event.seq)

    def window(
        self,
        service: str,
        *,
        remaining: float,
        reset: datetime | float,
        limit: float | None = None,
    ) -> Event:
        """Record how many calls a service still accepts.

        Rate limits belong to the agent: `windows()` returns the last record of any of its sessions,
        including forks and restored ones.

        Args:
            service: the service.
            remaining: the number of calls left.
            reset: when the limit is reset: seconds since 1970, or a datetime with a time zone.
            limit: the number of calls of a full window.
        """
        self._verbs.begin_change()
        data = window_data(service, remaining, reset, limit)
        learned = RateLimitRow(
            RateLimitWindow(**data, time=self._context.now()), self._context.row.timeline
        )
        row = put_row_change(WINDOW, f"{self._context.agent}/{service}", learned)
        return self._record_external("window", data, [row])

    @overload
    def token(self, service: str) -> Secret: ...

    @overload
    def token(self, service: str, name: str) -> Event: ...

    def token(self, service: str, name: str | None = None) -> Secret | Event:
        """Record the vault name of the token for a service, or return the current token.

        Args:
            service: the service.
            name: the name in the vault. None returns the token.

        Raises:
            NotFound: "no_secret" if the vault has no such name, "no_token" if none was recorded.
        """
        if name is None:
            return token_of(self._context, service)
        self._verbs.begin_change()
        check_label(service, "a service")
        if not self._context.store.vault.has(name):
            raise NotFound(
                "no_secret", f"the vault has no {name!r}: put it there first, hub.vault.put(…)"
            )
        return self._record_external("token", {"service": service, "vault": name}, [])

    def browser(
        self,
        urls: Sequence[str] | None = None,
        storage: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        current: bool = False,
    ) -> Browser:
        """Record the open pages and the storage state of a browser, or return what was recorded.

        The storage state is stored in the vault, and the event has its name. After a restore it is
        the one of that commit.

        Args:
            urls: the open pages.
            storage: a dict, or the path of a file that Playwright or Selenium wrote.
            current: without other arguments, return the last saved state instead.
        """
        if urls is None and storage is None:
            require(FLAG, current=current)
            return browser_of(self._context, current=current)
        self._verbs.begin_change()
        data: dict[str, Any] = {}
        rows: list[RowChange] = []
        if urls is not None:
            data["urls"] = check_urls(urls)
        if storage is not None:
            text = storage_text(storage)
            vault = self._context.store.vault
            data["storage"] = f"{BROWSER_PREFIX}{self._context.id}/{vault.fingerprint(text)}"
            rows.append(vault.seal(data["storage"], text))
        known = self._context.state.browsers.get(BROWSER) or BrowserState()
        now = msgspec.structs.replace(known, **data, time=self._context.now())
        rows.append(put_row_change(BROWSER, self._context.id, now))
        self._record_external("browser", data, rows)
        return browser_of(self._context, current=False)

    def _record_external(self, kind: str, data: dict[str, Any], rows: list[RowChange]) -> Event:
        event = self._verbs.writer.add(Draft(kind, data, self._context.store.author), rows=rows)[0]
        self._verbs.auto_commit_if_due(kind, data)
        return event

    # reading

    def collaborations(self) -> list[Collaboration]:
        """Return the collaborations by name: things that other people see or will see.

        A collaboration that an effect created is included even after a restore to an earlier
        commit.
        """
        return collaborations_of(self._context)

    def windows(self) -> list[RateLimitWindow]:
        """Return the rate limits by service, as known now.

        A window whose reset time has passed is `full`.
        """
        return windows_of(self._context)

    def tokens(self) -> list[ServiceToken]:
        """Return which entries of the vault belong to which services."""
        return list(self._context.state.tokens)
