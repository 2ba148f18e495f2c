"""The external facet of a session: collaborations, rate limits, tokens and browser state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, overload

import msgspec

from ortet._util.validation import FLAG, TEXT, optional, require
from ortet.backends.base import RowChange
from ortet.errors import NotFound
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import (
    BROWSER,
    BrowserState,
    Collaboration,
    RateLimitWindow,
    ServiceToken,
    update_collaboration,
)
from ortet.sessions.context import SessionContext
from ortet.sessions.environment import external_state
from ortet.sessions.environment.external_state import (
    Browser,
    RateLimitRow,
    browser_of,
    collaborations_of,
    token_of,
    windows_of,
)
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer
from ortet.vault.vault import BROWSER_PREFIX, Secret


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
        external_state.check_label(name, "a collaboration")
        optional(TEXT, effect=effect)
        given = {"kind": kind, "link": link, "status": status, "text": text}
        data = {"name": name, **{key: value for key, value in given.items() if value is not None}}
        if made := effect or self._verbs.effects.current():
            data["effect"] = made
        with self._verbs.writer.exclusive():
            known = {one.name: one for one in self.collaborations()}
            external_state.check_collaboration(self._context, known.get(name), data)
            real = update_collaboration(
                known.get(name), data, self._verbs.writer.tip.seq + 1, self._context.now()
            )
            rows = []
            if real.effect:
                bare = msgspec.structs.replace(real, text="")
                rows = [
                    external_state.put_row_change(
                        external_state.collaboration_rows(self._context.id), name, bare
                    )
                ]
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
        data = external_state.window_data(service, remaining, reset, limit)
        learned = RateLimitRow(
            RateLimitWindow(**data, time=self._context.now()), self._context.row.timeline
        )
        row = external_state.put_row_change(
            external_state.WINDOW, f"{self._context.agent}/{service}", learned
        )
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
        external_state.check_label(service, "a service")
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
            data["urls"] = external_state.check_urls(urls)
        if storage is not None:
            text = external_state.storage_text(storage)
            vault = self._context.store.vault
            data["storage"] = f"{BROWSER_PREFIX}{self._context.id}/{vault.fingerprint(text)}"
            rows.append(vault.seal(data["storage"], text))
        known = self._context.state.browsers.get(BROWSER) or BrowserState()
        now = msgspec.structs.replace(known, **data, time=self._context.now())
        rows.append(external_state.put_row_change(BROWSER, self._context.id, now))
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
