"""The session verbs for external state: collaborate, window, token, browser."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, overload

import msgspec

from ortet._util.validation import TEXT, optional
from ortet.backends.base import RowChange
from ortet.errors import NotFound
from ortet.journal.events import Draft, Event
from ortet.journal.state.external_state import (
    BROWSER,
    BrowserState,
    Collaboration,
    RateLimitWindow,
    update_collaboration,
)
from ortet.sessions.actions.effects import EffectLog
from ortet.sessions.conversation import ConversationMixin
from ortet.sessions.environment import external_state
from ortet.sessions.environment.external_state import Browser, RateLimitRow
from ortet.sessions.writing.event_writer import EventWriter
from ortet.vault.vault import BROWSER_PREFIX, Secret


class ExternalStateMixin(ConversationMixin):
    """The verbs of Session that record facts about the outside world."""

    _writer: EventWriter
    _effects: EffectLog

    @abstractmethod
    def _begin_change(self) -> None: ...

    @abstractmethod
    def _auto_commit_if_due(self, kind: str, data: Mapping[str, Any]) -> None: ...

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
        self._begin_change()
        external_state.check_label(name, "a collaboration")
        optional(TEXT, effect=effect)
        given = {"kind": kind, "link": link, "status": status, "text": text}
        data = {"name": name, **{key: value for key, value in given.items() if value is not None}}
        if made := effect or self._effects.current():
            data["effect"] = made
        with self._writer.exclusive():
            known = {one.name: one for one in self.collaborations()}
            external_state.check_collaboration(self, known.get(name), data)
            real = update_collaboration(
                known.get(name), data, self._writer.tip.seq + 1, self._now()
            )
            rows = []
            if real.effect:
                bare = msgspec.structs.replace(real, text="")
                rows = [
                    external_state.put_row_change(
                        external_state.collaboration_rows(self.id), name, bare
                    )
                ]
            event = self._writer.add(Draft("collaboration", data, self._store.author), rows=rows)[0]
        self._auto_commit_if_due("collaboration", data)
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
        self._begin_change()
        data = external_state.window_data(service, remaining, reset, limit)
        learned = RateLimitRow(RateLimitWindow(**data, time=self._now()), self._row.timeline)
        row = external_state.put_row_change(
            external_state.WINDOW, f"{self.agent}/{service}", learned
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
            return super().token(service)
        self._begin_change()
        external_state.check_label(service, "a service")
        if not self._store.vault.has(name):
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
            return super().browser(current=current)
        self._begin_change()
        data: dict[str, Any] = {}
        rows: list[RowChange] = []
        if urls is not None:
            data["urls"] = external_state.check_urls(urls)
        if storage is not None:
            text = external_state.storage_text(storage)
            vault = self._store.vault
            data["storage"] = f"{BROWSER_PREFIX}{self.id}/{vault.fingerprint(text)}"
            rows.append(vault.seal(data["storage"], text))
        known = self._state.browsers.get(BROWSER) or BrowserState()
        now = msgspec.structs.replace(known, **data, time=self._now())
        rows.append(external_state.put_row_change(BROWSER, self.id, now))
        self._record_external("browser", data, rows)
        return super().browser()

    def _record_external(self, kind: str, data: dict[str, Any], rows: list[RowChange]) -> Event:
        event = self._writer.add(Draft(kind, data, self._store.author), rows=rows)[0]
        self._auto_commit_if_due(kind, data)
        return event
