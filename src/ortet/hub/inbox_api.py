"""Verbs of the hub that write to a session without its lease: comment, approve, whatif.

Comments and answers go to the inbox of the session. The process that holds the lease moves them to
the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from ortet._util.validation import FLAG, check_text, require
from ortet.errors import Conflict, Invalid

if TYPE_CHECKING:
    from ortet.journal.events import Draft, Event
    from ortet.journal.replay.run_diff import RunDiff
    from ortet.journal.state.records import Approval
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session


class InboxApi:
    """Verbs that write to a session without its lease. Imports happen in the verbs."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        self._store = sessions.store

    def comment(self, session: str | SessionReader, text: str, *, by: str = "") -> Event:
        """Send a comment to a session, also while another process writes to it.

        A comment never causes a conflict. Readers see it at once. The writer moves it to the
        journal at its next action or commit.

        Args:
            session: The session, its id, its name, or agent/name.
            text: The comment.
            by: Author of the comment. The default is the author of the hub.

        Returns:
            The event as it is in the inbox.

        Raises:
            Invalid: kind "bad_comment", if the text is empty or not text.
            Conflict: kind "session_closed", if the session is closed or archived.
        """
        from ortet.journal.events import Draft

        if not text or not isinstance(text, str):
            given = "an empty one" if text == "" else type(text).__name__
            raise Invalid("bad_comment", f"a comment is text, not {given}: say it in words")
        check_text(by=by)
        return self._post_to_inbox(
            session, Draft("comment", {"text": text}, by or self._store.author)
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
        """Answer an approval request of a session. The first answer counts.

        Args:
            session: The session, its id, its name, or agent/name.
            approval: Id of the approval request.
            by: Author of the answer. The default is the author of the hub.
            ok: False denies the request.
            why: Reason for the answer.

        Returns:
            The approval with the answer that counts, which may be an earlier one.

        Raises:
            NotFound: If the session has no such approval request.
            Conflict: kind "session_closed", if the session is closed or archived.
        """
        from ortet.sessions.actions.approvals import draft_answer, need, record_answer

        session = self._sessions.table.resolve(session)
        check_text(by=by)
        draft = draft_answer(approval, by=by or self._store.author, ok=ok, why=why)
        need(self._sessions.get(session).actions.approvals(), approval)
        self._post_to_inbox(session, draft)
        record_answer(self._store.catalog, draft, self._store.clock.now_ns())
        return need(self._sessions.get(session).actions.approvals(), approval)

    def whatif(
        self,
        session: str | SessionReader,
        at: int,
        *,
        machine: bool = True,
        message: Any = UNSET,
        result: Any = UNSET,
        error: str | UnsetType = UNSET,
    ) -> Session:
        """Fork a session at an event, with that event changed, and continue live.

        The session itself does not change. Another process may write to it at the same time.

        Args:
            session: The session, its id, its name, or agent/name.
            at: Number of the event to change.
            machine: False forks without files and processes.
            message: Other content of a message.
            result: Other outcome of an action.
            error: Failure of an action instead of its outcome.

        Returns:
            The new session. Its files are those of the last commit before the event.

        Raises:
            Invalid: kind "bad_change", unless exactly one of message, result and error is given,
                and it fits the event.
            NotFound: If there is no such event, or it was erased.
        """
        from ortet.sessions.history.fork_session import fork_parent_of
        from ortet.sessions.history.forking import whatif

        require(FLAG, machine=machine)
        view = self._session_reader(session)
        changes = {"message": message, "result": result, "error": error}
        change = {name: value for name, value in changes.items() if value is not UNSET}
        return whatif(self._sessions, fork_parent_of(view), at, machine=machine, **change)

    def diff_runs(self, a: str | SessionReader, b: str | SessionReader) -> RunDiff:
        """Compare the events of two sessions.

        Returns:
            The point where the two runs diverge and what each did after it. `str()` of it is
                readable text.
        """
        from ortet.journal.replay.run_diff import diff_runs

        return diff_runs(self._session_reader(a).events(), self._session_reader(b).events())

    def _session_reader(self, session: str | SessionReader) -> SessionReader:
        """Return the given open session itself, or a reader of the session that is named."""
        from ortet.sessions.reader import SessionReader

        if isinstance(session, SessionReader):
            return session
        return self._sessions.get(self._sessions.table.resolve(session))

    def _post_to_inbox(self, session: str | SessionReader, draft: Draft) -> Event:
        from ortet.sessions.table import ARCHIVED, CLOSED
        from ortet.sessions.writing.inbox import put

        store, table = self._store, self._sessions.table
        row = table.get(table.resolve(session))
        if row.status in (CLOSED, ARCHIVED):
            raise Conflict(
                "session_closed",
                f"session {row.name!r} is {row.status} and takes no more: comment on one that goes "
                "on",
                status=row.status,
            )
        draft = msgspec.structs.replace(draft, data=store.secrets.redact(draft.data))
        event = put(store.catalog, row.id, draft, clock=store.clock, random=store.random)
        store.notify(f"session:{row.id}")
        return event
