"""The verbs of a session about the world around it: collaborate, window, token, browser."""

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
from ortet.journal.state.around import (
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
    """The part of Session whose events also say what is true of the world, restored or not."""

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
        """Record what others see, or will: a branch, a pull request, a comment half written.

        The same name again changes what is given. It is a draft until `status` is "done" or
        "withdrawn"; done can be withdrawn, and that is final: Conflict("illegal_move"). `effect` is
        the action that made it, by itself the one in progress: then a restore does not undo it,
        says so, and `collaborations()` goes on telling it.
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
            event = self._writer.add(Draft("collaboration", data, self._hub.author), rows=rows)[0]
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
        """Record how many calls a service still takes until `reset`: seconds since 1970, or a
        datetime.

        A service counts calls by who makes them, and that is the agent: what one of its sessions
        learns last is what all of them, forks and restored ones too, are told by `windows()`.
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
        """Say under which name the vault has the token for a service; without a name, that token,
        as it is now."""
        if name is None:
            return super().token(service)
        self._begin_change()
        external_state.check_label(service, "a service")
        if not self._hub.vault.has(name):
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
        """Record what a browser has open and its storage state (a dict, or the path of the file
        that Playwright or Selenium wrote); with neither, what was recorded.

        The state lies in the vault, the event has its name: after a restore it is the one of that
        commit, unless the `current` one is asked for.
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
            vault = self._hub.vault
            data["storage"] = f"{BROWSER_PREFIX}{self.id}/{vault.fingerprint(text)}"
            rows.append(vault.seal(data["storage"], text))
        known = self._state.browsers.get(BROWSER) or BrowserState()
        now = msgspec.structs.replace(known, **data, time=self._now())
        rows.append(external_state.put_row_change(BROWSER, self.id, now))
        self._record_external("browser", data, rows)
        return super().browser()

    def _record_external(self, kind: str, data: dict[str, Any], rows: list[RowChange]) -> Event:
        event = self._writer.add(Draft(kind, data, self._hub.author), rows=rows)[0]
        self._auto_commit_if_due(kind, data)
        return event
