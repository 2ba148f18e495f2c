"""What a hub does beside the writer of a session: comment, approve, ask what would have been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from ortet._util.validation import FLAG, check_text, require
from ortet.errors import Conflict, Invalid

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.events import Draft, Event
    from ortet.journal.replay.run_diff import RunDiff
    from ortet.journal.state.records import Approval
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session


class InboxApi:
    """The part of Hub that needs no lease. What it needs is imported where it is used."""

    @property
    def _hub(self) -> Hub:
        return cast("Hub", self)

    def comment(self, session: str | SessionReader, text: str, *, by: str = "") -> Event:
        """Say something to a session, whoever writes to it; it never conflicts.

        The writer takes it into the journal when it next acts or commits; readers see it at once.
        """
        from ortet.journal.events import Draft

        if not text or not isinstance(text, str):
            given = "an empty one" if text == "" else type(text).__name__
            raise Invalid("bad_comment", f"a comment is text, not {given}: say it in words")
        check_text(by=by)
        return self._post_to_inbox(
            session, Draft("comment", {"text": text}, by or self._hub.author)
        )

    def approve(
        self,
        session: str | SessionReader,
        approval: str,
        *,
        by: str = "",
        ok: bool = True,
        why: str = "",
    ) -> Approval:
        """Answer what a session asked for; returns how it stands: the first answer counts."""
        from ortet.sessions.actions.approvals import draft_answer, need

        session = self._hub._session_manager().table.resolve(session)
        check_text(by=by)
        draft = draft_answer(approval, by=by or self._hub.author, ok=ok, why=why)
        need(self._hub.get(session).approvals(), approval)
        self._post_to_inbox(session, draft)
        return need(self._hub.get(session).approvals(), approval)

    def whatif(
        self, session: str | SessionReader, at: int, *, machine: bool = True, **change: Any
    ) -> Session:
        """Fork a session at event `at` with one change, `message`, `result` or `error`, and go on
        live; the session itself is left alone, whoever writes to it."""
        from ortet.sessions.history.whatif import whatif

        require(FLAG, machine=machine)
        hub = self._hub
        view = self._session_reader(session)
        return whatif(hub._session_manager(), view, at, machine=machine, **change)

    def diff_runs(self, a: str | SessionReader, b: str | SessionReader) -> RunDiff:
        """Where two sessions part, and then what each did; str() of it is readable."""
        from ortet.journal.replay.run_diff import diff_runs

        return diff_runs(self._session_reader(a).events(), self._session_reader(b).events())

    def _session_reader(self, session: str | SessionReader) -> SessionReader:
        """To read: a session that is open here as it is, else by what it is called."""
        from ortet.sessions.reader import SessionReader

        return session if isinstance(session, SessionReader) else self._hub.get(session)

    def _post_to_inbox(self, session: str | SessionReader, draft: Draft) -> Event:
        from ortet.sessions.table import ARCHIVED, CLOSED
        from ortet.sessions.writing.inbox import put

        hub = self._hub
        roll = hub._session_manager().table
        row = roll.get(roll.resolve(session))
        if row.status in (CLOSED, ARCHIVED):
            raise Conflict(
                "session_closed",
                f"session {row.name!r} is {row.status} and takes no more: comment on one that goes "
                "on",
                status=row.status,
            )
        draft = msgspec.structs.replace(draft, data=hub.redact(draft.data))
        event = put(hub.catalog, row.id, draft, clock=hub.clock, random=hub.random)
        hub.notify(f"session:{row.id}")
        return event
